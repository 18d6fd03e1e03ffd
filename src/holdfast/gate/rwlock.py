"""Read-write locks: many readers or one writer, in arrival order, so that neither starves the other."""

from __future__ import annotations

from typing import Any

from holdfast.core import Core
from holdfast.gate.lock import AsyncGate
from holdfast.gate.machine import UNLIMITED


class ReadWriteLock:
    """`rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ("_core", "_name", "_options")

    def __init__(self, core: Core, name: str, **options: Any) -> None:
        self._core = core
        self._name = name
        self._options = options

    def read(self) -> AsyncGate:
        """Shared with other readers."""
        return AsyncGate(self._core, self._name, exclusive=False, capacity=UNLIMITED, **self._options)

    def write(self) -> AsyncGate:
        """Alone."""
        return AsyncGate(self._core, self._name, exclusive=True, capacity=UNLIMITED, **self._options)
