"""Inject faults into an engine: lost replies and outages."""

from __future__ import annotations

from backstay.engine.base import Apply, single_result
from backstay.errors import EngineUnavailable, OutcomeUnknown


class Fault:
    """Wraps `apply` and `apply_many` of a blocking engine. `lose(Command)`: the next command of this type is applied,
    but its reply is lost. `away`: the engine is unreachable.
    """

    def __init__(self, engine):
        self._apply_many = engine.apply_many
        engine.apply_many = self
        engine.apply = lambda op: single_result(self([op]))
        self._losing = []
        self.away = False
        #: All operations whose reply was lost.
        self.lost = []

    def lose(self, command):
        self._losing.append(command)

    def again(self, op):
        """Apply an operation once more, as if a delayed copy of the request arrived."""
        (reply,) = self._apply_many([op])
        return reply

    def __call__(self, ops, timeout=None):
        if self.away:
            return [EngineUnavailable("unreachable") for _ in ops]
        return [self._one(op, reply) for op, reply in zip(ops, self._apply_many(ops, timeout), strict=True)]

    def _one(self, op, reply):
        if isinstance(op, Apply) and type(op.command) in self._losing:
            self._losing.remove(type(op.command))
            self.lost.append(op)
            self.away = self.away_after
            return OutcomeUnknown("the reply was lost")
        return reply

    #: The value that `away` gets when a reply is lost.
    away_after = False
