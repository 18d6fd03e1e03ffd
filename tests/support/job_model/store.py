"""A model of the job store: it implements `backstay.job.store.Store` in plain Python, in memory, for one shard.

It is simple rather than fast: dicts and loops. The conformance suites run on it, too, and property tests send the same
commands at the same times to the model and to each real store and compare the replies. Start reading with
`transitions.py`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from backstay.engine.base import Micros, Op, StoreOperation
from support.job_model.job_output import JobOutput
from support.job_model.queries import Queries
from support.job_model.registry import Registry
from support.job_model.runs import Runs

T = TypeVar("T")


class ModelStore(Runs, Queries, JobOutput, Registry):
    """The whole store: all operations on the jobs and runs of one shard."""

    shards = 1
    announces, announcement_gap = True, 0.0
    splits_claim_and_ack = False
    claims_consume_hints = False
    read_handoff = None


class ModelEngine:
    """Applies operations of a model one by one, at the time that `clock` returns."""

    def __init__(self, store: ModelStore, clock: Callable[[], Micros]) -> None:
        self._store = store
        self._clock = clock

    def apply(self, op: Op[T]) -> T:
        assert isinstance(op, StoreOperation)  # as `verb` makes it
        self._store.now = max(self._store.now, self._clock())
        reply: Any = op.work()
        return reply  # type: ignore[no-any-return]  # the type of the operation names its reply

    def submit(self, op: Op[T]) -> Awaitable[T]:
        async def reply() -> T:
            return self.apply(op)

        return reply()
