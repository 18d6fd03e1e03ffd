"""Start a server and two workers, and run a CI-like workflow on them: examples/demo.yml. Run it with `make demo`.

The demo starts real processes: `backstay serve` on a SQLite file in a temporary folder, and two `backstay worker`
processes with different labels that connect to it over HTTP. This program uses only the HTTP API. On a terminal, the
server runs until Ctrl-C, for the dashboard; otherwise the demo ends with the run. The exit code is 0 only if the run
succeeded.
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
#: The label of each worker.
WORKERS = {"ada": "builds", "bo": "tests"}
#: The default port of `backstay serve`.
DEFAULT_PORT = 3000
SIGNS = {"started": "▶", "scheduled": "↻", "completed": "✓", "failed": "✗", "skipped": "-", "cancelled": "!"}
#: Seconds for each request and each process, long enough for a busy machine.
TIMEOUT = 60.0
#: A shell script that waits for a line on standard input. If that is closed without a line, it kills the process $1.
GUARD = 'read -r line || { kill "$1"; sleep 5; kill -9 "$1"; } 2>/dev/null'


def fetch(url: str, body: bytes | None = None, kind: str = "application/json") -> Any:
    request = Request(url, data=body, headers={"content-type": kind})  # noqa: S310 - our own server
    with urlopen(request, timeout=TIMEOUT) as response:  # noqa: S310 - the same
        return json.load(response)


def events(url: str) -> Iterator[dict[str, Any]]:
    """Yield server-sent events until the stream's `end` event."""
    with urlopen(url, timeout=TIMEOUT) as stream:  # noqa: S310 - the same
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
    """Run `backstay …` until the end of the block, with its output in `log`. If this program is killed with SIGKILL,
    the kernel closes the guard's standard input, and the guard kills the process.
    """
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "backstay", *args],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
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
            process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        guard.communicate(b"stopped\n")


def wait_for_url(server: subprocess.Popen[bytes], log: Path) -> str:
    """Wait until the server listens, and return its URL."""
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and server.poll() is None:
        for line in log.read_text().splitlines():
            if line.startswith("listening on "):
                return line.split()[2]
        time.sleep(0.05)
    raise SystemExit(f"the server did not start:\n{log.read_text()}")


def choose_port() -> int:
    """On a terminal, return the default port if it is free; otherwise 0, for any free port."""
    if not sys.stdout.isatty():
        return 0
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


def main() -> int:
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="backstay-demo-")))
        engine = f"sqlite:///{home}/demo.db"
        log = home / "server.log"
        server = stack.enter_context(
            program("--url", engine, "serve", "--port", str(choose_port()), "--no-access-log", log=log)
        )
        url = wait_for_url(server, log)
        print(f"server   {url}, on SQLite", flush=True)
        for name, label in WORKERS.items():
            folder = home / name
            folder.mkdir()
            options = ["--labels", label, "--name", name, "--concurrency", "2", "--directory", str(folder)]
            stack.enter_context(
                program("worker", "--server", url, "--allow-commands", *options, log=home / f"{name}.log")
            )
            print(f"worker   {name}, label {label}", flush=True)

        stored = fetch(f"{url}/api/workflows", WORKFLOW.read_bytes(), "application/yaml")
        run = fetch(f"{url}/api/workflows/{stored['id']}/run", b'{"inputs": {"version": "1.2"}}')["run_id"]
        print(f"run      {url}/#/runs/{run}\n", flush=True)
        status = follow(url, run)
        if sys.stdout.isatty():
            with suppress(KeyboardInterrupt):
                print(f"\nDashboard: {url}/#/runs/{run}   Press Ctrl-C to stop the server and the workers.", flush=True)
                server.wait()
    return 0 if status == "success" else 1


def follow(url: str, run: str) -> str:
    """Print the events of a run as they arrive, and return its status."""
    began = time.monotonic()
    evaluating: set[str] = set()
    for event in events(f"{url}/api/runs/{run}/events/stream"):
        kind, job, worker = event["event"], event["job_id"], event["worker_id"]
        if kind == "started" and worker not in WORKERS:
            evaluating.add(job)  # the server itself evaluates the job's condition and expressions
        elif job in evaluating:
            evaluating.discard(job)
        elif kind in SIGNS:
            text = describe(kind, worker, event["why"])
            print(f"{time.monotonic() - began:6.1f} s  {SIGNS[kind]} {job:12} {text}", flush=True)
    detail = fetch(f"{url}/api/runs/{run}")
    print(f"\n{detail['status']}: {len(detail['jobs'])} jobs in {time.monotonic() - began:.1f} s", flush=True)
    return str(detail["status"])


def describe(kind: str, worker: str, reason: str) -> str:
    if kind == "started":
        return f"started on {worker}"
    name = "retrying" if kind == "scheduled" else kind
    return f"{name}: {reason}" if reason else name


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
