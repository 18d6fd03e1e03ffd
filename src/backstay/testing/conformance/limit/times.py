"""Time gives back what was taken; whoever waits gets the next place, in order."""

from __future__ import annotations

import asyncio
import itertools

from backstay.engine.base import steady
from backstay.errors import Decision
from backstay.limit.local_fallback import MEMORY
from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.limit.scenes import ALGORITHMS, LONG, Ask, ask
from backstay.testing.waiting import WITHIN, soon

#: A clock's tick, and what two clocks of one machine may differ while a claim plays.
TICK = 0.002
#: How often a claim is played whose window ended before all were there.
TRIES = 5


class Times:
    """retry_after, reset_after, wait."""

    @claim
    async def test_after_retry_after_the_hit_is_admitted(self, stage: Stage) -> None:
        one, other = await stage.actors(2)

        async def admitted(algorithm: str) -> None:
            mine, theirs = (ask(actor, "2/2s", algorithm=algorithm) for actor in (one, other))
            await _denied(mine, algorithm)
            denial = await _denied(theirs, algorithm)
            assert 0 < denial.retry_after <= 4
            await asyncio.sleep(denial.retry_after + TICK)
            assert (await mine.peek(algorithm, denial.count and 1)).allowed, algorithm
            assert (await mine.hit(algorithm)).allowed, algorithm

        # All at once: a window that a busy machine can fill is long.
        await asyncio.gather(*[admitted(algorithm) for algorithm in ALGORITHMS])

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
            told = await asyncio.gather(*[view.wait("k", timeout=WITHIN) for view in views])
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
        for key in map(str, range(TRIES)):
            await first.hit(key)
            waiting = asyncio.create_task(second.wait(key, timeout=WITHIN))

            async def reserved(key: str = key) -> bool:
                return (await third.peek(key)).retry_after > 1.5

            if not await soon(reserved, within=1.4):
                await waiting
                continue  # the machine was too busy to see it while it lasted
            barging = await third.hit(key)
            late = await third.wait(key, timeout=WITHIN)
            place = await waiting
            assert not barging.allowed or barging.at >= place.at + 1.5 - 1e-6
            assert place.at <= late.at - 1.5 + 1e-6
            return
        raise AssertionError("nobody was ever seen to wait")

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
        began = steady()
        denial = await api.hit("k")
        assert (denial.allowed, denial.by) == (False, "engine")
        for _ in range(4):
            again = await api.hit("k")
            assert not again.allowed
            assert again.by == "memory" or steady() - began > MEMORY
            assert again.retry_after <= denial.retry_after

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


async def _denied(view: Ask, key: str) -> Decision:
    """Hit it until it is denied."""
    while (decision := await view.hit(key)).allowed:
        pass
    return decision
