"""`@stay.limited`: a function with a rate limit."""

from __future__ import annotations

import asyncio
import time

import pytest

import backstay
from backstay import ConfigError, RateLimited, sync


def test_a_limited_function_is_called_at_most_as_often_as_its_rate(engine_url, namespace):
    with sync.Backstay(engine_url, namespace=namespace) as stay:
        calls = []

        @stay.limited("2/hour", key="{user_id}")
        def search(user_id, text="x"):
            """Search."""
            calls.append((user_id, text))
            return text

        assert [search(7, "a"), search(user_id=7), search(8)] == ["a", "x", "x"]
        with pytest.raises(RateLimited) as caught:
            search(7)
        assert calls == [(7, "a"), (7, "x"), (8, "x")]
        assert (caught.value.decision.scope, caught.value.decision.limit) == ("7", 2)
        assert caught.value.name.endswith("search")
        assert search.__doc__ == "Search."


def test_async_and_blocking_functions_share_a_limit_by_name(engine_url, namespace):
    async def main():
        async with backstay.Backstay(engine_url, namespace=namespace) as stay:

            @stay.limited("3/hour", name="shared")
            async def one(x):
                return x

            @stay.limited("3/hour", name="shared", cost=2)
            def other(x):
                return x

            assert await one(1) == 1
            assert await asyncio.to_thread(other, 2) == 2
            with pytest.raises(RateLimited):
                await one(3)
            with pytest.raises(RateLimited):
                await asyncio.to_thread(other, 4)

    asyncio.run(main())


def test_a_call_may_wait_for_its_turn(engine_url, namespace):
    with sync.Backstay(engine_url, namespace=namespace) as stay:

        @stay.limited("1/100ms", wait=5)
        def tick():
            return time.monotonic()

        began = time.monotonic()
        assert tick() < tick() < tick()
        assert time.monotonic() - began >= 0.2

        @stay.limited("1/hour", wait=0.5)
        def rarely():
            return True

        assert rarely()
        with pytest.raises(RateLimited):
            rarely()


def test_invalid_options_are_refused_when_the_function_is_decorated():
    with sync.Backstay("memory://") as stay:
        with pytest.raises(ConfigError, match="no argument 'user'"):
            stay.limited("1/s", key="{user}")(lambda user_id: user_id)
        with pytest.raises(ConfigError, match="100/minute"):
            stay.limited("often")(lambda: None)
        with pytest.raises(ConfigError, match="at most 1"):
            stay.limited("1/s", cost=2)(lambda: None)

        async def work():
            pass

        with pytest.raises(ConfigError, match="async"):
            stay.limited("1/s")(work)


def test_an_empty_key_is_refused_and_not_admitted():
    with sync.Backstay("memory://") as stay:
        ran = []
        work = stay.limited("1/s", key="{0}")(ran.append)
        with pytest.raises(ConfigError, match="key"):
            work("")
        assert not ran
