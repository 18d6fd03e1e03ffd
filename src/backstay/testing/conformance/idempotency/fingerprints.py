"""A call whose fingerprint differs from that of the first call with the key is refused."""

from __future__ import annotations

from backstay.testing.conformance.actor import assert_refused
from backstay.testing.conformance.driver import Stage, driver_test
from backstay.testing.conformance.idempotency.cases import KEY, run_once, running_call

PAYLOAD = {"amount": 5, "items": [1, 2], "currency": "EUR"}


class IdempotencyFingerprintsTests:
    """Tests of fingerprints."""

    @driver_test
    async def test_another_fingerprint_is_refused(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        failure = await assert_refused(run_once(other, fingerprint={**PAYLOAD, "amount": 6}), "FingerprintMismatch")
        assert failure.facts["name"] == KEY
        await assert_refused(run_once(other, fingerprint={**PAYLOAD, "items": [2, 1]}), "FingerprintMismatch")
        assert (await run_once(other, fingerprint=PAYLOAD)).value == "first"

    @driver_test
    async def test_another_fingerprint_is_refused_while_the_call_runs(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with running_call(conductor, owner, fingerprint=PAYLOAD) as running:
            await assert_refused(run_once(other, fingerprint="another"), "FingerprintMismatch")
            await assert_refused(run_once(other, fingerprint=PAYLOAD, wait=0), "InProgress")
        assert (await running).value == "first"

    @driver_test
    async def test_the_order_of_fields_does_not_matter(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        again = await run_once(other, fingerprint=dict(reversed(PAYLOAD.items())))
        assert not again.ran

    @driver_test
    async def test_a_call_without_a_fingerprint_gets_the_outcome(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        assert (await run_once(other)).value == "first"

    @driver_test
    async def test_a_call_that_was_not_described_is_not_taken_for_ours(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first")
        await assert_refused(run_once(other, fingerprint=PAYLOAD), "FingerprintMismatch")

    @driver_test
    async def test_after_a_failure_the_key_may_be_used_for_another_call(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await assert_refused(run_once(one, fails="no", fingerprint=PAYLOAD), "ScriptedError")
        assert (await run_once(other, fingerprint="another")).ran
