"""Conformance tests of locks, semaphores and read-write locks, for any engine, hub and API."""

from backstay.testing.conformance.gate.admin import GateAdminTests
from backstay.testing.conformance.gate.bad_input import GateBadInputTests
from backstay.testing.conformance.gate.cleanup import GateCleanupTests
from backstay.testing.conformance.gate.crashes import CrashSuite
from backstay.testing.conformance.gate.exclusion import GateExclusionTests
from backstay.testing.conformance.gate.fences import GateFencesTests
from backstay.testing.conformance.gate.identity import GateIdentityTests
from backstay.testing.conformance.gate.leases import GateLeasesTests
from backstay.testing.conformance.gate.names import GateNamesTests
from backstay.testing.conformance.gate.order import GateOrderTests
from backstay.testing.conformance.gate.ownership import GateOwnershipTests
from backstay.testing.conformance.gate.reentrancy import GateReentrancyTests
from backstay.testing.conformance.gate.sharing import GateSharingTests
from backstay.testing.conformance.gate.waiting import GateWaitingTests


class GateSuite(
    GateExclusionTests,
    GateSharingTests,
    GateOrderTests,
    GateWaitingTests,
    GateFencesTests,
    GateLeasesTests,
    GateOwnershipTests,
    GateReentrancyTests,
    GateAdminTests,
    GateCleanupTests,
    GateIdentityTests,
    GateNamesTests,
    GateBadInputTests,
):
    """All conformance tests of the gate. Subclass it and give it a `driver` fixture."""


__all__ = ["CrashSuite", "GateSuite"]
