"""An operation that fails does not fail the other operations of its batch."""

from __future__ import annotations

from backstay.engine.base import Apply
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.gate.commands import Acquire, CallerIdentity, Granted
from backstay.gate.machine import GATE

FAR = 2**62


def test_one_bad_operation_does_not_fail_the_others_of_its_batch():
    engine = SqliteEngine(":memory:")
    good = Acquire(FAR, "t", "t", True, 1, 1_000_000, "inbox", 0, CallerIdentity())
    bad = Acquire(FAR, "u", "u", True, 2**70, 1_000_000, "inbox", 0, CallerIdentity())
    try:
        first, second, third = engine.apply_many(
            [Apply(GATE, "a", good), Apply(GATE, "b", bad), Apply(GATE, "c", good)],
        )
    finally:
        engine.close_blocking()
    assert isinstance(first, Granted)
    assert isinstance(second, OverflowError)
    assert isinstance(third, Granted)
