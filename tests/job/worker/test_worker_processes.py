"""Handlers in child processes, whose crashes do not affect the worker."""

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
from support.app import fetch_job, wait_for_state, working
from support.event_loop import on_a_loop

HERE = Path(__file__).parent


@pytest.fixture
def jobs(monkeypatch):
    """The module with the jobs, imported again for each test: a Backstay belongs to one loop."""
    monkeypatch.syspath_prepend(str(HERE))
    sys.modules.pop("process_jobs", None)
    import process_jobs

    yield process_jobs
    sys.modules.pop("process_jobs", None)


@on_a_loop
async def test_a_process_job_runs_in_another_process_that_is_reused(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        first = await wait_for_state(stay, await jobs.where.enqueue(1), "completed", within=30)
        second = await wait_for_state(stay, await jobs.where.enqueue(2), "completed", within=30)
    (pid, one), (same, two) = (jobs.where.decode_result(job.result) for job in (first, second))
    assert (one, two) == (1, 2)
    assert pid == same != os.getpid()


@on_a_loop
async def test_a_handler_that_kills_its_process_fails_with_a_clear_cause_and_the_next_one_runs(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        dead = await wait_for_state(stay, await jobs.die.enqueue(), "failed", within=30)
        exited = await wait_for_state(stay, await jobs.exit_process.enqueue(), "failed", within=30)
        await wait_for_state(stay, await jobs.where.enqueue(1), "completed", within=30)
    assert dead.error.kind == "ProcessDied"
    assert "SIGKILL" in dead.error.message
    assert exited.error.kind == "SystemExit"


@on_a_loop
async def test_orphaned_grandchildren_do_not_keep_the_job_of_a_dead_process(jobs, tmp_path):
    pid_file = tmp_path / "pid"
    async with jobs.stay as stay, working(stay, concurrency=1):
        dead = await wait_for_state(stay, await jobs.die_before_its_child.enqueue(str(pid_file)), "failed", within=30)
        os.kill(int(pid_file.read_text()), signal.SIGKILL)  # raises unless the grandchild is still running
    assert dead.error.kind == "ProcessDied"


@on_a_loop
async def test_a_process_past_its_timeout_is_killed(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1, grace=0.2):
        late = await wait_for_state(stay, await jobs.endless.enqueue(), "failed", within=30)
        await wait_for_state(stay, await jobs.where.enqueue(1), "completed", within=30)
    assert late.error.kind == "JobTimeout"
    assert "killed" in late.error.message


@on_a_loop
async def test_logs_of_a_process_reach_the_store_and_a_cancellation_reaches_the_process(jobs):
    async with jobs.stay as stay:
        core = stay._core
        handle = await jobs.wait_for_cancel.enqueue()

        async def is_running():
            return (await fetch_job(stay, handle)).progress == 0.25

        async with working(stay, concurrency=1):
            assert await soon(is_running, within=30)
            await core.port.apply(core.services.get(JOB_STORE).cancel(handle.id, "enough"))
            await wait_for_state(stay, handle, "cancelled")
        assert [line.data for line in await core.port.apply(core.services.get(JOB_STORE).read_log(handle.id))] == [
            "waiting"
        ]


@on_a_loop
async def test_a_process_returns_outcomes_outputs_and_chains(jobs):
    async with jobs.stay as stay:
        core = stay._core
        async with working(stay, concurrency=1):
            handle = await jobs.snooze_once.enqueue()
            job = await wait_for_state(stay, handle, "completed", within=30)
            await wait_for_state(stay, job.followed_by, "completed")
        assert job.snoozes == 1
        assert await core.port.apply(core.services.get(JOB_STORE).get_outputs(handle.id)) == {"who": handle.id}


@on_a_loop
async def test_a_message_for_a_finished_handler_does_not_reach_the_next_in_its_process(jobs, tmp_path):
    class WaitAfterCall(Middleware):
        async def attempt(self, ctx, call_next):
            value = await call_next()
            if ctx.type == "where":
                ended.set()
                await asyncio.Event().wait()
            return value

    ended = asyncio.Event()
    jobs.stay.use(WaitAfterCall())
    async with jobs.stay as stay, working(stay, concurrency=2):
        first = await jobs.where.enqueue(1)
        await asyncio.wait_for(ended.wait(), 30)
        second = await jobs.wait_for_file.enqueue(str(tmp_path / "now"))

        async def is_running():
            return (await fetch_job(stay, second)).progress == 0.25

        assert await soon(is_running, within=30)
        await first.cancel()
        await wait_for_state(stay, first, "cancelled")
        (tmp_path / "now").touch()
        await wait_for_state(stay, second, "completed")


@on_a_loop
async def test_a_process_that_died_idle_does_not_fail_the_next_job(jobs):
    async with jobs.stay as stay, working(stay, concurrency=1):
        first = await wait_for_state(stay, await jobs.where.enqueue(1), "completed", within=30)
        pid, _ = jobs.where.decode_result(first.result)
        os.kill(pid, signal.SIGKILL)

        async def is_gone():
            try:
                os.kill(pid, 0)
            except ProcessLookupError:
                return True
            return False

        assert await soon(is_gone)
        second = await wait_for_state(stay, await jobs.where.options(retries=0).enqueue(2), "completed", within=30)
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


def run_script(folder, **parts):
    """Run a script that starts a worker, and return the lines of its output."""
    (folder / "script.py").write_text(SCRIPT.format(**parts))
    (folder / "jobs.py").write_text(JOBS)
    done = subprocess.run(
        [sys.executable, folder / "script.py"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_the_jobs_of_a_main_script_are_found(tmp_path):
    assert run_script(tmp_path, imports="", jobs=JOBS, run=GUARDED) == ["completed None"]


def test_the_main_script_is_not_imported_for_jobs_of_other_modules(tmp_path):
    """Otherwise each child process would import the script, start a worker and with it another child process."""
    assert run_script(tmp_path, imports="\nfrom jobs import stay, pid", jobs="", run=BARE) == ["completed None"]


def test_a_script_that_would_start_workers_recursively_fails_its_job_with_the_cause(tmp_path):
    (line,) = run_script(tmp_path, imports="", jobs=JOBS, run=BARE)
    assert line.startswith("failed")
    assert "if __name__ ==" in line
