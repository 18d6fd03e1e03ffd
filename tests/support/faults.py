"""An engine whose answers get lost on the way, or that cannot be reached for a while."""

from __future__ import annotations

from backstay.engine.base import Apply, single_result
from backstay.errors import EngineUnavailable, OutcomeUnknown


class Fault:
    """Stands before a blocking engine's doors. `lose(Command)`: it happens, but the next answer is lost."""

    def __init__(self, engine):
        self._apply_many = engine.apply_many
        engine.apply_many = self
        engine.apply = lambda op: single_result(self([op]))
        self._losing = []
        self.away = False
        #: Every operation whose answer was lost.
        self.lost = []

    def lose(self, command):
        self._losing.append(command)

    def again(self, op):
        """A copy of an operation arrives late."""
        (answer,) = self._apply_many([op])
        return answer

    def __call__(self, ops, timeout=None):
        if self.away:
            return [EngineUnavailable("away") for _ in ops]
        return [self._one(op, answer) for op, answer in zip(ops, self._apply_many(ops, timeout), strict=True)]

    def _one(self, op, answer):
        if isinstance(op, Apply) and type(op.command) in self._losing:
            self._losing.remove(type(op.command))
            self.lost.append(op)
            self.away = self.away_after
            return OutcomeUnknown("the answer was lost")
        return answer

    #: Whether the engine is away once an answer was lost.
    away_after = False
