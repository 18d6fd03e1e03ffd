"""Somebody starts a run of thousands of jobs and is cancelled meanwhile: the whole run is there, or nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest

from backstay import Backstay
from backstay.job.flows import send
from backstay.job.ids import Ids
from backstay.job.model import NewJob
from backstay.job.run_model import NewRun
from backstay.workflow import flows

pytestmark = [pytest.mark.race, pytest.mark.timeout(300)]

WIDTH = 3000
#: Moments at which it is cut short, as shares of what a start takes.
MOMENTS = (0.0, 0.1, 0.4, 0.8, 1.0)


def fan(ids, run):
    first, last = ids.new(0), ids.new(0)
    middle = [NewJob(id=ids.new(0), type="middle", run=run, after=(first,)) for _ in range(WIDTH - 2)]
    end = NewJob(id=last, type="last", run=run, after=tuple(job.id for job in middle))
    return (NewJob(id=first, type="first", run=run), *middle, end)


async def found(stay, run):
    """How many jobs of it there are, whether there is the run itself, and how many jobs that counts."""
    seen = await send(stay._core, stay._core.store.get_run(run))
    jobs = await flows.rows(stay._core, run)
    return len(jobs), seen is not None, 0 if seen is None else sum(seen.counts.values())


def test_a_start_that_is_cut_short_leaves_a_whole_run_or_nothing(shared_url, namespace):
    async def main():
        ids = Ids()
        cut = 0
        async with Backstay(shared_url, namespace=namespace) as stay:
            whole = ids.new(0)
            new = NewRun(id=whole, workflow="w", jobs=fan(ids, whole))
            began = time.monotonic()
            await flows.start(stay._core, new)
            takes = time.monotonic() - began
            assert await found(stay, whole) == (WIDTH, True, WIDTH)
        for moment in MOMENTS:
            run = ids.new(0)
            new = NewRun(id=run, workflow="w", jobs=fan(ids, run))
            async with Backstay(shared_url, namespace=namespace) as stay:
                await stay.open()
                starting = asyncio.create_task(flows.start(stay._core, new))
                await asyncio.sleep(moment * takes)
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
                cut += starting.cancelled()
            # Closing waits for whatever was on its way: nothing comes later.
            async with Backstay(shared_url, namespace=namespace) as stay:
                there = await found(stay, run)
                assert there in ((0, False, 0), (WIDTH, True, WIDTH)), f"at {moment}: {there}"
                # Sent once more, as whoever was cut short may: one run, whole.
                await flows.start(stay._core, new)
                assert await found(stay, run) == (WIDTH, True, WIDTH)
                assert (await flows.cancel(stay._core, run, "enough")).counts == {"cancelled": WIDTH}
        assert cut, "never cut short"

    asyncio.run(main())
