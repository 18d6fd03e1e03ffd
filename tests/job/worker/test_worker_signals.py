"""Worker processes that are drained, stopped, killed and paused. A deployment uses up no attempt."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter

import pytest

from backstay.testing.waiting import eventually
from support.app import UNSHARDED, url_of
from support.worker_pool import WorkerPool

pytestmark = pytest.mark.slow

SHARED = [kind for kind in UNSHARDED if kind != "memory"]


@pytest.fixture(params=SHARED)
def pool(request, tmp_path, namespace):
    pool = WorkerPool(url_of(request.param, request), namespace, tmp_path)
    yield pool
    pool.close()


def test_a_drain_under_load_uses_up_no_attempt_and_runs_nothing_twice(pool):
    handles = pool.enqueue_records(600, seconds=0.02)
    first = pool.worker("--concurrency", "10")
    pool.wait_for_lines("end", 50)
    second = pool.worker("--concurrency", "10")
    first.send_signal(signal.SIGTERM)
    assert pool.wait_exit(first) == 0
    pool.wait_for_lines("end", 300)
    second.send_signal(signal.SIGTERM)
    assert pool.wait_exit(second) == 0
    stopped = len(pool.lines("end"))
    assert stopped < 600
    assert len(pool.lines("start")) == stopped  # every job that was started has ended
    assert pool.wait_exit(pool.worker("--burst", "--concurrency", "50"), 60) == 0
    starts = Counter(words[1] for words in pool.lines("start"))
    assert starts == {str(n): 1 for n in range(600)}
    assert {words[2] for words in pool.lines("start")} == {"1"}
    assert {pool.stay.jobs.get(handle.id).state for handle in handles[::50]} == {"completed"}


def test_a_job_past_the_drain_timeout_is_returned_without_using_up_an_attempt(pool):
    (handle,) = pool.enqueue_records(1, seconds=600)
    worker = pool.worker("--drain", "0.2", "--grace", "1")
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker) == 0
    assert len(pool.lines("cancelled")) == 1
    job = pool.stay.jobs.get(handle.id)
    assert (job.state, job.attempt) == ("pending", 0)
    again = pool.worker()
    starts = pool.wait_for_lines("start", 2)
    assert [words[2] for words in starts] == ["1", "1"]
    assert int(starts[1][3]) > int(starts[0][3])
    again.send_signal(signal.SIGTERM)
    again.send_signal(signal.SIGTERM)


@pytest.mark.parametrize("program", ["command", "asyncio.run"])
def test_ctrl_c_drains_as_well(pool, program):
    (handle,) = pool.enqueue_records(1, seconds=1.5)
    if program == "command":
        worker = pool.worker()
    else:
        (pool.folder / "own_program.py").write_text(
            "import asyncio\nfrom support.worker_program import stay\nasync def main():\n    async with stay:\n"
            "        await stay.worker().run()\nasyncio.run(main())\n"
        )
        worker = pool.program("own_program.py")
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGINT)
    assert pool.wait_exit(worker) == 0, pool.log()
    assert [words[0] for words in pool.lines()] == ["start", "end"]
    assert pool.stay.jobs.get(handle.id).state == "completed"


def test_a_second_signal_stops_at_once(pool):
    (handle,) = pool.enqueue_records(1, seconds=600)
    worker = pool.worker("--drain", "600")
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert eventually(lambda: "draining" in pool.log())
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker, 15) == 0
    assert pool.stay.jobs.get(handle.id).state == "pending"


@pytest.mark.parametrize("program", ["uvloop", "asyncio"])
def test_a_second_signal_stops_a_handler_that_blocks_the_loop(pool, program):
    """A blocked loop receives no signal; the process must exit without waiting for the handler."""
    blocking = pool.enqueue("block_loop", {"seconds": 600})
    others = pool.enqueue_records(1, seconds=600)
    if program == "uvloop":
        worker = pool.worker("--drain", "600", "--lease", "5")
    else:
        (pool.folder / "own_program.py").write_text(
            "import asyncio, logging\nfrom support.worker_program import stay\nlogging.basicConfig()\n"
            "async def main():\n    async with stay:\n        await stay.worker(drain=600, lease=5).run()\n"
            "asyncio.run(main())\n"
        )
        worker = pool.program("own_program.py")
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert eventually(lambda: "SIGTERM takes effect once block_loop" in pool.log()), pool.log()
    assert worker.poll() is None
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker, 20) == 0, pool.log()
    for job in (blocking, *others):
        info = pool.stay.jobs.get(job.id)
        assert (info.state, info.attempt) == ("pending", 0)


def test_a_job_that_blocks_the_loop_is_returned_after_the_drain_timeout(pool):
    blocking = pool.enqueue("block_loop", {"seconds": 600})
    worker = pool.worker("--drain", "1.5", "--grace", "1")
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker, 20) == 0, pool.log()
    info = pool.stay.jobs.get(blocking.id)
    assert (info.state, info.attempt) == ("pending", 0)
    assert not pool.lines("end")


def test_a_handler_that_blocks_the_loop_briefly_may_finish_during_the_drain(pool):
    blocking = pool.enqueue("block_loop", {"seconds": 2})
    worker = pool.worker()
    pool.wait_for_lines("start", 1)
    worker.send_signal(signal.SIGTERM)
    assert pool.wait_exit(worker, 20) == 0, pool.log()
    assert pool.stay.jobs.get(blocking.id).state == "completed"


def test_a_job_that_kills_its_worker_becomes_a_dead_letter_and_the_queue_continues(pool):
    killer = pool.enqueue("kill_worker", retries=2)
    handles = pool.enqueue_records(30, seconds=0.01)
    pool.worker("--processes", "2", "--lease", "1", "--concurrency", "4")
    job = pool.wait_for_state(killer.id, "failed", within=60)
    assert len(pool.lines("kill")) == 3
    assert job.attempt == 3
    for handle in handles:
        pool.wait_for_state(handle.id, "completed")
    done = {words[1] for words in pool.lines("end")}
    assert len(done) == 30


def test_a_paused_worker_loses_its_jobs_and_detects_it(pool):
    handle = pool.enqueue("record", {"n": 0, "seconds": 3, "first": 600})
    paused = pool.worker("--lease", "1", "--concurrency", "1")
    pool.wait_for_lines("start", 1)
    paused.send_signal(signal.SIGSTOP)
    pool.worker("--lease", "1", "--concurrency", "1")
    starts = pool.wait_for_lines("start", 2)
    assert [words[2] for words in starts] == ["1", "2"]
    paused.send_signal(signal.SIGCONT)
    (cancelled,) = pool.wait_for_lines("cancelled", 1)
    assert cancelled[3] == starts[0][3]
    pool.wait_for_state(handle.id, "completed")
    (ended,) = pool.lines("end")
    assert ended[3] == starts[1][3]


@pytest.mark.timed
def test_a_killed_workers_job_restarts_within_its_lease_and_a_second(pool):
    pool.enqueue_records(1, seconds=600)
    victim = pool.worker("--lease", "2", "--concurrency", "1")
    pool.wait_for_lines("start", 1)
    pool.worker("--lease", "2", "--concurrency", "1", "--drain", "0", "--grace", "0.1")
    assert eventually(lambda: len(pool.stay.jobs.workers()) == 2)
    os.kill(victim.pid, signal.SIGKILL)
    killed = time.monotonic()
    pool.wait_for_lines("start", 2)
    assert time.monotonic() - killed < 2 + 1.5  # the lease, and a margin for a busy machine
