"""Runs end with the same results when their workers are killed."""

import importlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from backstay.job.scheduler.pruner import check_runs
from backstay.runtime.flows import run as do

HERE = Path(__file__).parent
RUNS, KILLS = 12, 8
pytestmark = [pytest.mark.chaos, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("FLOW_URL", f"sqlite:///{tmp_path / 'chaos.db'}?synchronous=normal")
    monkeypatch.setenv("FLOW_NOTES", str(tmp_path / "notes"))
    monkeypatch.syspath_prepend(str(HERE))
    monkeypatch.delitem(sys.modules, "flow_program", raising=False)
    program = importlib.import_module("flow_program")
    with program.stay:
        yield program


def start_worker():
    command = [sys.executable, "-m", "backstay", "worker", "flow_program:stay", "--lease", "1s", "-c", "4"]
    return subprocess.Popen(
        command, cwd=HERE, env=os.environ.copy(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def test_every_run_ends_correctly_despite_killed_workers(program):
    runs = [program.crunch.start(n) for n in range(RUNS)]
    workers = [start_worker(), start_worker()]
    try:
        rnd, kills = random.Random(7), 0
        until = time.monotonic() + 240
        while time.monotonic() < until and not all(run.info().is_finished for run in runs):
            time.sleep(rnd.uniform(0.3, 0.9))
            if kills < KILLS and any(run.status() != "queued" for run in runs):
                place = rnd.randrange(len(workers))
                workers[place].send_signal(signal.SIGKILL)
                workers[place].wait()
                workers[place] = start_worker()
                kills += 1
        assert kills
        for n, run in enumerate(runs):
            assert run.wait(timeout=1) == "failure", run.info()
            states = {job.key: job.state for job in run.jobs()}
            assert (states["fail"], states["mail"], states["never"]) == ("failed", "completed", "skipped")
            assert run.outputs["square"] == [n * n, (n + 1) ** 2, (n + 2) ** 2]
            assert run.outputs["both"] == sum(run.outputs["square"]) + 3 * n + 3
            seen = [event.seq for event in run.events(follow=False)]
            assert seen == list(range(1, len(seen) + 1))
        assert {line.split()[1] for line in program.NOTES.read_text().splitlines()} == {str(n) for n in range(RUNS)}
        assert do(check_runs(program.stay._core)) == 0, "the counters of a run were wrong"
    finally:
        for process in workers:
            process.kill()
            process.wait()
