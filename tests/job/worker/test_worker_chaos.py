"""Many jobs, several workers, and whatever can happen to them: killed, put to sleep, drained, the engine restarted."""

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
from support.app import ONE_PLACE, url_of
from support.worker_pool import WorkerPool

pytestmark = [pytest.mark.slow, pytest.mark.chaos]

JOBS = 1500
SHARED = [kind for kind in ONE_PLACE if kind != "memory"]
LEASE = 2


@pytest.fixture(params=SHARED)
def scene(request, tmp_path, namespace):
    """A shop, and what restarts its engine, where that can be done."""
    kind = request.param
    with contextlib.ExitStack() as stack:
        restart = None
        if kind == "redis":
            server = stack.enter_context(RedisServer(aof=True))
            url, restart = server.url, server.restart
        else:
            url = url_of(kind, request)
        shop = WorkerPool(url, namespace, tmp_path)
        stack.callback(shop.close)
        yield shop, restart


def test_no_job_is_lost_repeated_or_stuck_under_worker_faults(scene):
    shop, restart = scene
    dice = random.Random(7)
    for start in range(0, JOBS, 500):
        for n in range(start, start + 500):
            shop.enqueue("record", {"n": n, "seconds": 0.02}, retries=1000)
    options = ("--concurrency", "8", "--lease", str(LEASE), "--drain", "1", "--grace", "0.5")
    workers = [shop.worker(*options) for _ in range(3)]
    sleeping = []
    restarts = 0
    deadline = time.monotonic() + 90
    while _done(shop) < JOBS and time.monotonic() < deadline:
        time.sleep(0.4)
        for process in sleeping:
            process.send_signal(signal.SIGCONT)
        sleeping.clear()
        victim = dice.randrange(len(workers))
        process = workers[victim]
        match dice.choice(["kill", "sleep", "drain", "nothing", "restart"]):
            case "kill":
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
            case "sleep" if process.poll() is None:
                process.send_signal(signal.SIGSTOP)
                sleeping.append(process)
                time.sleep(dice.choice([0.5, LEASE + 1]))
            case "drain" if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            case "restart" if restart is not None and restarts < 3:
                restarts += 1
                restart()
            case _:
                pass
        workers = [shop.worker(*options) if process.poll() is not None else process for process in workers]
    for process in sleeping:
        process.send_signal(signal.SIGCONT)
    assert eventually(lambda: _done(shop) == JOBS, 90), (_counts(shop), len(shop.workers))
    counts = _counts(shop)
    assert (counts.pending, counts.running, counts.scheduled, counts.failed) == (0, 0, 0, 0)
    fences = defaultdict(list)
    for _, n, _, fence, _ in shop.lines("start"):
        fences[n].append(int(fence))
    ended = defaultdict(list)
    for _, n, _, fence, _ in shop.lines("end"):
        ended[n].append(int(fence))
    assert set(ended) == {str(n) for n in range(JOBS)}
    for n, its in fences.items():
        assert len(set(its)) == len(its), "two attempts under one lease"
        assert max(ended[n]) == max(its), "an attempt that came later did not end, and yet the job is completed"


def _counts(shop):
    return shop.stay.queues.get("default")


def _done(shop):
    return _counts(shop).completed
