"""Semaphores: at most `permits` holders at a time, served in arrival order."""

from __future__ import annotations

from holdfast.gate.lock import AsyncGate


class Semaphore(AsyncGate):
    """A counted lock. All callers of one name must agree on `permits` while it is in use."""

    __slots__ = ()
