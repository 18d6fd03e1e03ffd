"""Invalid arguments raise an error that names the argument; no hit is admitted or counted."""

from __future__ import annotations

from typing import Any

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.limit.cases import LONG, limit_for

NO_RATE: list[Any] = ["", "100", "0/minute", "-1/s", "1/0s", "1/fortnight", "1.5/s", 100, None, ["1/s"]]
NO_KEY: list[Any] = ["", "x" * 513, "a\ud800", 7, None, True, ["a"]]
NO_COST: list[Any] = [0, -1, 1.5, "1", None, True, 6, 2**64]


class LimitRefusalsTests:
    """Tests of invalid rates, keys, costs and algorithms."""

    @driver_test
    async def test_a_rate_that_cannot_be_read_is_refused_with_one_that_can(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for rate in NO_RATE:
            failure = await assert_refused(limit_for(one, rate).hit("k"), "ConfigError")
            assert "100/minute" in failure.message, rate
        await assert_refused(limit_for(one).hit("k"), "ConfigError")
        await assert_refused(limit_for(one, "1/s", "2/1s").hit("k"), "ConfigError")

    @driver_test
    async def test_a_limit_key_has_one_to_512_bytes_of_text(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for key in NO_KEY:
            for verb in ("hit", "peek", "wait", "refund", "reset"):
                await assert_refused(limit_for(one, "5/minute").do(verb, key), "ConfigError")
            await assert_refused(limit_for(one, "5/minute", name=key).hit("k"), "ConfigError")

    @driver_test
    async def test_a_cost_is_a_whole_number_that_can_be_admitted(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        for cost in NO_COST:
            for verb in ("hit", "peek", "wait"):
                failure = await assert_refused(limit_for(one, f"5/{LONG}").do(verb, "k", cost), "ConfigError")
                assert "cost" in failure.message
        assert (await limit_for(other, f"5/{LONG}").peek("k")).count == 0

    @driver_test
    async def test_an_algorithm_that_does_not_exist_is_refused(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for algorithm in ("slidng", "", None, 3):
            failure = await assert_refused(limit_for(one, "5/minute", algorithm=algorithm).hit("k"), "ConfigError")
            assert "sliding" in failure.message
        failure = await assert_refused(limit_for(one, "10001/minute").hit("k"), "ConfigError")
        assert "sliding-counter" in failure.message
