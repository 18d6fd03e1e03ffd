"""Locks that hold, jobs that finish, guarantees you can run."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.channel import Message
    from holdfast.errors import (
        Closed,
        ConfigError,
        CorruptRecord,
        Decision,
        EngineError,
        EngineRefused,
        EngineUnavailable,
        FingerprintMismatch,
        HolderInfo,
        HoldfastError,
        IdempotencyError,
        InProgress,
        LeaseLost,
        LockError,
        LockHeld,
        LockTimeout,
        NotOwner,
        NotReplicated,
        OutcomeUnknown,
        QueueFull,
        RateLimited,
        ReplayedFailure,
        RowMissing,
        SchemaTooNew,
        StaleFence,
        WouldDeadlock,
        WrongLoop,
    )
    from holdfast.gate.lock import Lease
    from holdfast.gate.view import Cleanup, ForceReleased, Inspection, Released, WaiterInfo
    from holdfast.http.idempotency import IdempotencyMiddleware
    from holdfast.http.ratelimit import RateLimitMiddleware
    from holdfast.hub.wire import ChainCompleted, OwnershipLost, Scheduled
    from holdfast.idempotency.view import KeyInspection
    from holdfast.policy import BALANCED, MAX_AVAILABILITY, MAX_SAFETY, Policy
    from holdfast.telemetry import Event

__all__ = [
    "BALANCED",
    "MAX_AVAILABILITY",
    "MAX_SAFETY",
    "ChainCompleted",
    "Cleanup",
    "Closed",
    "ConfigError",
    "CorruptRecord",
    "Decision",
    "EngineError",
    "EngineRefused",
    "EngineUnavailable",
    "Event",
    "FingerprintMismatch",
    "ForceReleased",
    "HolderInfo",
    "Holdfast",
    "HoldfastError",
    "IdempotencyError",
    "IdempotencyMiddleware",
    "InProgress",
    "Inspection",
    "KeyInspection",
    "Lease",
    "LeaseLost",
    "LockError",
    "LockHeld",
    "LockTimeout",
    "Message",
    "NotOwner",
    "NotReplicated",
    "OutcomeUnknown",
    "OwnershipLost",
    "Policy",
    "QueueFull",
    "RateLimitMiddleware",
    "RateLimited",
    "Released",
    "ReplayedFailure",
    "RowMissing",
    "Scheduled",
    "SchemaTooNew",
    "StaleFence",
    "WaiterInfo",
    "WouldDeadlock",
    "WrongLoop",
]

#: Where each name lives. Loaded at first use, so that a program that only catches an error does not start an engine.
_HOMES = {
    "BALANCED": "holdfast.policy",
    "ChainCompleted": "holdfast.hub.wire",
    "Cleanup": "holdfast.gate.view",
    "Closed": "holdfast.errors",
    "ConfigError": "holdfast.errors",
    "CorruptRecord": "holdfast.errors",
    "Decision": "holdfast.errors",
    "EngineError": "holdfast.errors",
    "EngineRefused": "holdfast.errors",
    "EngineUnavailable": "holdfast.errors",
    "Event": "holdfast.telemetry",
    "FingerprintMismatch": "holdfast.errors",
    "ForceReleased": "holdfast.gate.view",
    "HolderInfo": "holdfast.errors",
    "Holdfast": "holdfast.app",
    "HoldfastError": "holdfast.errors",
    "IdempotencyError": "holdfast.errors",
    "IdempotencyMiddleware": "holdfast.http.idempotency",
    "InProgress": "holdfast.errors",
    "Inspection": "holdfast.gate.view",
    "KeyInspection": "holdfast.idempotency.view",
    "Lease": "holdfast.gate.lock",
    "LeaseLost": "holdfast.errors",
    "LockError": "holdfast.errors",
    "LockHeld": "holdfast.errors",
    "LockTimeout": "holdfast.errors",
    "MAX_AVAILABILITY": "holdfast.policy",
    "MAX_SAFETY": "holdfast.policy",
    "Message": "holdfast.channel",
    "NotOwner": "holdfast.errors",
    "NotReplicated": "holdfast.errors",
    "OutcomeUnknown": "holdfast.errors",
    "OwnershipLost": "holdfast.hub.wire",
    "Policy": "holdfast.policy",
    "QueueFull": "holdfast.errors",
    "RateLimitMiddleware": "holdfast.http.ratelimit",
    "RateLimited": "holdfast.errors",
    "Released": "holdfast.gate.view",
    "ReplayedFailure": "holdfast.errors",
    "RowMissing": "holdfast.errors",
    "Scheduled": "holdfast.hub.wire",
    "SchemaTooNew": "holdfast.errors",
    "StaleFence": "holdfast.errors",
    "WaiterInfo": "holdfast.gate.view",
    "WouldDeadlock": "holdfast.errors",
    "WrongLoop": "holdfast.errors",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
