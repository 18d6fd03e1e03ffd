"""Fifty calls with one key in five processes: the function runs once, even if its owner is killed or paused."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from backstay import sync
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.race, pytest.mark.slow]

PROCESSES, CALLS = 5, 10
#: A program that makes ten concurrent calls on one of the two APIs. The called function writes its process id to the
#: file `ran`, and returns when the file `go` exists.
CALLERS = """
import asyncio, os, sys, threading, time
from pathlib import Path
import backstay, backstay.sync

api, url, namespace, folder = sys.argv[1:]
folder = Path(folder)

def note():
    with (folder / "ran").open("ab", buffering=0) as file:
        file.write(b"%d\\n" % os.getpid())
    return f"outcome of {os.getpid()}"

async def run_async():
    async def work():
        outcome = note()
        while not (folder / "go").exists():
            await asyncio.sleep(0.005)
        return outcome

    async with backstay.Backstay(url, namespace=namespace) as stay:
        return await asyncio.gather(*[stay.idempotency.run("charge", work, lease=3) for _ in range(10)])

def run_threads():
    def work():
        outcome = note()
        while not (folder / "go").exists():
            time.sleep(0.005)
        return outcome

    with backstay.sync.Backstay(url, namespace=namespace) as stay:
        outcomes = []
        call = lambda: outcomes.append(stay.idempotency.run("charge", work, lease=3))
        threads = [threading.Thread(target=call) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return outcomes

outcomes = asyncio.run(run_async()) if api == "async" else run_threads()
print(*outcomes, sep="\\n", flush=True)
"""


class Crowd:
    """The five processes, and the file in which their function records each run."""

    def __init__(self, url, namespace, folder):
        self.folder = folder
        self.processes = [
            subprocess.Popen(
                [sys.executable, "-c", CALLERS, "async" if i % 2 else "threads", url, namespace, str(folder)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for i in range(PROCESSES)
        ]

    def ran(self):
        file = self.folder / "ran"
        return [int(pid) for pid in file.read_text().split()] if file.exists() else []

    def owner(self):
        assert eventually(self.ran, 60)
        return next(p for p in self.processes if p.pid == self.ran()[-1])

    def finish(self):
        """Let the function return, and return the outcomes that each process got."""
        (self.folder / "go").touch()
        return {p.pid: p.communicate(timeout=60)[0].splitlines() for p in self.processes}


@pytest.fixture
def crowd(shared_url, namespace, tmp_path):
    crowd = Crowd(shared_url, namespace, tmp_path)
    yield crowd
    for process in crowd.processes:
        process.kill()
        process.communicate()


def wait_for_waiters(url, namespace, count):
    with sync.Backstay(url, namespace=namespace) as stay:
        assert eventually(lambda: stay.idempotency.inspect("charge").waiters >= count, 60)


def test_fifty_calls_in_five_processes_run_once_and_share_the_result(crowd, shared_url, namespace):
    owner = crowd.owner()
    wait_for_waiters(shared_url, namespace, PROCESSES * CALLS - 1)
    outcomes = crowd.finish()
    assert crowd.ran() == [owner.pid]
    assert outcomes == {p.pid: [f"outcome of {owner.pid}"] * CALLS for p in crowd.processes}


def test_exactly_one_caller_takes_over_from_a_killed_owner(crowd, shared_url, namespace):
    first = crowd.owner()
    wait_for_waiters(shared_url, namespace, PROCESSES * CALLS - 1)
    first.kill()
    assert eventually(lambda: len(crowd.ran()) == 2, 60)
    second = crowd.owner()
    outcomes = crowd.finish()
    assert crowd.ran() == [first.pid, second.pid]
    assert second is not first
    assert outcomes.pop(first.pid) == []
    assert all(lines == [f"outcome of {second.pid}"] * CALLS for lines in outcomes.values())


def test_a_paused_owner_that_resumes_cannot_overwrite_the_outcome(crowd, shared_url, namespace):
    first = crowd.owner()
    wait_for_waiters(shared_url, namespace, PROCESSES * CALLS - 1)
    os.kill(first.pid, signal.SIGSTOP)
    assert eventually(lambda: len(crowd.ran()) == 2, 60)
    second = crowd.owner()
    (crowd.folder / "go").touch()
    with sync.Backstay(shared_url, namespace=namespace) as stay:
        assert eventually(lambda: stay.idempotency.inspect("charge").state == "completed", 60)
        os.kill(first.pid, signal.SIGCONT)
        crowd.finish()
        assert stay.idempotency.run("charge", lambda: "third") == f"outcome of {second.pid}"
    assert crowd.ran() == [first.pid, second.pid]
