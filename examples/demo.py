"""A server, two workers, and a CI-like workflow that they run: examples/demo.yml. `make demo`.

Everything here is real: `backstay serve` on a SQLite file in a temporary folder, two `backstay worker` processes with
labels of their own that speak HTTP with it, and this program, which knows nothing but the HTTP API. On a terminal the
server stays up until Ctrl-C, for the page in the browser; elsewhere the demo ends with the run. The exit code is 0 only
if the run was a success.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

WORKFLOW = Path(__file__).with_name("demo.yml")
#: Two workers, and what each of them has.
WORKERS = {"ada": "builds", "bo": "tests"}
#: `backstay serve` has it unless it is told otherwise.
USUAL_PORT = 3000
SIGNS = {"started": "▶", "scheduled": "↻", "completed": "✓", "failed": "✗", "skipped": "-", "cancelled": "!"}
#: Seconds, also on a machine that has other things to do.
PATIENCE = 60.0
#: Hears of the end of a pipe.
GUARD = 'read -r word || { kill "$1"; sleep 5; kill -9 "$1"; } 2>/dev/null'


def ask(url: str, body: bytes | None = None, kind: str = "application/json") -> Any:
    request = Request(url, data=body, headers={"content-type": kind})  # noqa: S310 - our own server
    with urlopen(request, timeout=PATIENCE) as answer:  # noqa: S310 - the same
        return json.load(answer)


def events(url: str) -> Iterator[dict[str, Any]]:
    """Server-sent events, until the stream says that it has ended."""
    with urlopen(url, timeout=PATIENCE) as stream:  # noqa: S310 - the same
        name = ""
        for raw in stream:
            field, _, value = raw.decode().rstrip("\n").partition(": ")
            if field == "event":
                name = value
            elif field == "data" and name == "end":
                return
            elif field == "data":
                yield json.loads(value)


@contextmanager
def program(*args: str, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`backstay …` until the end of the block; what it says is in `log`. Should this program be killed without a word,
    a shell at the end of a pipe hears of it and ends the other.
    """
    with log.open("wb") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "backstay", *args],
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            start_new_session=True,
        )
    guard = subprocess.Popen(
        ["/bin/sh", "-c", GUARD, "guard", str(process.pid)],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.communicate(b"all is well\n")


def address(server: subprocess.Popen[bytes], log: Path) -> str:
    """Where it listens, once it does."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.split()[2]
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def port() -> int:
    """The usual one for somebody who looks, if it is free; else any."""
    if not sys.stdout.isatty():
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", USUAL_PORT))
        except OSError:
            return 0
    return USUAL_PORT


def main() -> int:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backstay-demo-")))
        engine = f"sqlite:///{home}/demo.db"
        log = home / "server.log"
        server = stack.enter_context(
            program("--url", engine, "serve", "--port", str(port()), "--no-access-log", log=log)
        )
        url = address(server, log)
        print(f"server   {url}, on SQLite", flush=True)
        for name, label in WORKERS.items():
            place = home / name
            place.mkdir()
            options = ["--labels", label, "--name", name, "--concurrency", "2", "--directory", str(place)]
            stack.enter_context(
                program("worker", "--server", url, "--allow-commands", *options, log=home / f"{name}.log")
            )
            print(f"worker   {name}, which {label}", flush=True)

        stored = ask(f"{url}/api/workflows", WORKFLOW.read_bytes(), "application/yaml")
        run = ask(f"{url}/api/workflows/{stored['id']}/run", b'{"inputs": {"version": "1.2"}}')["run_id"]
        print(f"run      {url}/#/runs/{run}\n", flush=True)
        status = follow(url, run)
        if sys.stdout.isatty():
            with suppress(KeyboardInterrupt):
                print(f"\nLook at it: {url}/#/runs/{run}   Ctrl-C ends the server and the workers.", flush=True)
                server.wait()
    return 0 if status == "success" else 1


def follow(url: str, run: str) -> str:
    """Tell what happens in a run, as it does. Returns what became of it."""
    began = time.monotonic()
    decided: set[str] = set()
    for event in events(f"{url}/api/runs/{run}/events/stream"):
        kind, job, worker = event["event"], event["job_id"], event["worker_id"]
        if kind == "started" and worker not in WORKERS:
            decided.add(job)  # the server itself sees to conditions: whether, and with which values, a job is to run
        elif job in decided:
            decided.discard(job)
        elif kind in SIGNS:
            said = f"{kind} on {worker}" if kind == "started" else f"{kind}: {event['why']}" if event["why"] else kind
            print(f"{time.monotonic() - began:6.1f} s  {SIGNS[kind]} {job:12} {said}", flush=True)
    detail = ask(f"{url}/api/runs/{run}")
    print(f"\n{detail['status']}: {len(detail['jobs'])} jobs in {time.monotonic() - began:.1f} s", flush=True)
    return str(detail["status"])


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
