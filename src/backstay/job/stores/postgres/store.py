"""Jobs on PostgreSQL: one statement or a few for each verb, each verb a talk
(`backstay.engine.postgres.pipeline.pipeline`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from backstay.engine.base import Micros, Op, StoreOperation
from backstay.job.exchange import Delivery, ExchangeCommand, ExchangeReply, Renewal, RenewalVerdict
from backstay.job.model import Enqueued, NewJob
from backstay.job.stores.postgres.artifacts import Artifacts
from backstay.job.stores.postgres.cron import Cron
from backstay.job.stores.postgres.definitions import Definitions, Tokens
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.enqueue import Enqueueing
from backstay.job.stores.postgres.exchange import Exchanges
from backstay.job.stores.postgres.logs import Logs
from backstay.job.stores.postgres.pruner import Pruner
from backstay.job.stores.postgres.queries import Queries
from backstay.job.stores.postgres.reap import CAUSE, due_late, reap_late
from backstay.job.stores.postgres.rows import AWAITED, Part, inside
from backstay.job.stores.postgres.runs import Runs
from backstay.job.stores.postgres.statements import Floats, Numbers, Texts
from backstay.job.stores.postgres.workers import Workers


class PostgresStore(Queries, Runs, Logs, Artifacts, Workers, Cron, Pruner, Definitions, Tokens):
    """The store contract (`store.py`) on PostgreSQL's tables. `prefix` is that of the hub's channels."""

    shards = 1
    #: A NOTIFY wakes every listener there is.
    announces, announcement_gap = True, 0.002
    channels_per_shard = 2
    splits_claim_and_ack = True
    claims_consume_hints = True
    read_handoff = None

    def __init__(self, namespace: str, prefix: str) -> None:
        super().__init__(namespace, prefix)
        self._enqueueing = Enqueueing(namespace, prefix)
        self._exchanges = Exchanges(namespace, prefix, self._enqueueing)

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, announce: bool = False) -> Op[list[Enqueued]]:
        return StoreOperation(partial(self._enqueueing.enqueue, jobs, announce=announce))

    def enqueue_among(self, jobs: Sequence[NewJob]) -> StoreOperation[list[Enqueued]]:
        """The same in a transaction that somebody else ends, nobody knows when: what its jobs wait for can be claimed
        and renewed meanwhile, and only cannot end. Have `await_chains` done before, by itself.
        """
        return StoreOperation(partial(self._enqueueing.enqueue, jobs, lasts=True))

    def await_chains(self, chains: Iterable[str]) -> Op[None]:
        """Whoever ends these chains is to look for others that wait for them."""
        return self.one("after_await", {"chains": Texts(sorted(set(chains))), "flag": AWAITED}, holding="after_grip")

    def exchange(self, command: ExchangeCommand) -> Op[ExchangeReply]:
        return StoreOperation(partial(self._exchanges.exchange, command), f"exchange:{command.channel}")

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        wanted = sorted(leases, key=lambda renewal: renewal.job)
        values = {
            "worker": worker,
            "lease": lease,
            "ids": Texts([r.job for r in wanted]),
            "fences": Numbers([r.fence for r in wanted]),
            "progress": Floats([r.progress for r in wanted]),
        }

        def answer(rows: list[tuple[str, int, bool, bytes]]) -> list[RenewalVerdict]:
            held = {(id_, fence): cancel for id_, fence, cancel, _ in rows}
            for id_, _, _, place in rows:
                self._exchanges.ctid_cache.moved(id_, place)
            verdicts: dict[bool | None, RenewalVerdict] = {None: "lost", False: "ok", True: "cancelled"}
            return [verdicts[held.get((r.job, r.fence))] for r in leases]

        return self.one("renew", values, answer, holding="renew_hold")

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        def work(ends: Ends) -> Part:
            nobody = {"worker": "", "incarnation": "", "lane": 0}
            mine = {"space": self.namespace, "now": ends.now, "limit": limit, **nobody}
            reaped, ripe = yield inside(("reap", {**mine, **CAUSE}), ("due", mine))
            for id_, type_, _, pending in reaped:
                if pending:
                    ends.lost(id_)
                    ends.ready[id_] = type_
            yield from reap_late(ends, sum(not pending for *_, pending in reaped))
            ends.ready.update((id_, type_) for id_, type_, pending in ripe if pending)
            yield from due_late(ends, sum(not pending for *_, pending in ripe))
            return ends.counts()

        return self.act(work)

    # ── one shard: nothing ever waits to be told elsewhere ──

    def read_outbox(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        return StoreOperation(_nothing([]), reads=True)

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        def work(ends: Ends) -> Part:
            yield from ends.delivered([(d.job, d.chain, d.result) for d in deliveries])
            return ends.counts()

        return self.act(work)

    def ack_deliveries(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        return StoreOperation(_nothing(None), reads=True)


def _nothing(answer: Any) -> Callable[..., Part]:
    """A talk without a round."""

    def talk(*_: object) -> Part:
        yield from ()
        return answer

    return talk
