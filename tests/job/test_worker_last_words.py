"""What handlers leave behind that no store takes; and handlers that never end, whatever they are told."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest
from on_a_loop import on_a_loop
from workshop import KINDS, reaches, shop, url_of, working

from backstay import current_job
from backstay.testing.waiting import eventually

HALF = "half a character: \ud800"


@pytest.fixture(params=KINDS)
def url(request):
    return url_of(request.param, request)


@on_a_loop
async def test_an_output_that_is_no_text_fails_its_job_by_name_and_frees_the_slot(url, namespace):
    stay = shop(url, namespace)

    @stay.job()
    async def counts() -> None:
        current_job().outputs["rows"] = 5

    @stay.job()
    async def halves() -> None:
        current_job().outputs["text"] = HALF

    async with stay, working(stay, concurrency=1) as worker:
        for job, said in ((counts, "outputs['rows'] is int"), (halves, "outputs['text'] is no text")):
            found = await reaches(stay, await job.enqueue(), "failed")
            assert (found.error.kind, found.attempt) == ("BadResult", 1)  # the next attempt would say the same
            assert said in found.error.message
        assert worker.running == 0


@on_a_loop
async def test_half_a_character_is_kept_as_its_escape_in_logs_and_errors(url, namespace):
    stay = shop(url, namespace)

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
async def test_a_handler_that_blocks_the_loop_beyond_its_time_loses_its_job(url, namespace):
    """Its lease is not renewed any more, so somebody else ends it; else it would run for ever."""
    stay = shop(url, namespace)

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
    stay = shop(url, namespace)

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
