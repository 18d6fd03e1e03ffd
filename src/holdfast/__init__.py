"""Locks that hold, jobs that finish, guarantees you can run."""

from holdfast.app import Holdfast
from holdfast.channel import Message
from holdfast.errors import (
    Closed,
    ConfigError,
    CorruptRecord,
    EngineError,
    EngineRefused,
    EngineUnavailable,
    HolderInfo,
    HoldfastError,
    LeaseLost,
    LockError,
    LockHeld,
    LockTimeout,
    NotOwner,
    OutcomeUnknown,
    QueueFull,
    SchemaTooNew,
    WouldDeadlock,
    WrongLoop,
)
from holdfast.gate.lock import Lease
from holdfast.gate.view import Cleanup, ForceReleased, Inspection, Released, WaiterInfo
from holdfast.policy import BALANCED, MAX_AVAILABILITY, MAX_SAFETY, Policy
from holdfast.telemetry import Event

__all__ = [
    "BALANCED",
    "MAX_AVAILABILITY",
    "MAX_SAFETY",
    "Cleanup",
    "Closed",
    "ConfigError",
    "CorruptRecord",
    "EngineError",
    "EngineRefused",
    "EngineUnavailable",
    "Event",
    "ForceReleased",
    "HolderInfo",
    "Holdfast",
    "HoldfastError",
    "Inspection",
    "Lease",
    "LeaseLost",
    "LockError",
    "LockHeld",
    "LockTimeout",
    "Message",
    "NotOwner",
    "OutcomeUnknown",
    "Policy",
    "QueueFull",
    "Released",
    "SchemaTooNew",
    "WaiterInfo",
    "WouldDeadlock",
    "WrongLoop",
]
