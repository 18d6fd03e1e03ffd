"""Conformance tests of locks, semaphores and read-write locks, for any engine, hub and API."""

from backstay.testing.conformance.gate.admin import Admin
from backstay.testing.conformance.gate.bad_input import BadInput
from backstay.testing.conformance.gate.cleanup import Cleanup
from backstay.testing.conformance.gate.crashes import CrashSuite
from backstay.testing.conformance.gate.exclusion import Exclusion
from backstay.testing.conformance.gate.fences import Fences
from backstay.testing.conformance.gate.identity import Identity
from backstay.testing.conformance.gate.leases import Leases
from backstay.testing.conformance.gate.names import Names
from backstay.testing.conformance.gate.order import Order
from backstay.testing.conformance.gate.ownership import Ownership
from backstay.testing.conformance.gate.reentrancy import Reentrancy
from backstay.testing.conformance.gate.sharing import Sharing
from backstay.testing.conformance.gate.waiting import Waiting


class GateSuite(
    Exclusion,
    Sharing,
    Order,
    Waiting,
    Fences,
    Leases,
    Ownership,
    Reentrancy,
    Admin,
    Cleanup,
    Identity,
    Names,
    BadInput,
):
    """All conformance tests of the gate. Subclass it and give it a `driver` fixture."""


__all__ = ["CrashSuite", "GateSuite"]
