"""Somebody starts a run of thousands of jobs and is cancelled meanwhile: the whole run is there, or nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from holdfast import Holdfast
from holdfast.job.flows import send
from holdfast.job.ids import Ids
from holdfast.job.model import NewJob
from holdfast.job.runs import NewRun
from holdfast.workflow import flows

pytestmark = [pytest.mark.race, pytest.mark.timeout(300)]

WIDTH = 3000
#: Moments at which it is cut short, as shares of what a start takes.
MOMENTS = (0.0, 0.1, 0.4, 0.8, 1.0)


def fan(ids, run):
    first, last = ids.new(0), ids.new(0)
    middle = [NewJob(id=ids.new(0), type="middle", run=run, after=(first,)) for _ in range(WIDTH - 2)]
    end = NewJob(id=last, type="last", run=run, after=tuple(job.id for job in middle))
    return (NewJob(id=first, type="first", run=run), *middle, end)


async def found(hf, run):
    """How many jobs of it there are, whether there is the run itself, and how many jobs that counts."""
    seen = await send(hf._core, hf._core.store.get_run(run))
    jobs = await flows.rows(hf._core, run)
    return len(jobs), seen is not None, 0 if seen is None else sum(seen.counts.values())


def test_a_start_that_is_cut_short_leaves_a_whole_run_or_nothing(shared_url, namespace):
    async def main():
        ids = Ids()
        cut = 0
        async with Holdfast(shared_url, namespace=namespace) as hf:
            whole = ids.new(0)
            new = NewRun(id=whole, workflow="w", jobs=fan(ids, whole))
            began = time.monotonic()
            await flows.start(hf._core, new)
            takes = time.monotonic() - began
            assert await found(hf, whole) == (WIDTH, True, WIDTH)
        for moment in MOMENTS:
            run = ids.new(0)
            new = NewRun(id=run, workflow="w", jobs=fan(ids, run))
            async with Holdfast(shared_url, namespace=namespace) as hf:
                await hf.open()
                starting = asyncio.create_task(flows.start(hf._core, new))
                await asyncio.sleep(moment * takes)
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
                cut += starting.cancelled()
            # Closing waits for whatever was on its way: nothing comes later.
            async with Holdfast(shared_url, namespace=namespace) as hf:
                there = await found(hf, run)
                assert there in ((0, False, 0), (WIDTH, True, WIDTH)), f"at {moment}: {there}"
                # Sent once more, as whoever was cut short may: one run, whole.
                await flows.start(hf._core, new)
                assert await found(hf, run) == (WIDTH, True, WIDTH)
                assert (await flows.cancel(hf._core, run, "enough")).counts == {"cancelled": WIDTH}
        assert cut, "never cut short"

    asyncio.run(main())
