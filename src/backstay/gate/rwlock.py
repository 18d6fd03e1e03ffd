"""Read-write locks: many readers or one writer, in FIFO order, so that neither side starves the other."""

from __future__ import annotations

from typing import Generic, TypeVar

from backstay.gate.flows import GateSpec
from backstay.gate.options import BaseGate
from backstay.runtime.core import Core
from backstay.runtime.validation import Duration

G = TypeVar("G", bound=BaseGate)


class BaseReadWriteLock(Generic[G]):
    """A read-write lock: `rw.read()` is shared, `rw.write()` is exclusive."""

    __slots__ = ("_core", "_gate", "_reader", "_wait", "_writer")

    def __init__(self, core: Core, reader: GateSpec, writer: GateSpec, wait: Duration | None, gate: type[G]) -> None:
        self._core = core
        self._reader = reader
        self._writer = writer
        self._wait = wait
        self._gate = gate

    def read(self) -> G:
        """Return the shared side: many readers hold it together."""
        return self._gate(self._core, self._reader, self._wait)

    def write(self) -> G:
        """Return the exclusive side: a writer holds it alone."""
        return self._gate(self._core, self._writer, self._wait)
