"""Time gives back what was taken; whoever waits gets the next place, in order."""

from __future__ import annotations

import asyncio
import itertools

from holdfast.errors import Decision
from holdfast.testing.conformance.actor import refused
from holdfast.testing.conformance.driver import Stage, claim
from holdfast.testing.conformance.limit.scenes import ALGORITHMS, LONG, ask
from holdfast.testing.waiting import soon

#: A clock's tick, and what two clocks of one machine may differ while a claim plays.
TICK = 0.002


class Times:
    """retry_after, reset_after, wait."""

    @claim
    async def test_after_retry_after_the_hit_is_admitted(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            mine, theirs = (ask(actor, "2/250ms", algorithm=algorithm) for actor in (one, other))
            while (await mine.hit("k")).allowed:
                pass
            denial = await theirs.hit("k")
            if denial.allowed:  # a window ended between the two
                denial = await theirs.hit("k", 2)
            assert 0 < denial.retry_after <= 0.5
            await asyncio.sleep(denial.retry_after + TICK)
            assert (await mine.peek("k", denial.count and 1)).allowed, algorithm
            assert (await mine.hit("k")).allowed, algorithm

    @claim
    async def test_after_reset_after_nothing_is_taken(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            taken = await ask(one, "5/200ms", algorithm=algorithm).hit("k", 5)
            assert 0 < taken.reset_after <= 0.4
            await asyncio.sleep(taken.reset_after + TICK)
            seen = await ask(other, "5/200ms", algorithm=algorithm).peek("k", 5)
            assert (seen.allowed, seen.count, seen.remaining) == (True, 0, 5), algorithm

    @claim
    async def test_those_who_wait_get_places_one_after_the_other(self, stage: Stage) -> None:
        actors = await stage.actors(4)
        for algorithm in ALGORITHMS:
            views = [ask(actor, "1/80ms", algorithm=algorithm) for actor in actors]
            told = await asyncio.gather(*[view.wait("k", timeout=10) for view in views])
            moments = sorted(decision.at for decision in told)
            assert all(decision.allowed for decision in told)
            gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
            if algorithm == "fixed":  # one in each window, wherever in it
                # In µs: half a millisecond before a window's end must not be rounded into the next one.
                assert len({round(moment * 1e6) // 80_000 for moment in moments}) == len(moments), moments
            else:  # all but the exact one count in whole milliseconds
                assert min(gaps) >= (0.08 if algorithm == "sliding" else 0.079) - 1e-6, (algorithm, gaps)

    @claim
    async def test_nobody_gets_ahead_of_those_who_wait(self, stage: Stage) -> None:
        first, second, third = (ask(actor, "1/1500ms") for actor in await stage.actors(3))
        for view in (second, third):
            await view.peek("k")  # whoever connects first needs a while
        await first.hit("k")
        waiting = asyncio.create_task(second.wait("k", timeout=10))

        async def reserved() -> bool:
            return (await third.peek("k")).retry_after > 1.5

        assert await soon(reserved, within=1.4)
        assert not (await third.hit("k")).allowed
        late = await third.wait("k", timeout=10)
        assert (await waiting).at <= late.at - 1.5 + 1e-6

    @claim
    async def test_a_wait_that_would_take_too_long_is_refused_at_once(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api = ask(one, f"1/{LONG}", algorithm=algorithm)
            assert (await api.wait("k", timeout=0)).allowed
            async with asyncio.timeout(20):
                failure = await refused(api.wait("k", timeout=30), "RateLimited")
            assert "try again" in failure.message
            assert (await ask(other, f"1/{LONG}", algorithm=algorithm).peek("k")).count == 1, algorithm

    @claim
    async def test_a_repeated_denial_is_answered_from_memory_and_in_time(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        api = ask(one, f"1/{LONG}")
        await api.peek("k")  # whoever connects first needs a while
        await ask(other, f"1/{LONG}").hit("k")
        denial, *again = [await api.hit("k") for _ in range(5)]
        assert (denial.allowed, denial.by) == (False, "engine")
        assert [(d.allowed, d.by) for d in again] == [(False, "memory")] * 4
        assert again[-1].retry_after <= again[0].retry_after

        brief = ask(one, "1/300ms")
        first = await ask(other, "1/300ms").hit("k")
        admitted: list[Decision] = []

        async def once_more() -> bool:
            decision = await brief.hit("k")
            if decision.allowed:
                admitted.append(decision)
            return decision.allowed

        assert await soon(once_more)
        assert admitted[0].at >= first.at + 0.3 - 1e-6
