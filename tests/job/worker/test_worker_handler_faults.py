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
from support.app import KINDS, open_app, reaches, url_of, working
from support.event_loop import on_a_loop

HALF = "half a character: \ud800"


@pytest.fixture(params=KINDS)
def url(request):
    return url_of(request.param, request)


@on_a_loop
async def test_a_non_string_output_fails_its_job_and_frees_the_slot(url, namespace):
    stay = open_app(url, namespace)

    @stay.job()
    async def counts() -> None:
        current_job().outputs["rows"] = 5

    @stay.job()
    async def halves() -> None:
        current_job().outputs["text"] = HALF

    async with stay, working(stay, concurrency=1) as worker:
        for job, said in ((counts, "outputs['rows'] is int"), (halves, "outputs['text'] cannot be encoded")):
            found = await reaches(stay, await job.enqueue(), "failed")
            assert (found.error.kind, found.attempt) == ("BadResult", 1)  # the next attempt would say the same
            assert said in found.error.message
        assert worker.running == 0


@on_a_loop
async def test_a_lone_surrogate_is_stored_as_its_escape_in_logs_and_errors(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=0)
    async def says(*, fails: bool) -> None:
        current_job().log(HALF, stream=HALF)
        if fails:
            raise ValueError(HALF)

    async with stay, working(stay, concurrency=1):
        for fails, state in ((False, "completed"), (True, "failed")):
            handle = await says.enqueue(fails=fails)
            found = await reaches(stay, handle, state)
            (line,) = await handle.logs()
            assert line.data == line.stream == HALF.replace("\ud800", "\\ud800")
        assert (found.error.kind, found.error.message) == ("ValueError", line.data)


@on_a_loop
async def test_a_handler_that_blocks_the_loop_past_its_timeout_loses_its_job(url, namespace):
    """Its lease is no longer renewed, so the reaper ends the job; otherwise it would run forever."""
    stay = open_app(url, namespace)

    @stay.job(retries=0, timeout=0.2)
    async def blocks() -> None:
        time.sleep(2.5)  # noqa: ASYNC251 - this is the point

    async with stay:
        handle = await blocks.enqueue()
        async with working(stay, lease=0.5, grace=0.1, blocked_after=0) as worker:
            found = await reaches(stay, handle, "failed")
            assert found.error.kind == "LeaseExpired"
        assert worker.counts["completed"] == 0


@pytest.mark.timed
@on_a_loop
async def test_a_lease_is_kept_while_the_loop_is_blocked_within_the_time(url, namespace):
    stay = open_app(url, namespace)

    @stay.job(retries=0, timeout=30)
    async def blocks() -> int:
        time.sleep(1.5)  # noqa: ASYNC251 - this is the point
        return current_job().attempt

    async with stay:
        handle = await blocks.enqueue()
        async with working(stay, lease=0.5, grace=0.1, blocked_after=0):
            await reaches(stay, handle, "completed")
            assert await handle.result() == 1


DEAF = """
import asyncio, os, sys
from backstay import Backstay

stay = Backstay(sys.argv[1])

@stay.job(retries=0, timeout=0.1)
async def deaf() -> None:
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            print("deaf", flush=True)

async def main() -> None:
    async with stay:
        await deaf.enqueue()
        await stay.worker(grace=0.1, drain=0.1).run()

asyncio.run(main())
print("ended", flush=True)
"""


def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_process_alive(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", DEAF, f"sqlite:///{tmp_path / 'deaf.db'}"],
        env=os.environ | {"PYTHONWARNINGS": "error"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "deaf\n"
            process.send_signal(signal.SIGTERM)
            eventually(lambda: process.poll() is not None, 15)
            assert process.poll() == 0
            assert process.stdout.read().endswith("ended\n")
            assert "never" not in process.stderr.read()
        finally:
            process.kill()
