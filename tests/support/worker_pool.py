"""Run workers in separate processes, and read the journal that their handlers write."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from backstay.sync import Backstay
from backstay.testing.waiting import eventually

HERE = Path(__file__).parent


class WorkerPool:
    """An engine, a namespace, a journal, and worker processes that end with the test."""

    def __init__(self, url, namespace, folder):
        self.url, self.namespace, self.folder = url, namespace, folder
        self.journal = folder / "journal"
        self.workers = []
        self.stay = Backstay(url, namespace=namespace)
        self.stay.open()

    @property
    def environment(self):
        return os.environ | {
            "BACKSTAY_URL": self.url,
            "BACKSTAY_NAMESPACE": self.namespace,
            "WORKER_JOURNAL": str(self.journal),
            "PYTHONPATH": os.pathsep.join([str(HERE.parent), *(part for part in sys.path if part)]),
        }

    def worker(self, *options, target="support.worker_program:stay", cwd=None):
        """Start `backstay worker` in a separate process."""
        return self._start([sys.executable, "-m", "backstay", "worker", target, *options], cwd)

    def program(self, name):
        """Start a Python program in a separate process."""
        return self._start([sys.executable, name], None)

    def _start(self, command, cwd):
        log = (self.folder / f"worker-{len(self.workers)}.log").open("w")
        process = subprocess.Popen(
            command,
            env=self.environment,
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        log.close()
        self.workers.append(process)
        return process

    def log(self, nth=0):
        """Return the output of the nth process."""
        return (self.folder / f"worker-{nth}.log").read_text()

    def lines(self, kind=""):
        """Return the lines of the journal as lists of words. `kind`: only lines whose first word is this one."""
        if not self.journal.exists():
            return []
        found = [line.split() for line in self.journal.read_text().splitlines()]
        return [words for words in found if not kind or words[0] == kind]

    def wait_for_lines(self, kind, count, within=30.0):
        """Wait until the journal has at least `count` lines of this kind, and return them."""
        assert eventually(lambda: len(self.lines(kind)) >= count, within), (self.lines(kind)[-3:], self._logs())
        return self.lines(kind)

    def enqueue(self, type_, arguments=None, **options):
        return self.stay.jobs.enqueue(type_, arguments or {}, **options)

    def enqueue_records(self, count, seconds=0.0, **options):
        return [self.enqueue("record", {"n": n, "seconds": seconds}, **options) for n in range(count)]

    def wait_for_state(self, job_id, state, within=30.0):
        assert eventually(lambda: self.stay.jobs.get(job_id).state == state, within), (
            self.stay.jobs.get(job_id),
            self._logs(),
        )
        return self.stay.jobs.get(job_id)

    def _logs(self):
        return "\n".join(self.log(nth) for nth in range(len(self.workers)))

    def wait_exit(self, process, within=30.0):
        """Wait until the process exits, and return its exit code."""
        try:
            return process.wait(within)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the process did not exit:\n{self._logs()}") from None

    def close(self):
        for process in self.workers:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        for process in self.workers:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                process.wait(10)
        self.stay.close()
