"""Handlers that produce values no store accepts, and handlers that ignore their cancellation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from backstay import current_job
from backstay.testing.waiting import eventually
from support.app import open_app, wait_for_state, working
from support.event_loop import on_a_loop

LONE_SURROGATE = "half a character: \ud800"


@on_a_loop
async def test_a_non_string_output_fails_its_job_and_frees_the_slot(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    async def counts() -> None:
        current_job().outputs["rows"] = 5

    @stay.job()
    async def halves() -> None:
        current_job().outputs["text"] = LONE_SURROGATE

    async with stay, working(stay, concurrency=1) as worker:
        for job, message in ((counts, "outputs['rows'] is int"), (halves, "outputs['text'] cannot be encoded")):
            found = await wait_for_state(stay, await job.enqueue(), "failed")
            assert (found.error.kind, found.attempt) == ("BadResult", 1)  # a retry would fail in the same way
            assert message in found.error.message
        assert worker.running == 0


@on_a_loop
async def test_a_lone_surrogate_is_stored_as_its_escape_in_logs_and_errors(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=0)
    async def log_line(*, fails: bool) -> None:
        current_job().log(LONE_SURROGATE, stream=LONE_SURROGATE)
        if fails:
            raise ValueError(LONE_SURROGATE)

    async with stay, working(stay, concurrency=1):
        for fails, state in ((False, "completed"), (True, "failed")):
            handle = await log_line.enqueue(fails=fails)
            found = await wait_for_state(stay, handle, state)
            (line,) = await handle.logs()
            assert line.data == line.stream == LONE_SURROGATE.replace("\ud800", "\\ud800")
        assert (found.error.kind, found.error.message) == ("ValueError", line.data)


@on_a_loop
async def test_a_handler_that_blocks_the_loop_past_its_timeout_loses_its_job(url, namespace):
    """Its lease is no longer renewed, so the reaper ends the job; otherwise it would run forever."""
    stay = open_app(url, namespace)

    @stay.job(retries=0, timeout=0.2)
    async def blocks() -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - the handler blocks the loop on purpose

    async with stay:
        handle = await blocks.enqueue()
        async with working(stay, lease=0.5, grace=0.1, blocked_after=0) as worker:
            found = await wait_for_state(stay, handle, "failed")
            assert found.error.kind == "LeaseExpired"
        assert worker.counts["completed"] == 0


@pytest.mark.timed
@on_a_loop
async def test_a_lease_is_kept_while_a_handler_blocks_the_loop_within_its_timeout(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=0, timeout=30)
    async def blocks() -> int:
        time.sleep(1.5)  # noqa: ASYNC251 - the handler blocks the loop on purpose
        return current_job().attempt

    async with stay:
        handle = await blocks.enqueue()
        async with working(stay, lease=0.5, grace=0.1, blocked_after=0):
            await wait_for_state(stay, handle, "completed")
            assert await handle.result() == 1


IGNORES_CANCELLATION = """
import asyncio, os, sys
from backstay import Backstay

stay = Backstay(sys.argv[1])

@stay.job(retries=0, timeout=0.1)
async def endless() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("ignored", flush=True)

async def main() -> None:
    async with stay:
        await endless.enqueue()
        await stay.worker(grace=0.1, drain=0.1).run()

asyncio.run(main())
print("ended", flush=True)
"""


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process_alive(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", IGNORES_CANCELLATION, f"sqlite:///{tmp_path / 'jobs.db'}"],
        env=os.environ | {"PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ignored\n"
            process.send_signal(signal.SIGTERM)
            eventually(lambda: process.poll() is not None, 15)
            assert process.poll() == 0
            assert process.stdout.read().endswith("ended\n")
            assert "never" not in process.stderr.read()
        finally:
            process.kill()
