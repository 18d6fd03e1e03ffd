"""Invalid arguments raise an error that names the argument, before any request is sent."""

from __future__ import annotations

from typing import Any

from backstay.testing.conformance.actor import Actor, assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.gate.cases import NAME

LONE = "a\ud800b"
NAN, INFINITY = float("nan"), float("inf")
#: Invalid durations. Only for `wait` the first one, 0, is valid and means: do not wait.
NO_DURATION: list[Any] = [0, -1, -0.001, NAN, INFINITY, -INFINITY, "5", True, [], 1e12]
NO_NAME: list[Any] = ["", "x" * 513, "é" * 257, LONE, 7, None, True, ["a"], {}]
NO_COUNT: list[Any] = [0, -1, 1.5, "2", True, None, [], 2**53, 2**64]


async def assert_each_refused(actor: Actor, values: list[Any], what: str, **fixed: Any) -> None:
    """Assert that `acquire` raises ConfigError for each of these values of the argument `what`, and that the message
    names the argument.
    """
    for value in values:
        try:
            failure = await assert_refused(actor.acquire(NAME, **fixed, **{what: value}), "ConfigError")
        except BaseException as error:
            error.add_note(f"with {what}={value!r}")
            raise
        assert "ValueError" in failure.kinds
        assert what in failure.message, (value, failure.message)


class GateBadInputTests:
    """Tests of invalid durations, names, numbers and lists."""

    @driver_test
    async def test_a_duration_is_a_number_of_seconds_above_zero(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await assert_each_refused(one, NO_DURATION, "ttl")
        await assert_each_refused(one, NO_DURATION, "max_hold")
        assert (await other.inspect(NAME)).count == 0

    @driver_test
    async def test_a_wait_is_zero_or_more(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await assert_each_refused(one, NO_DURATION[1:], "wait")
        assert (await other.inspect(NAME)).count == 0

    @driver_test
    async def test_a_renewal_takes_a_duration_above_zero(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        grant = await one.acquire(NAME)
        for value in NO_DURATION:
            await assert_refused(one.renew(grant, value), "ConfigError")
        assert not await one.is_lost(grant)

    @driver_test
    async def test_a_name_has_one_to_512_bytes_of_text(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for value in NO_NAME:
            for kind in ("lock", "read", "write"):
                await assert_refused(one.acquire(value, kind), "ConfigError")
            await assert_refused(one.try_acquire(value), "ConfigError")
            await assert_refused(one.inspect(value), "ConfigError")
            await assert_refused(one.force_release(value), "ConfigError")
            await assert_refused(one.release_by_id(value, "id"), "ConfigError")
            await assert_refused(one.release_by_id(NAME, value), "ConfigError")
            await assert_refused(one.cleanup(value), "ConfigError")
            await assert_refused(one.cleanup("e", [value]), "ConfigError")

    @driver_test
    async def test_an_identity_is_text_of_at_most_512_bytes(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        bad = [value for value in NO_NAME if value not in ("", None)]  # an empty value means the default
        for what in ("lock_id", "execution_id", "workflow_id", "workflow_name"):
            await assert_each_refused(one, [value for value in bad if value != {}], what)

    @driver_test
    async def test_permits_are_a_whole_number_above_zero(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        await assert_each_refused(one, NO_COUNT, "permits", kind="semaphore")

    @driver_test
    async def test_max_waiters_is_a_whole_number_above_zero(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        await assert_each_refused(one, [*NO_COUNT, 1000.0], "max_waiters")

    @driver_test
    async def test_scopes_are_a_list_of_names(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for value in ("abc", 7, [7], ["a", ""]):
            await assert_refused(one.cleanup("e", value), "ConfigError")

    @driver_test
    async def test_a_prefix_is_text(self, stage: Stage) -> None:
        (one,) = await stage.actors(1)
        for value in (7, LONE, ["a"], None):
            await assert_refused(one.list_all(value), "ConfigError")
