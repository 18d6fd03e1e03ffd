"""The contenders of the job benchmarks. Each runs in its own virtual environment, because peers need conflicting
versions of packages.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from bench.harness import Sample
from bench.queues.stage import RECORD

ROOT = Path(__file__).parents[2]
#: Virtual environments of the peers, created at first use.
PEERS = Path(os.environ.get("BACKSTAY_PEERS", ROOT / ".peers"))
TICKS = os.sysconf("SC_CLK_TCK")
#: Seconds without progress after which a worker counts as stuck.
STUCK_SECONDS = 20.0


@dataclass(frozen=True)
class Contender:
    """A queue package. `module`: the module in this folder that drives it; `peers`: its virtual environment, "" for the
    current one; `ways`: configurations of its worker; `blocks`: its client is blocking; `beside`: it is only shown for
    comparison, without a target.
    """

    name: str
    module: str
    peers: str
    ways: tuple[str, ...]
    blocks: bool = False
    beside: bool = False

    @property
    def python(self) -> Path:
        return PEERS / self.peers / "bin" / "python" if self.peers else Path(sys.executable)


BACKSTAY = Contender("Backstay", "backstay_", "", ("concurrency 100",))
BACKSTAY_BLOCKING = Contender("Backstay, blocking", "backstay_blocking_", "", ("enqueues only",), blocks=True)
ON_REDIS = (
    Contender("dramatiq", "dramatiq_", "redis", ("8 threads", "4 threads, prefetch 500"), blocks=True),
    Contender("taskiq", "taskiq_", "redis", ("100 tasks",)),
    # Huey pushes a pickle to a list, and a worker pops it. That is the minimal cost of a queue, but a job whose worker
    # dies is lost. So it is shown without a target.
    Contender("Huey", "huey_", "redis", ("1 thread",), blocks=True, beside=True),
    Contender("SAQ", "saq_", "older", ("concurrency 100",)),
    Contender("BullMQ", "bullmq_", "redis", ("concurrency 100",)),
    Contender("arq", "arq_", "older", ("100 jobs, poll 5 ms",)),
    Contender("Celery", "celery_", "redis", ("solo, prefetch 100", "10 threads, prefetch 100"), blocks=True),
    Contender("streaQ", "streaq_", "redis", ("concurrency 100",)),
    Contender("RQ", "rq_", "redis", ("no fork",), blocks=True),
)
ON_SQLITE = (Contender("Huey", "huey_", "redis", ("4 threads, poll 10 ms", "1 thread")),)
ON_POSTGRES = (
    Contender("PgQueuer", "pgqueuer_", "postgres", ("batches of 100, a pool",)),
    Contender("Procrastinate", "procrastinate_", "postgres", ("concurrency 100, a pool of 20",)),
)


def prepare(*contenders: Contender) -> None:
    """Create the virtual environments that are missing or older than their requirements files."""
    for group in sorted({contender.peers for contender in contenders if contender.peers}):
        home, pins = PEERS / group, ROOT / "requirements" / f"peers-{group}.txt"
        ready = home / ".ready"
        if ready.exists() and ready.stat().st_mtime >= pins.stat().st_mtime:
            continue
        subprocess.run([sys.executable, "-m", "venv", home], check=True)
        pip = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        # --no-deps, because the pins are complete. With it, pip cannot pick newer releases of packages that are
        # required with extras.
        subprocess.run([*pip, "--no-deps", "--require-hashes", "-r", pins], check=True)
        ready.touch()


class Drain(NamedTuple):
    """How a worker drained a queue: the rate from the first to the last job with the CPU of all its processes, the
    number of jobs that did not run, and its memory.
    """

    sample: Sample
    missing: int
    rss_mib: float


class ContenderRun:
    """Runs one contender on one engine: its producer and its worker, each in a separate process."""

    def __init__(self, contender: Contender, url: str, folder: Path) -> None:
        self.contender = contender
        self.url = url
        self.records = folder / f"{contender.module}.records"
        self.log = folder / f"{contender.module}.log"
        paths = [str(ROOT)] + ([str(ROOT / "src")] if not contender.peers else [])
        self.environment = {**os.environ, "BENCH_RECORD": str(self.records), "PYTHONPATH": os.pathsep.join(paths)}

    def _command(self, role: str, *args: object) -> list[str]:
        head = [str(self.contender.python), "-m", "bench.queues.stage", self.contender.module, role, self.url]
        return [*head, *map(str, args)]

    def run(self, role: str, *args: object) -> str:
        done = subprocess.run(
            self._command(role, *args), env=self.environment, capture_output=True, text=True, timeout=300, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{self.contender.name} {role}: {done.stderr[-1500:]}")
        return done.stdout

    def enqueue(self, way: str, n: int) -> Sample:
        found: dict[str, Any] = json.loads(self.run("enqueue", way, n).splitlines()[-1])
        return Sample(found["count"], found["seconds"], found["cpu"])

    @contextmanager
    def worker(self, how: str) -> Iterator[subprocess.Popen[bytes]]:
        self.records.write_bytes(b"")
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                self._command("work", how), env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
            try:
                yield process
            finally:
                family = list(_process_ids(process.pid))
                process.terminate()
                try:
                    process.wait(3)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                for child in family[1:]:
                    try:
                        os.kill(child, signal.SIGKILL)
                    except ProcessLookupError:
                        continue

    def count(self) -> int:
        return self.records.stat().st_size // RECORD.size

    def read(self) -> list[tuple[float, float]]:
        return list(RECORD.iter_unpack(self.records.read_bytes()))  # type: ignore[arg-type] # two doubles each

    def drain(self, how: str, n: int) -> Drain:
        """Enqueue `n` jobs, start a worker, and wait until it has run them all or makes no progress."""
        self.enqueue("many", n)
        with self.worker(how) as process:
            moved = perf_counter()
            while not self.count():
                if process.poll() is not None or perf_counter() - moved > 60:
                    raise RuntimeError(f"{self.contender.name}'s worker did not start: {self.log.read_text()[-1500:]}")
                time.sleep(0.002)
            cpu, seen = _cpu(process.pid), 0
            while (have := self.count()) < n and perf_counter() - moved < STUCK_SECONDS:
                if have != seen:
                    seen, moved = have, perf_counter()
                time.sleep(0.01)
            cpu = _cpu(process.pid) - cpu
            time.sleep(0.2)
            rss = sum(_rss(pid) for pid in _process_ids(process.pid))
        began = sorted(start for _, start in self.read())
        return Drain(Sample(len(began) - 1, max(1e-9, began[-1] - began[0]), cpu), n - len(began), rss)

    def latency(self, how: str, probes: int) -> list[float]:
        """Return the milliseconds from the enqueue to the start of each job, when the worker is idle before."""
        with self.worker(how):
            time.sleep(2.0)  # long enough for any contender to become idle
            self.run("latency", probes)
        return [(start - asked) * 1000 for asked, start in self.read()][5:]


def _process_ids(pid: int) -> Iterator[int]:
    yield pid
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [child for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return
    for child in children:
        yield from _process_ids(int(child))


def _cpu(pid: int) -> float:
    total = 0.0
    for member in _process_ids(pid):
        try:
            fields = Path(f"/proc/{member}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _rss(pid: int) -> float:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0.0)


def cpu_of(pid: int) -> float:
    """Return the CPU seconds of a process and its children."""
    return _cpu(pid)
