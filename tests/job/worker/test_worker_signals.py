"""Workers as processes: drained, stopped, killed, put to sleep. No attempt is used up by a deploy."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from backstay.testing.waiting import eventually
from support.app import ONE_PLACE, url_of
from support.worker_pool import WorkerPool

pytestmark = pytest.mark.slow

SHARED = [kind for kind in ONE_PLACE if kind != "memory"]


@pytest.fixture(params=SHARED)
def shop(request, tmp_path, namespace):
    shop = WorkerPool(url_of(request.param, request), namespace, tmp_path)
    yield shop
    shop.close()


def test_a_drain_under_load_uses_up_no_attempt_and_runs_nothing_twice(shop):
    handles = shop.record(600, seconds=0.02)
    first = shop.worker("--concurrency", "10")
    shop.written("end", 50)
    second = shop.worker("--concurrency", "10")
    first.send_signal(signal.SIGTERM)
    assert shop.ended(first) == 0
    shop.written("end", 300)
    second.send_signal(signal.SIGTERM)
    assert shop.ended(second) == 0
    stopped = len(shop.lines("end"))
    assert stopped < 600
    assert len(shop.lines("start")) == stopped  # whatever had begun has ended
    assert shop.ended(shop.worker("--burst", "--concurrency", "50"), 60) == 0
    starts = Counter(words[1] for words in shop.lines("start"))
    assert starts == {str(n): 1 for n in range(600)}
    assert {words[2] for words in shop.lines("start")} == {"1"}
    assert {shop.stay.jobs.get(handle.id).state for handle in handles[::50]} == {"completed"}


def test_a_job_past_the_drain_timeout_is_returned_without_using_up_an_attempt(shop):
    (handle,) = shop.record(1, seconds=600)
    worker = shop.worker("--drain", "0.2", "--grace", "1")
    shop.written("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert shop.ended(worker) == 0
    assert len(shop.lines("cancelled")) == 1
    job = shop.stay.jobs.get(handle.id)
    assert (job.state, job.attempt) == ("pending", 0)
    again = shop.worker()
    starts = shop.written("start", 2)
    assert [words[2] for words in starts] == ["1", "1"]
    assert int(starts[1][3]) > int(starts[0][3])
    again.send_signal(signal.SIGTERM)
    again.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("program", ["command", "asyncio.run"])
def test_ctrl_c_drains_as_well(shop, program):
    (handle,) = shop.record(1, seconds=1.5)
    if program == "command":
        worker = shop.worker()
    else:
        (shop.folder / "own_program.py").write_text(
            "import asyncio\nfrom support.worker_program import stay\nasync def main():\n    async with stay:\n"
            "        await stay.worker().run()\nasyncio.run(main())\n"
        )
        worker = shop.program("own_program.py")
    shop.written("start", 1)
    worker.send_signal(signal.SIGINT)
    assert shop.ended(worker) == 0, shop.log()
    assert [words[0] for words in shop.lines()] == ["start", "end"]
    assert shop.stay.jobs.get(handle.id).state == "completed"


def test_a_second_signal_stops_at_once(shop):
    (handle,) = shop.record(1, seconds=600)
    worker = shop.worker("--drain", "600")
    shop.written("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert eventually(lambda: "draining" in shop.log())
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert shop.ended(worker, 15) == 0
    assert shop.stay.jobs.get(handle.id).state == "pending"


@pytest.mark.parametrize("program", ["uvloop", "asyncio"])
def test_a_second_signal_stops_a_handler_that_blocks_the_loop(shop, program):
    """A blocked loop receives no signal; the process must exit without waiting for the handler."""
    blocking = shop.enqueue("block_loop", {"seconds": 600})
    beside = shop.record(1, seconds=600)
    if program == "uvloop":
        worker = shop.worker("--drain", "600", "--lease", "5")
    else:
        (shop.folder / "own_program.py").write_text(
            "import asyncio, logging\nfrom support.worker_program import stay\nlogging.basicConfig()\n"
            "async def main():\n    async with stay:\n        await stay.worker(drain=600, lease=5).run()\n"
            "asyncio.run(main())\n"
        )
        worker = shop.program("own_program.py")
    shop.written("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert eventually(lambda: "SIGTERM takes effect once block_loop" in shop.log()), shop.log()
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert shop.ended(worker, 20) == 0, shop.log()
    for job in (blocking, *beside):
        info = shop.stay.jobs.get(job.id)
        assert (info.state, info.attempt) == ("pending", 0)


def test_a_job_that_blocks_the_loop_is_returned_after_the_drain_timeout(shop):
    blocking = shop.enqueue("block_loop", {"seconds": 600})
    worker = shop.worker("--drain", "1.5", "--grace", "1")
    shop.written("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert shop.ended(worker, 20) == 0, shop.log()
    info = shop.stay.jobs.get(blocking.id)
    assert (info.state, info.attempt) == ("pending", 0)
    assert not shop.lines("end")


def test_a_handler_that_blocks_the_loop_briefly_may_finish_during_the_drain(shop):
    blocking = shop.enqueue("block_loop", {"seconds": 2})
    worker = shop.worker()
    shop.written("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert shop.ended(worker, 20) == 0, shop.log()
    assert shop.stay.jobs.get(blocking.id).state == "completed"


def test_a_job_that_kills_its_worker_becomes_a_dead_letter_and_the_queue_continues(shop):
    poison = shop.enqueue("kill_worker", retries=2)
    handles = shop.record(30, seconds=0.01)
    shop.worker("--processes", "2", "--lease", "1", "--concurrency", "4")
    job = shop.reaches(poison.id, "failed", within=60)
    assert len(shop.lines("kill")) == 3
    assert job.attempt == 3
    for handle in handles:
        shop.reaches(handle.id, "completed")
    done = {words[1] for words in shop.lines("end")}
    assert len(done) == 30


def test_a_paused_worker_loses_its_jobs_and_detects_it(shop):
    handle = shop.enqueue("record", {"n": 0, "seconds": 3, "first": 600})
    sleeper = shop.worker("--lease", "1", "--concurrency", "1")
    shop.written("start", 1)
    sleeper.send_signal(signal.SIGSTOP)
    shop.worker("--lease", "1", "--concurrency", "1")
    starts = shop.written("start", 2)
    assert [words[2] for words in starts] == ["1", "2"]
    sleeper.send_signal(signal.SIGCONT)
    (cancelled,) = shop.written("cancelled", 1)
    assert cancelled[3] == starts[0][3]
    shop.reaches(handle.id, "completed")
    (ended,) = shop.lines("end")
    assert ended[3] == starts[1][3]


@pytest.mark.timed
def test_a_killed_workers_job_restarts_within_its_lease_and_a_second(shop):
    shop.record(1, seconds=600)
    victim = shop.worker("--lease", "2", "--concurrency", "1")
    shop.written("start", 1)
    shop.worker("--lease", "2", "--concurrency", "1", "--drain", "0", "--grace", "0.1")
    assert eventually(lambda: len(shop.stay.jobs.workers()) == 2)
    os.kill(victim.pid, signal.SIGKILL)
    killed = time.monotonic()
    shop.written("start", 2)
    assert time.monotonic() - killed < 2 + 1.5  # and a busy machine
