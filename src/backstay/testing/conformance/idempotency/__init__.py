"""Conformance tests of idempotency keys, for any engine, hub and API."""

from backstay.testing.conformance.idempotency.bad_input import BadInput
from backstay.testing.conformance.idempotency.crashes import IdempotencyCrashSuite
from backstay.testing.conformance.idempotency.failures import Failures
from backstay.testing.conformance.idempotency.fingerprints import Fingerprints
from backstay.testing.conformance.idempotency.leases import Leases
from backstay.testing.conformance.idempotency.runs import Runs


class IdempotencySuite(Runs, Failures, Fingerprints, Leases, BadInput):
    """All conformance tests of idempotency keys. Subclass it and give it a `driver` fixture."""


__all__ = ["IdempotencyCrashSuite", "IdempotencySuite"]
