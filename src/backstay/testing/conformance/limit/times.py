"""Usage expires with time, and waiting calls are admitted in order of arrival."""

from __future__ import annotations

import asyncio
import itertools

from backstay.engine.base import steady
from backstay.errors import Decision
from backstay.limit.local_fallback import DENIAL_CACHE_SECONDS
from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.limit.cases import ALGORITHMS, LONG, ActorLimit, limit_for
from backstay.testing.waiting import WITHIN, soon

#: Tolerance in seconds: one clock tick, and the drift between two clocks of one machine during a test.
TICK = 0.002
#: How often a test is tried whose rate-limit window may end before all callers have arrived, on a busy machine.
TRIES = 5


class LimitTimesTests:
    """Tests of `retry_after`, `reset_after` and `wait`."""

    @driver_test
    async def test_after_retry_after_the_hit_is_admitted(self, stage: Stage) -> None:
        one, other = await stage.actors(2)

        async def admitted(algorithm: str) -> None:
            mine, theirs = (limit_for(actor, "2/2s", algorithm=algorithm) for actor in (one, other))
            await _hit_until_denied(mine, algorithm)
            denial = await _hit_until_denied(theirs, algorithm)
            assert 0 < denial.retry_after <= 4
            await asyncio.sleep(denial.retry_after + TICK)
            assert (await mine.peek(algorithm, denial.count and 1)).allowed, algorithm
            assert (await mine.hit(algorithm)).allowed, algorithm

        # The test of one algorithm takes seconds, so all algorithms are tested concurrently. The window cannot be
        # shorter than two seconds: even a busy machine must be able to use up the limit before the window ends.
        await asyncio.gather(*[admitted(algorithm) for algorithm in ALGORITHMS])

    @driver_test
    async def test_after_reset_after_nothing_is_taken(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            taken = await limit_for(one, "5/200ms", algorithm=algorithm).hit("k", 5)
            assert 0 < taken.reset_after <= 0.4
            await asyncio.sleep(taken.reset_after + TICK)
            seen = await limit_for(other, "5/200ms", algorithm=algorithm).peek("k", 5)
            assert (seen.allowed, seen.count, seen.remaining) == (True, 0, 5), algorithm

    @driver_test
    async def test_waiting_calls_are_admitted_one_after_the_other(self, stage: Stage) -> None:
        actors = await stage.actors(4)
        for algorithm in ALGORITHMS:
            views = [limit_for(actor, "1/80ms", algorithm=algorithm) for actor in actors]
            decisions = await asyncio.gather(*[view.wait("k", timeout=WITHIN) for view in views])
            moments = sorted(decision.at for decision in decisions)
            assert all(decision.allowed for decision in decisions)
            gaps = [later - earlier for earlier, later in itertools.pairwise(moments)]
            if algorithm == "fixed":
                # Each call must be in a window of its own. Two calls in adjacent windows may be close together, so
                # the gaps prove nothing: compare the numbers of the windows. Compute these from µs: rounding to a
                # coarser unit could move a call from the end of its window into the next one.
                assert len({round(moment * 1e6) // 80_000 for moment in moments}) == len(moments), moments
            else:  # all algorithms except `sliding` round to milliseconds, so a gap may be 1 ms too short
                assert min(gaps) >= (0.08 if algorithm == "sliding" else 0.079) - 1e-6, (algorithm, gaps)

    @driver_test
    async def test_a_hit_does_not_overtake_waiting_calls(self, stage: Stage) -> None:
        first, second, third = (limit_for(actor, "1/1500ms") for actor in await stage.actors(3))
        for view in (second, third):
            await view.peek("k")  # connect now, because a first request is slow
        for key in map(str, range(TRIES)):
            await first.hit(key)
            waiting = asyncio.create_task(second.wait(key, timeout=WITHIN))

            async def reserved(key: str = key) -> bool:
                return (await third.peek(key)).retry_after > 1.5

            if not await soon(reserved, within=1.4):
                await waiting
                continue  # the machine was too busy: the window ended before the check
            barging = await third.hit(key)
            late = await third.wait(key, timeout=WITHIN)
            place = await waiting
            assert not barging.allowed or barging.at >= place.at + 1.5 - 1e-6
            assert place.at <= late.at - 1.5 + 1e-6
            return
        raise AssertionError("no call was ever waiting")

    @driver_test
    async def test_a_wait_that_would_take_too_long_is_refused_at_once(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api = limit_for(one, f"1/{LONG}", algorithm=algorithm)
            assert (await api.wait("k", timeout=0)).allowed
            async with asyncio.timeout(20):
                failure = await assert_refused(api.wait("k", timeout=30), "RateLimited")
            assert "try again" in failure.message
            assert (await limit_for(other, f"1/{LONG}", algorithm=algorithm).peek("k")).count == 1, algorithm

    @driver_test
    async def test_a_repeated_denial_is_answered_from_memory_and_in_time(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        api = limit_for(one, f"1/{LONG}")
        await api.peek("k")  # connect now, because a first request is slow
        await limit_for(other, f"1/{LONG}").hit("k")
        began = steady()
        denial = await api.hit("k")
        assert (denial.allowed, denial.by) == (False, "engine")
        for _ in range(4):
            again = await api.hit("k")
            assert not again.allowed
            assert again.by == "memory" or steady() - began > DENIAL_CACHE_SECONDS
            assert again.retry_after <= denial.retry_after

        brief = limit_for(one, "1/300ms")
        first = await limit_for(other, "1/300ms").hit("k")
        admitted: list[Decision] = []

        async def once_more() -> bool:
            decision = await brief.hit("k")
            if decision.allowed:
                admitted.append(decision)
            return decision.allowed

        assert await soon(once_more)
        assert admitted[0].at >= first.at + 0.3 - 1e-6


async def _hit_until_denied(view: ActorLimit, key: str) -> Decision:
    """Hit the key until a hit is denied, and return that decision."""
    while (decision := await view.hit(key)).allowed:
        pass
    return decision
