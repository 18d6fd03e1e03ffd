"""What lock, semaphore and read-write lock promise, as claims that any set-up can be held to."""

from holdfast.testing.conformance.gate.bad_input import BadInput
from holdfast.testing.conformance.gate.care import Care
from holdfast.testing.conformance.gate.cleanup import Cleanup
from holdfast.testing.conformance.gate.crashes import CrashSuite
from holdfast.testing.conformance.gate.exclusion import Exclusion
from holdfast.testing.conformance.gate.fences import Fences
from holdfast.testing.conformance.gate.identity import Identity
from holdfast.testing.conformance.gate.leases import Leases
from holdfast.testing.conformance.gate.names import Names
from holdfast.testing.conformance.gate.order import Order
from holdfast.testing.conformance.gate.ownership import Ownership
from holdfast.testing.conformance.gate.reentrancy import Reentrancy
from holdfast.testing.conformance.gate.sharing import Sharing
from holdfast.testing.conformance.gate.waiting import Waiting


class GateSuite(
    Exclusion,
    Sharing,
    Order,
    Waiting,
    Fences,
    Leases,
    Ownership,
    Reentrancy,
    Care,
    Cleanup,
    Identity,
    Names,
    BadInput,
):
    """All claims about the gate. Subclass it and give it a `driver` fixture."""


__all__ = ["CrashSuite", "GateSuite"]
