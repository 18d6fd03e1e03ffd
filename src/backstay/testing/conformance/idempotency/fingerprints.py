"""A call whose fingerprint differs from that of the first call with the key is refused."""

from __future__ import annotations

from backstay.testing.conformance.actor import refused
from backstay.testing.conformance.driver import Stage, claim
from backstay.testing.conformance.idempotency.cases import KEY, run_once, under_way

PAYLOAD = {"amount": 5, "items": [1, 2], "currency": "EUR"}


class Fingerprints:
    """Tests of fingerprints."""

    @claim
    async def test_another_fingerprint_is_refused(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        failure = await refused(run_once(other, fingerprint={**PAYLOAD, "amount": 6}), "FingerprintMismatch")
        assert failure.facts["name"] == KEY
        await refused(run_once(other, fingerprint={**PAYLOAD, "items": [2, 1]}), "FingerprintMismatch")
        assert (await run_once(other, fingerprint=PAYLOAD)).value == "first"

    @claim
    async def test_another_fingerprint_is_refused_while_the_call_runs(self, stage: Stage) -> None:
        conductor, owner, other = await stage.actors(3)
        async with under_way(conductor, owner, fingerprint=PAYLOAD) as running:
            await refused(run_once(other, fingerprint="another"), "FingerprintMismatch")
            await refused(run_once(other, fingerprint=PAYLOAD, wait=0), "InProgress")
        assert (await running).value == "first"

    @claim
    async def test_the_order_of_fields_does_not_matter(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        again = await run_once(other, fingerprint=dict(reversed(PAYLOAD.items())))
        assert not again.ran

    @claim
    async def test_who_compares_nothing_gets_the_outcome(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first", fingerprint=PAYLOAD)
        assert (await run_once(other)).value == "first"

    @claim
    async def test_a_call_that_was_not_described_is_not_taken_for_ours(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await run_once(one, "first")
        await refused(run_once(other, fingerprint=PAYLOAD), "FingerprintMismatch")

    @claim
    async def test_after_a_failure_the_key_may_be_used_for_another_call(self, stage: Stage) -> None:
        one, other = await stage.actors(2)
        await refused(run_once(one, fails="no", fingerprint=PAYLOAD), "Trouble")
        assert (await run_once(other, fingerprint="another")).ran
