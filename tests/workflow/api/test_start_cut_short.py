"""A start of a run with thousands of jobs that is cancelled midway stores the whole run or nothing."""

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
#: Moments of the cancellation, as fractions of the duration of a start.
MOMENTS = (0.0, 0.1, 0.4, 0.8, 1.0)


def fan_out_jobs(ids, run):
    first, last = ids.new(0), ids.new(0)
    middle = [NewJob(id=ids.new(0), type="middle", run=run, after=(first,)) for _ in range(WIDTH - 2)]
    end = NewJob(id=last, type="last", run=run, after=tuple(job.id for job in middle))
    return (NewJob(id=first, type="first", run=run), *middle, end)


async def count_stored(stay, run):
    """Return the number of stored jobs, whether the run itself is stored, and how many jobs it counts."""
    seen = await send(stay._core, stay.internals.job_store.get_run(run))
    jobs = await flows.list_job_rows(stay._core, run)
    return len(jobs), seen is not None, 0 if seen is None else sum(seen.counts.values())


def test_a_cancelled_start_leaves_a_whole_run_or_nothing(shared_url, namespace):
    async def main():
        ids = Ids()
        cut = 0
        async with Backstay(shared_url, namespace=namespace) as stay:
            whole = ids.new(0)
            new = NewRun(id=whole, workflow="w", jobs=fan_out_jobs(ids, whole))
            began = time.monotonic()
            await flows.start(stay._core, new)
            takes = time.monotonic() - began
            assert await count_stored(stay, whole) == (WIDTH, True, WIDTH)
        for moment in MOMENTS:
            run = ids.new(0)
            new = NewRun(id=run, workflow="w", jobs=fan_out_jobs(ids, run))
            async with Backstay(shared_url, namespace=namespace) as stay:
                await stay.open()
                starting = asyncio.create_task(flows.start(stay._core, new))
                await asyncio.sleep(moment * takes)
                starting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await starting
                cut += starting.cancelled()
            # Closing waits for operations in flight, so nothing is stored after it.
            async with Backstay(shared_url, namespace=namespace) as stay:
                stored = await count_stored(stay, run)
                assert stored in ((0, False, 0), (WIDTH, True, WIDTH)), f"at {moment}: {stored}"
                # A repeated start, as a cancelled caller may send it, gives one complete run.
                await flows.start(stay._core, new)
                assert await count_stored(stay, run) == (WIDTH, True, WIDTH)
                assert (await flows.cancel(stay._core, run, "enough")).counts == {"cancelled": WIDTH}
        assert cut, "no start was cancelled"

    asyncio.run(main())
