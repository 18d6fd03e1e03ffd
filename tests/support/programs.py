"""Run `backstay …` in separate processes, which are stopped at the end of the test."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

from backstay.testing.waiting import WITHIN, eventually

#: The folder that contains the package `support`.
TESTS = Path(__file__).resolve().parents[1]


def child_environment(**variables):
    """Build the environment of a Python process that can import `support` and everything that this process can."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), **variables}


def is_alive(pid):
    """Whether a process runs. A zombie counts as exited: a small container may have no init process that reaps it."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in b"ZX"
    return False


class Program:
    """A running `backstay …` process. A thread reads its output into `lines`."""

    def __init__(self, *arguments, cwd=None, **variables):
        self.lines = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "backstay", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=cwd,
            env={**os.environ, **variables},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))

    @property
    def output(self):
        return "\n".join(self.lines)

    def waits_for(self, pattern, within=60):
        """Wait until the output matches `pattern`, and return the match."""
        assert eventually(lambda: self.process.poll() is not None or re.search(pattern, self.output), within), (
            self.output
        )
        found = re.search(pattern, self.output)
        assert found, f"ended with {self.process.poll()}: {self.output}"
        return found

    def stop(self, number=signal.SIGTERM, within=60):
        """Stop the process with a signal and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop: {self.output}") from None
        self._reader.join(WITHIN)
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def programs():
    """Yield a function `start(*arguments)`. Programs that are still running at the end of the block are killed."""
    made = []

    def start(*arguments, **options):
        made.append(Program(*arguments, **options))
        return made[-1]

    try:
        yield start
    finally:
        for program in made:
            if program.process.poll() is None:
                program.stop(signal.SIGKILL)
