"""Many jobs on several workers that are killed, paused and drained while the engine restarts."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import defaultdict

import pytest

from backstay.testing.servers import RedisServer
from backstay.testing.waiting import eventually
from support.app import UNSHARDED, url_of
from support.worker_pool import WorkerPool

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

JOBS = 1500
SHARED = [kind for kind in UNSHARDED if kind != "memory"]
LEASE = 2


@pytest.fixture(params=SHARED)
def pool_and_restart(request, tmp_path, namespace):
    """A worker pool, and a function that restarts its engine, or None on SQLite and PostgreSQL."""
    kind = request.param
    with contextlib.ExitStack() as stack:
        restart = None
        if kind == "redis":
            server = stack.enter_context(RedisServer(aof=True))
            url, restart = server.url, server.restart
        else:
            url = url_of(kind, request)
        pool = WorkerPool(url, namespace, tmp_path)
        stack.callback(pool.close)
        yield pool, restart


def test_no_job_is_lost_repeated_or_stuck_under_worker_faults(pool_and_restart):
    pool, restart = pool_and_restart
    dice = random.Random(7)
    for start in range(0, JOBS, 500):
        for n in range(start, start + 500):
            pool.enqueue("record", {"n": n, "seconds": 0.02}, retries=1000)
    options = ("--concurrency", "8", "--lease", str(LEASE), "--drain", "1", "--grace", "0.5")
    workers = [pool.worker(*options) for _ in range(3)]
    paused = []
    restarts = 0
    deadline = time.monotonic() + 90
    while _done(pool) < JOBS and time.monotonic() < deadline:
        time.sleep(0.4)
        for process in paused:
            process.send_signal(signal.SIGCONT)
        paused.clear()
        victim = dice.randrange(len(workers))
        process = workers[victim]
        match dice.choice(["kill", "pause", "drain", "nothing", "restart"]):
            case "kill":
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            case "pause" if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                paused.append(process)
                time.sleep(dice.choice([0.5, LEASE + 1]))
            case "drain" if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            case "restart" if restart is not None and restarts < 3:
                restarts += 1
                restart()
            case _:
                pass
        workers = [pool.worker(*options) if process.poll() is not None else process for process in workers]
    for process in paused:
        process.send_signal(signal.SIGCONT)
    assert eventually(lambda: _done(pool) == JOBS, 90), (_counts(pool), len(pool.workers))
    counts = _counts(pool)
    assert (counts.pending, counts.running, counts.scheduled, counts.failed) == (0, 0, 0, 0)
    fences = defaultdict(list)
    for _, n, _, fence, _ in pool.lines("start"):
        fences[n].append(int(fence))
    ended = defaultdict(list)
    for _, n, _, fence, _ in pool.lines("end"):
        ended[n].append(int(fence))
    assert set(ended) == {str(n) for n in range(JOBS)}
    for n, started in fences.items():
        assert len(set(started)) == len(started), "two attempts under one lease"
        assert max(ended[n]) == max(started), "the job is completed although its last attempt did not end"


def _counts(pool):
    return pool.stay.queues.get("default")


def _done(pool):
    return _counts(pool).completed
