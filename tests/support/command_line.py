"""Run the command line on each engine, in separate processes or in this one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from backstay.cli.root import app
from backstay.gate.view import Inspection
from backstay.sync import Backstay
from backstay.testing.waiting import WITHIN

#: Seconds after which a test fails; every step here is much faster.
PATIENCE = WITHIN


def eventually(condition: Callable[[], Any], what: str) -> Any:
    """Wait until `condition()` returns a true value, and return it. After a timeout, fail the test with `what`."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.01)
    pytest.fail(f"never happened: {what}")


@dataclass
class Cli:
    """The command `backstay` on one engine, in a separate namespace."""

    url: str
    namespace: str
    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {"BACKSTAY_URL": self.url, "BACKSTAY_NAMESPACE": self.namespace, "COLUMNS": "200"}

    @staticmethod
    def argv(*args: str) -> list[str]:
        return [sys.executable, "-m", "backstay", *args]

    def start(self, *args: str, **options: Any) -> subprocess.Popen[str]:
        """Start the command in a separate process, which `close()` stops."""
        pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        options = {"env": self.environment, "cwd": self.folder, "text": True} | pipes | options
        options["start_new_session"] = True  # detached from the terminal that the tests may run on
        process = subprocess.Popen(self.argv(*args), **options)
        self.started.append(process)
        return process

    def run(self, *args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run the command in a separate process, and wait until it exits."""
        options = {"env": self.environment, "cwd": self.folder, "stdin": subprocess.DEVNULL} | options
        options["start_new_session"] = True
        return subprocess.run(
            self.argv(*args), capture_output=True, text=True, timeout=PATIENCE, check=False, **options
        )

    def call(self, *args: str, **options: Any) -> Any:
        """Run the command inside this process, which is faster."""
        return CliRunner().invoke(app, args, env=self.environment, prog_name="backstay", **options)

    def json(self, *args: str) -> Any:
        result = self.call(*args, "--json")
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    def holding(
        self, name: str, *options: str, setup: str = ":", script: str = "exec sleep 300"
    ) -> subprocess.Popen[str]:
        """Start `backstay lock` and wait until it holds the lock and its command has run `setup`. Without a `--ttl` in
        `options` the lease is long: a machine that stands still for half a minute does not end it.
        """
        options = options if "--ttl" in options else (*options, "--ttl", "10m")
        process = self.start("lock", name, *options, "--", "sh", "-c", f"{setup}; echo ready; {script}")
        assert process.stdout
        line = process.stdout.readline()
        assert line == "ready\n", (line, process.stderr and process.stderr.read())
        return process

    def waiting(self, name: str, *args: str, waiters: int = 1, **options: Any) -> subprocess.Popen[str]:
        """Start `backstay lock` and wait until the queue has `waiters` waiters."""
        process = self.start("lock", name, *args, **options)
        eventually(lambda: self.inspect(name).waiter_count == waiters, f"{waiters} wait for {name}")
        return process

    def inspect(self, name: str) -> Inspection:
        return self.backstay.locks.inspect(name)

    def is_free(self, name: str) -> bool:
        return self.inspect(name).count == 0

    @property
    def backstay(self) -> Backstay:
        if self._backstay is None:
            self._backstay = Backstay(self.url, namespace=self.namespace).open()
        return self._backstay

    _backstay: Backstay | None = None

    def close(self) -> None:
        for process in self.started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
            try:
                process.communicate(timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        if self._backstay is not None:
            self._backstay.close()


def end_input(process: subprocess.Popen[str]) -> None:
    """Close the standard input of the process."""
    assert process.stdin
    process.stdin.close()
    process.stdin = None


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait until the process exits. Returns its exit code, standard output and standard error."""
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err
