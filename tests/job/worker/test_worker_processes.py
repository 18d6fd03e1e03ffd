"""Handlers in child processes: theirs are the crashes, not the worker's."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from backstay import Middleware
from backstay.job.store import JOB_STORE
from backstay.testing.waiting import soon
from support.app import fetch_job, reaches, working
from support.event_loop import on_a_loop

HERE = Path(__file__).parent


@pytest.fixture
def jobs(monkeypatch):
    """The module, anew for each test: a Backstay belongs to one loop."""
    monkeypatch.syspath_prepend(str(HERE))
    sys.modules.pop("process_jobs", None)
    import process_jobs

    yield process_jobs
    sys.modules.pop("process_jobs", None)


@on_a_loop
async def test_a_process_job_runs_in_another_process_that_is_reused(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        first = await reaches(stay, await jobs.where.enqueue(1), "completed", within=30)
        second = await reaches(stay, await jobs.where.enqueue(2), "completed", within=30)
    (pid, one), (same, two) = (jobs.where.decode_result(job.result) for job in (first, second))
    assert (one, two) == (1, 2)
    assert pid == same != os.getpid()


@on_a_loop
async def test_a_handler_that_kills_its_process_fails_with_a_clear_cause_and_the_next_one_runs(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        dead = await reaches(stay, await jobs.die.enqueue(), "failed", within=30)
        left = await reaches(stay, await jobs.leave.enqueue(), "failed", within=30)
        await reaches(stay, await jobs.where.enqueue(1), "completed", within=30)
    assert dead.error.kind == "ProcessDied"
    assert "SIGKILL" in dead.error.message
    assert left.error.kind == "SystemExit"


@on_a_loop
async def test_orphaned_grandchildren_do_not_keep_the_job_of_a_dead_process(jobs, tmp_path):
    left = tmp_path / "pid"
    async with jobs.stay as stay, working(stay, concurrency=1):
        dead = await reaches(stay, await jobs.die_before_its_child.enqueue(str(left)), "failed", within=30)
        os.kill(int(left.read_text()), signal.SIGKILL)  # it was there all the time
    assert dead.error.kind == "ProcessDied"


@on_a_loop
async def test_a_process_past_its_timeout_is_killed(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1, grace=0.2):
        late = await reaches(stay, await jobs.deaf.enqueue(), "failed", within=30)
        await reaches(stay, await jobs.where.enqueue(1), "completed", within=30)
    assert late.error.kind == "JobTimeout"
    assert "killed" in late.error.message


@on_a_loop
async def test_logs_of_a_process_reach_the_store_and_a_cancellation_reaches_the_process(jobs):
    async with jobs.stay as stay:
        core = stay._core
        handle = await jobs.patient.enqueue()

        async def is_under_way():
            return (await fetch_job(stay, handle)).progress == 0.25

        async with working(stay, concurrency=1):
            assert await soon(is_under_way, within=30)
            await core.port.apply(core.services.get(JOB_STORE).cancel(handle.id, "enough"))
            await reaches(stay, handle, "cancelled")
        assert [line.data for line in await core.port.apply(core.services.get(JOB_STORE).read_log(handle.id))] == [
            "waiting"
        ]


@on_a_loop
async def test_a_process_returns_outcomes_outputs_and_chains(jobs):
    async with jobs.stay as stay:
        core = stay._core
        async with working(stay, concurrency=1):
            handle = await jobs.wavering.enqueue()
            job = await reaches(stay, handle, "completed", within=30)
            await reaches(stay, job.followed_by, "completed")
        assert job.snoozes == 1
        assert await core.port.apply(core.services.get(JOB_STORE).get_outputs(handle.id)) == {"who": handle.id}


@on_a_loop
async def test_a_message_for_a_finished_handler_does_not_reach_the_next_in_its_process(jobs, tmp_path):
    class Lingering(Middleware):
        async def attempt(self, ctx, call_next):
            value = await call_next()
            if ctx.type == "where":
                ended.set()
                await asyncio.Event().wait()
            return value

    ended = asyncio.Event()
    jobs.stay.use(Lingering())
    async with jobs.stay as stay, working(stay, concurrency=2):
        first = await jobs.where.enqueue(1)
        await asyncio.wait_for(ended.wait(), 30)
        second = await jobs.until.enqueue(str(tmp_path / "now"))

        async def is_under_way():
            return (await fetch_job(stay, second)).progress == 0.25

        assert await soon(is_under_way, within=30)
        await first.cancel()
        await reaches(stay, first, "cancelled")
        (tmp_path / "now").touch()
        await reaches(stay, second, "completed")


@on_a_loop
async def test_a_process_that_died_idle_does_not_fail_the_next_job(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        first = await reaches(stay, await jobs.where.enqueue(1), "completed", within=30)
        pid, _ = jobs.where.decode_result(first.result)
        os.kill(pid, signal.SIGKILL)

        async def is_gone():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return False

        assert await soon(is_gone)
        second = await reaches(stay, await jobs.where.options(retries=0).enqueue(2), "completed", within=30)
    assert jobs.where.decode_result(second.result)[0] != pid


SCRIPT = """
import asyncio, os
from backstay import Backstay{imports}
{jobs}
async def main():
    async with stay:
        handle = await pid.enqueue()
        await stay.worker().run(burst=True)
        print((await handle.info()).state, (await handle.info()).error, flush=True)

{run}
"""
JOBS = """
from backstay import Backstay
import os
stay = Backstay("memory://")

@stay.job(pool="process", retries=0)
def pid() -> int:
    return os.getpid()
"""
GUARDED, BARE = 'if __name__ == "__main__": asyncio.run(main())', "asyncio.run(main())"


def ran(folder, **parts):
    (folder / "script.py").write_text(SCRIPT.format(**parts))
    (folder / "shop.py").write_text(JOBS)
    done = subprocess.run(
        [sys.executable, folder / "script.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_jobs_of_a_main_script_are_found(tmp_path):
    assert ran(tmp_path, imports="", jobs=JOBS, run=GUARDED) == ["completed None"]


def test_the_main_script_is_not_imported_for_jobs_of_other_modules(tmp_path):
    """Each of its copies would start a worker, which would run the job in a process of its own, and so on."""
    assert ran(tmp_path, imports="\nfrom shop import stay, pid", jobs="", run=BARE) == ["completed None"]


def test_a_script_that_would_start_workers_recursively_fails_its_job_with_the_cause(tmp_path):
    (said,) = ran(tmp_path, imports="", jobs=JOBS, run=BARE)
    assert said.startswith("failed")
    assert "if __name__ ==" in said
