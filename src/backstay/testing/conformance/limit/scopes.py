"""Limits with different keys, names or algorithms have separate counts."""

from __future__ import annotations

from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.limit.cases import ALGORITHMS, LONG, limit_for

STRANGE = [
    "a",
    "a:b",
    "a:b:c",
    "{a}",
    "}{",
    "a%3Ab",
    "%",
    "%25",
    "*",
    "a*",
    " ",
    "é",
    "日本",
    "a\nb",
    "s60",
    "\x00",
    "x" * 512,
]


class LimitScopesTests:
    """Each key of each limit has its own count."""

    @driver_test
    async def test_unusual_keys_do_not_collide(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for key in STRANGE:
            assert (await limit_for(one, f"1/{LONG}").hit(key)).allowed, key
        for key in STRANGE:
            seen = await limit_for(other, f"1/{LONG}").hit(key)
            assert (seen.allowed, seen.scope) == (False, key)

    @driver_test
    async def test_unusual_limit_names_do_not_collide(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for name in STRANGE:
            assert (await limit_for(one, f"1/{LONG}", name=name).hit("b:k")).allowed, name
        assert (await limit_for(one, f"1/{LONG}", name="a").hit("k")).allowed
        for name in STRANGE:
            assert not (await limit_for(other, f"1/{LONG}", name=name).hit("b:k")).allowed, name
        uses = await other.do("limits", call="list", args=[])
        assert {use["name"] for use in uses} == set(STRANGE)
        assert [use["key"] for use in await other.do("limits", call="list", args=["a:b"])] == ["b:k"]

    @driver_test
    async def test_algorithms_and_windows_do_not_collide(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for algorithm in ALGORITHMS:
            assert (await limit_for(one, f"1/{LONG}", algorithm=algorithm).hit("k")).allowed
            assert (await limit_for(other, "1/day", algorithm=algorithm).hit("k")).allowed
        assert len(await one.do("limits", call="list", args=["api"])) == 2 * len(ALGORITHMS)

    @driver_test
    async def test_list_shows_the_usage_by_key(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        assert await one.do("limits", call="list", args=[]) == []
        for algorithm in ALGORITHMS:
            await limit_for(one, f"5/{LONG}", algorithm=algorithm).hit("k", 2)
        uses = await other.do("limits", call="list", args=["api"])
        assert sorted(use["algorithm"] for use in uses) == sorted(ALGORITHMS)
        for use in uses:
            (rate,) = use["rates"]
            assert (use["key"], rate["rate"], rate["limit"], rate["count"]) == ("k", f"5/{LONG}", 5, 2)
            assert 0 < rate["reset_after"] <= 7200
