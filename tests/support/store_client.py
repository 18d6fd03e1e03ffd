"""Send operations to a job store from a test, and act as a worker that claims and finishes jobs."""

from __future__ import annotations

import itertools
from typing import Any

from backstay.job.exchange import Claim, ExchangeCommand
from backstay.job.ids import Ids
from backstay.job.model import Finish, NewJob

SECOND = 1_000_000


class StoreClient:
    """A blocking client of a job store, and one channel of a worker. `want`: the jobs that an exchange claims if the
    test passes no number.
    """

    #: The lease of claims, in µs.
    lease = 30 * SECOND

    def __init__(self, engine: Any, store: Any, *, name: str = "w", channel: int = 0, want: int = 1) -> None:
        self.engine = engine
        self.store = store
        self.name = name
        self.channel = channel
        self.want = want
        self.ids = Ids()
        #: The numbers of the exchanges.
        self.seqs = itertools.count(1)

    def apply(self, verb: str, *args: Any, **named: Any) -> Any:
        """Apply an operation of the store: `client.apply("cancel", job, "reason")`."""
        return self.engine.apply(getattr(self.store, verb)(*args, **named))

    def job(self, shard: int = 0, **fields: Any) -> NewJob:
        return NewJob(**{"id": self.ids.new(shard), "type": "work", **fields})

    def add(self, shard: int = 0, **fields: Any) -> str:
        """Enqueue one job and return its id, or that of the job that has its unique key."""
        (enqueued,) = self.apply("enqueue", shard, [self.job(shard, **fields)])
        return str(enqueued.id)

    def not_after(self) -> int:
        """Return the deadline of a command, in µs of the engine's clock."""
        return int(self.engine.now()) + 60 * SECOND

    def command(
        self,
        finishes: Any = (),
        want: int | None = None,
        *,
        shard: int = 0,
        seq: int = 0,
        waiting_seq: int = 0,
        **claim: Any,
    ) -> ExchangeCommand:
        """Build the next exchange of this channel, or one with the number `seq`. `claim`: fields of the claim."""
        return ExchangeCommand(
            shard=shard,
            worker=self.name,
            incarnation="i",
            channel=self.channel,
            seq=seq or next(self.seqs),
            finishes=tuple(finishes),
            claim=Claim(**{"want": self.want if want is None else want, "lease": self.lease, **claim}),
            not_after=self.not_after(),
            waiting_seq=waiting_seq,
        )

    def exchange(self, finishes: Any = (), want: int | None = None, **options: Any) -> Any:
        return self.apply("exchange", self.command(finishes, want, **options))

    def claim(self, want: int = 1, **options: Any) -> Any:
        """Claim up to `want` jobs and return them."""
        return self.exchange(want=want, **options).jobs

    def finish(self, job: Any, kind: Any = "complete", **fields: Any) -> Any:
        """Finish a claimed job without claiming another, and return the reply."""
        return self.exchange([finish(job, kind, **fields)], 0, shard=int(job.id.partition("-")[0], 16))


def finish(job: Any, kind: Any = "complete", **fields: Any) -> Finish:
    """Return the finish of a claimed job, for an exchange."""
    return Finish(job=job.id, fence=job.fence, kind=kind, **fields)
