"""Termination of commands: timeouts, stops, cancellations, and cleanup of processes and files."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from command_run import CommandRun, run_failing, wait_exited

from backstay.testing.waiting import WITHIN, soon
from backstay.workflow.command.execution import Stopped
from backstay.workflow.command.spec import Step
from support.event_loop import on_a_worker_loop


@on_a_worker_loop
async def test_a_step_past_its_timeout_is_stopped_with_its_children():
    error, ran = await run_failing(
        Step(run="sleep 300 & echo $!; wait", timeout=0.3), Step(run="true", condition="always()")
    )
    assert "it exceeded its timeout of 0.3 s" in str(error)
    assert await wait_exited(int(ran.text("stdout")))


@on_a_worker_loop
async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace():
    ran = CommandRun("trap '' TERM; echo $$; while true; do sleep 0.1; done", grace=0.3)
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    began = time.monotonic()
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert 0.25 < time.monotonic() - began < WITHIN
    assert await wait_exited(int(ran.text("stdout")))


@on_a_worker_loop
async def test_a_command_can_clean_up_when_it_is_stopped():
    ran = CommandRun("trap 'echo tidied; exit 0' TERM; echo ready; while true; do sleep 0.05; done")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert ran.text("stdout") == "ready\ntidied\n"


@on_a_worker_loop
async def test_a_process_suspended_by_sigstop_is_ended():
    ran = CommandRun("echo $$; kill -STOP $$")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert await wait_exited(int(ran.text("stdout")))


@on_a_worker_loop
async def test_a_cancelled_execution_leaves_no_process_or_directory_behind():
    ran = CommandRun("sleep 300 & echo $$ $!; wait")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in ran.text("stdout").split():
        assert await wait_exited(int(pid))
    assert not ran.execution._directory.exists()


@on_a_worker_loop
async def test_a_command_that_kills_its_own_group_has_failed_and_the_next_step_runs():
    error, ran = await run_failing("kill -KILL 0", Step(run="echo after", condition="always()"))
    assert error.signal == "SIGKILL"
    assert ran.text("stdout") == "after\n"


@on_a_worker_loop
async def test_nothing_is_left_in_the_temporary_directory():
    ran = await CommandRun('mkdir "$BACKSTAY_TEMP/x"; touch "$BACKSTAY_TEMP/x/y"; echo "$BACKSTAY_TEMP"').run()
    assert not os.path.exists(ran.text().strip())  # noqa: PTH110, ASYNC240 - a single check
