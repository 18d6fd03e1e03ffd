"""A limit admits exactly its rate over all callers, and denied hits do not count."""

from __future__ import annotations

import asyncio

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.limit.cases import ALGORITHMS, LONG, limit_for


class LimitCountingTests:
    """Tests of `hit`, `peek`, `refund` and `reset`."""

    @driver_test
    async def test_concurrent_hits_are_admitted_up_to_the_limit(self, stage: Stage) -> None:
        actors = await stage.actors(6)
        for algorithm in ALGORITHMS:
            views = [limit_for(actor, f"7/{LONG}", algorithm=algorithm) for actor in actors]
            decisions = await asyncio.gather(*[view.hit("crowd") for view in views for _ in range(3)])
            assert sum(d.allowed for d in decisions) == 7, algorithm
            assert sorted(d.count for d in decisions if d.allowed) == [1, 2, 3, 4, 5, 6, 7], algorithm
            assert sorted(d.remaining for d in decisions if d.allowed) == [0, 1, 2, 3, 4, 5, 6], algorithm

    @driver_test
    async def test_a_decision_has_all_its_fields(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for algorithm in ALGORITHMS:
            api = limit_for(one, f"2/{LONG}", algorithm=algorithm)
            first, second, third = [await api.hit("user:7") for _ in range(3)]
            assert (first.allowed, first.scope, first.count, first.limit, first.remaining) == (True, "user:7", 1, 2, 1)
            assert (second.allowed, second.count, second.remaining, second.retry_after) == (True, 2, 0, 0.0)
            assert (third.allowed, third.count, third.limit, third.remaining) == (False, 2, 2, 0)
            assert 0 < third.retry_after <= third.reset_after <= 2 * 3600
            assert first.at <= second.at <= third.at
            assert (first.window, first.by) == (3600.0, "engine")

    @driver_test
    async def test_a_denied_hit_does_not_count(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api = limit_for(one, f"5/{LONG}", algorithm=algorithm)
            assert (await api.hit("k", 3)).allowed
            for _ in range(3):
                assert not (await api.hit("k", 3)).allowed
            assert (await limit_for(other, f"5/{LONG}", algorithm=algorithm).hit("k", 2)).count == 5, algorithm

    @driver_test
    async def test_all_rates_are_taken_or_none(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            both = limit_for(one, f"9/{LONG}", "3/day", algorithm=algorithm)
            decisions = [await both.hit("k") for _ in range(5)]
            assert [d.allowed for d in decisions] == [True, True, True, False, False], algorithm
            assert (decisions[-1].limit, decisions[-1].window) == (3, 86400.0)
            seen = await limit_for(other, f"9/{LONG}", "3/day", algorithm=algorithm).peek("k")
            assert not seen.allowed
            (use,) = [u for u in await other.do("limits", call="list", args=["api"]) if u["algorithm"] == algorithm]
            assert [rate["count"] for rate in use["rates"]] == [3, 3], algorithm

    @driver_test
    async def test_a_peek_takes_nothing(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api, theirs = (limit_for(actor, f"2/{LONG}", algorithm=algorithm) for actor in (one, other))
            assert [(await api.peek("k")).remaining for _ in range(3)] == [2, 2, 2]
            await theirs.hit("k")
            seen = await api.peek("k")
            assert (seen.allowed, seen.count, seen.remaining) == (True, 1, 1)
            assert not (await api.peek("k", 2)).allowed
            await theirs.hit("k")
            assert not (await api.peek("k")).allowed

    @driver_test
    async def test_a_reset_by_another_process_clears_the_count(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api, theirs = (limit_for(actor, f"1/{LONG}", algorithm=algorithm) for actor in (one, other))
            assert (await api.hit("k")).allowed
            assert not (await api.peek("k")).allowed
            await theirs.do("reset", "k")
            assert (await theirs.hit("k")).count == 1
        assert await one.do("limits", call="reset", args=["api", "k"]) == len(ALGORITHMS)
        assert await one.do("limits", call="reset", args=["api", "k"]) == 0
        assert (await limit_for(other, f"1/{LONG}").peek("k")).count == 0

    @driver_test
    async def test_a_refund_returns_hits(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            api, theirs = (limit_for(actor, f"5/{LONG}", algorithm=algorithm) for actor in (one, other))
            await theirs.do("refund", "k", 3)  # no effect: nothing was used yet
            assert (await api.hit("k", 5)).allowed
            assert not (await api.hit("k")).allowed
            await api.do("refund", "k", 2)
            assert (await theirs.peek("k")).remaining == 2, algorithm
            assert (await api.hit("k", 2)).allowed
            await theirs.do("refund", "k", 50)
            assert (await theirs.peek("k")).remaining == 5, algorithm

    @driver_test
    async def test_a_higher_limit_counts_on(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            assert (await limit_for(one, f"3/{LONG}", algorithm=algorithm).hit("k", 3)).allowed
            if algorithm in ("token-bucket", "gcra"):
                continue  # these two store no count, but a level that depends on the rate
            higher = await limit_for(other, f"10/{LONG}", algorithm=algorithm).hit("k")
            assert (higher.allowed, higher.count, higher.remaining) == (True, 4, 6), algorithm
            lower = await limit_for(other, f"2/{LONG}", algorithm=algorithm).hit("k")
            assert (lower.allowed, lower.remaining) == (False, 0), algorithm
