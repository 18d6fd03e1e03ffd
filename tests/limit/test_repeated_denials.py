"""Cached denials: they end in time, and their retry_after is never too early."""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import time

import pytest

import backstay
from backstay import sync
from backstay.limit import local_fallback
from backstay.limit.flows import LOCAL_FALLBACK
from backstay.testing.proxy import FaultProxy

#: Denials are cached for a second, so most of these tests depend on time.
pytestmark = [pytest.mark.redis, pytest.mark.timed]


def test_a_call_after_retry_after_is_admitted(backstay_redis, namespace):
    """The request is delayed: the engine decides long after it was sent."""
    with (
        FaultProxy(backstay_redis.port) as proxy,
        sync.Backstay(proxy.url, namespace=namespace) as slow,
        sync.Backstay(backstay_redis.url, namespace=namespace) as stay,
    ):
        api, quick = slow.limit("api", "1/second"), stay.limit("api", "1/second")
        api.peek("k")
        quick.hit("k")
        proxy.rule("delay", seconds=0.2)
        assert api.hit("k").by == "engine"
        again = api.hit("k")
        assert again.by == "memory"
        time.sleep(again.retry_after)
        assert quick.hit("k").allowed


def test_a_reset_by_another_process_takes_effect_when_the_cached_denial_ends(backstay_redis, namespace):
    with (
        sync.Backstay(backstay_redis.url, namespace=namespace) as stay,
        sync.Backstay(backstay_redis.url, namespace=namespace) as other,
    ):
        api = stay.limit("api", "1/hour")
        api.hit("k")
        began = time.monotonic()
        assert not api.hit("k").allowed
        other.limits.reset("api", "k")
        while not api.hit("k").allowed:
            assert time.monotonic() - began < local_fallback.DENIAL_CACHE_SECONDS + 5
        assert time.monotonic() - began >= local_fallback.DENIAL_CACHE_SECONDS - 0.01


def test_each_cost_has_its_own_retry_after(backstay_redis, namespace):
    with sync.Backstay(backstay_redis.url, namespace=namespace) as stay:
        api = stay.limit("api", "5/hour", algorithm="gcra")  # one permit is restored every twelve minutes
        api.hit("k", 5)
        for cost in (1, 2, 3, 3):
            denied, peeked = api.hit("k", cost), api.peek("k", cost)
            assert denied.retry_after == pytest.approx(peeked.retry_after, abs=1)
            assert denied.retry_after > 720 * cost - 10
        assert denied.by == "memory"


def test_a_smaller_cost_or_a_higher_limit_is_sent_to_the_engine(backstay_redis, namespace):
    with sync.Backstay(backstay_redis.url, namespace=namespace) as stay:
        api = stay.limit("api", "5/hour")
        api.hit("k", 3)
        assert api.hit("k", 3).by == "engine"
        assert api.hit("k", 3).by == "memory"
        assert api.hit("k", 2).allowed
        assert stay.limit("api", "9/hour").hit("k", 4).allowed


def test_a_cached_denial_does_not_hide_an_invalid_key_or_cost(namespace):
    with sync.Backstay("memory://", namespace=namespace) as stay:
        api = stay.limit("api", "1/hour")
        api.hit("1")
        assert api.hit("1").by == "engine"
        assert api.hit("1").by == "memory"
        for cost in (True, 1.0, "1", 0):
            with pytest.raises(backstay.ConfigError, match="cost"):
                api.hit("1", cost)
        for key in (1, b"1", None, "", [], "\ud800"):
            with pytest.raises(backstay.ConfigError, match="key"):
                api.hit(key)


def test_a_key_of_a_text_enum_shares_the_cached_denial(namespace):
    class Tier(enum.StrEnum):
        FREE = "free"

    with sync.Backstay("memory://", namespace=namespace) as stay:
        api = stay.limit("api", "1/hour")
        api.hit("free")
        assert api.hit("free").by == "engine"
        repeated = api.hit(Tier.FREE)
        assert repeated.by == "memory"
        assert repeated.trouble == ""
        assert dataclasses.asdict(repeated).keys() == dataclasses.asdict(api.peek("free")).keys()


def test_a_cached_denial_is_not_returned_after_close(namespace):
    stay = sync.Backstay("memory://", namespace=namespace)
    with stay:
        api = stay.limit("api", "1/hour")
        api.hit("k")
        api.hit("k")
        assert api.hit("k").by == "memory"
    with pytest.raises(backstay.Closed):
        api.hit("k")


def test_a_refund_and_a_reset_end_the_cached_denial(namespace):
    with sync.Backstay("memory://", namespace=namespace) as stay:
        api = stay.limit("api", "1/hour")
        for end in (api.refund, api.reset):
            api.reset("k")
            assert api.hit("k").allowed
            api.hit("k")
            assert api.hit("k").by == "memory"
            end("k")
            assert api.hit("k").allowed


def test_the_denial_cache_is_bounded(namespace, monkeypatch):
    monkeypatch.setattr(local_fallback, "MAX_RECORDS", 100)

    async def main():
        async with backstay.Backstay("memory://", namespace=namespace) as stay:
            api = stay.limit("api", "1/hour")
            for n in range(250):
                await api.hit(f"k{n}")
                assert not (await api.hit(f"k{n}")).allowed
            assert len(stay._core.services.get(LOCAL_FALLBACK).denials) <= 100

    asyncio.run(main())
