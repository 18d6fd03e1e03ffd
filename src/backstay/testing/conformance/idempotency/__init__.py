"""Conformance tests of idempotency keys, for any engine, hub and API."""

from backstay.testing.conformance.idempotency.bad_input import IdempotencyBadInputTests
from backstay.testing.conformance.idempotency.crashes import IdempotencyCrashSuite
from backstay.testing.conformance.idempotency.failures import IdempotencyFailuresTests
from backstay.testing.conformance.idempotency.fingerprints import IdempotencyFingerprintsTests
from backstay.testing.conformance.idempotency.leases import IdempotencyLeasesTests
from backstay.testing.conformance.idempotency.runs import IdempotencyRunsTests


class IdempotencySuite(
    IdempotencyRunsTests,
    IdempotencyFailuresTests,
    IdempotencyFingerprintsTests,
    IdempotencyLeasesTests,
    IdempotencyBadInputTests,
):
    """All conformance tests of idempotency keys. Subclass it and give it a `driver` fixture."""


__all__ = ["IdempotencyCrashSuite", "IdempotencySuite"]
