"""Invalid arguments raise an error that names the argument, before the function runs."""

from __future__ import annotations

from typing import Any

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.bad_input import NO_DURATION, NO_NAME
from backstay.testing.conformance.idempotency.cases import forget, inspect, run_once

NO_WORD: list[Any] = ["", "retry", 7, True, ["forget"]]


class IdempotencyBadInputTests:
    """Tests of invalid keys, durations and option values."""

    @driver_test
    async def test_an_idempotency_key_has_one_to_512_bytes_of_text(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for value in NO_NAME:
            failure = await assert_refused(run_once(one, key=value), "ConfigError")
            assert "key" in failure.message
            await assert_refused(inspect(one, value), "ConfigError")
            await assert_refused(forget(one, value), "ConfigError")

    @driver_test
    async def test_options_are_validated_before_the_function_runs(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        wrong = [
            *(("ttl", value) for value in NO_DURATION),
            *(("lease", value) for value in NO_DURATION),
            *(("wait", value) for value in NO_DURATION[1:]),
            *(("on_error", value) for value in NO_WORD),
            *(("on_unavailable", value) for value in NO_WORD if value),
            ("codec", "json"),
        ]
        for what, value in wrong:
            failure = await assert_refused(run_once(one, **{what: value}), "ConfigError")
            assert what in failure.message, (what, value, failure.message)
        assert (await inspect(other)).state == "idle"
