"""The job store as a plain Python object: what `backstay.job.store.Store` means, readable in one sitting.

Everything is a dict and a loop, so nothing here is fast, and nothing survives the process. The conformance suites run
on it first; property tests feed it and each real store the same commands at the same times and demand the same
answers. One shard. Its parts are in `support.job_model`: start with `transitions.py`.
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
    """All jobs of one shard."""

    shards = 1
    announces, announcement_gap = True, 0.0
    splits_claim_and_ack = False
    claims_consume_hints = False
    read_handoff = None


class ModelEngine:
    """Carries out a model's operations, one after another, on a clock that is given."""

    def __init__(self, store: ModelStore, clock: Callable[[], Micros]) -> None:
        self._store = store
        self._clock = clock

    def apply(self, op: Op[T]) -> T:
        assert isinstance(op, StoreOperation)  # made by the model
        self._store.now = max(self._store.now, self._clock())
        answer: Any = op.work()
        return answer  # type: ignore[no-any-return]  # the operation's type names its reply

    def submit(self, op: Op[T]) -> Awaitable[T]:
        async def answer() -> T:
            return self.apply(op)

        return answer()
