"""The protocols that a wire implements. A wire is the code for locks in the Redis keys of another program
(`wire="n8n"`).

`backstay.interop` implements these protocols, and `backstay.assembly` supplies the implementation that `wire=` names. A
lock in Backstay's own records has no wire.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from backstay.engine.base import Apply, Engine, Micros
from backstay.gate.commands import CallerIdentity
from backstay.gate.view import Cleanup, ForceReleased, Inspection, Released
from backstay.runtime.core import Core
from backstay.runtime.lease import Handover, RenewalResult
from backstay.runtime.validation import Wire

if TYPE_CHECKING:
    from backstay.gate.flows import GateSpec
    from backstay.gate.lease import GateLease, ReleaseOutcome

L = TypeVar("L", bound="GateLease")


class LockWire(Protocol):
    """Acquires locks over a wire."""

    async def acquire(
        self,
        core: Core,
        spec: GateSpec,
        caller: CallerIdentity,
        lock_id: str,
        wait: float | None,
        make: type[L],
        hold: Handover[L],
        /,
    ) -> L:
        """Wait for the lock and acquire it. On failure or cancellation, release what the request may have acquired.
        `hold` gets the lease as soon as there is one.
        """
        ...


class LeaseWire(Protocol):
    """Renews and releases one lease over a wire. Such a lease has no fence."""

    def renewal(self, lease: GateLease, not_after: Micros, ttl: float, /) -> Apply:
        """Return the operation that extends the lease."""
        ...

    def release_op(self, lease: GateLease, not_after: Micros, /) -> Apply:
        """Return the operation that releases the lease."""
        ...

    def decode_release(self, lease: GateLease, reply: Any, /) -> ReleaseOutcome:
        """Decode the reply to `release_op`."""
        ...

    def judge(self, lease: GateLease, reply: Any, /) -> RenewalResult:
        """Interpret a renewal's reply."""
        ...

    def fields(self, lease: GateLease, /) -> dict[str, Any]:
        """Return the lease as a dict with the ten fields that Backstay's n8n workflow for acquiring a lock returns."""
        ...


class LockAdmin(Protocol):
    """Inspects and releases locks that other callers hold. For locks in Backstay's own records, `backstay.gate.admin`
    does this.
    """

    async def inspect(self, core: Core, name: str, /) -> Inspection: ...
    async def release_by_id(self, core: Core, name: str, lock_id: str, /) -> Released: ...
    async def force_release(self, core: Core, name: str, /) -> ForceReleased: ...
    async def cleanup(self, core: Core, execution_id: str, scopes: Sequence[str] | None, /) -> Cleanup: ...


#: Returns the LockAdmin of a wire, for one lock name or (None) for any name. Raises ConfigError for an unknown wire and
#: for a wire that the engine does not support.
ChooseAdmin = Callable[[Engine, Wire, str | None], LockAdmin]
