"""Programs of the tests' own: `backstay …` in processes that are ended at the end."""

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

#: The folder on whose path `support` is.
TESTS = Path(__file__).resolve().parents[1]


def child_environment(**variables):
    """For a Python process that imports `support`, or what else this process can import."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *filter(None, sys.path)]), **variables}


class Program:
    """A running `backstay …` process; its output is read as it comes."""

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
    def said(self):
        return "\n".join(self.lines)

    def waits_for(self, pattern, within=60):
        """The first line that fits."""
        assert eventually(lambda: self.process.poll() is not None or re.search(pattern, self.said), within), self.said
        found = re.search(pattern, self.said)
        assert found, f"ended with {self.process.poll()}: {self.said}"
        return found

    def stop(self, number=signal.SIGTERM, within=60):
        """Its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            code = self.process.wait(within)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not stop: {self.said}") from None
        self._reader.join(WITHIN)
        self.process.stdout.close()
        return code


@contextlib.contextmanager
def programs():
    """`start(*arguments)`; a program that still runs at the end of the test is killed."""
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
