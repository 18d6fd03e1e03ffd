"""Random histories of a job store for property tests: a few queues, labels and keys, so that jobs often conflict, at
times that stand still and jump.
"""

from __future__ import annotations

from typing import Any

import msgspec
from lockstep import LEASE, OOPS, SECOND, Apply, Dice, Lockstep

from backstay.job.exchange import Claim, ExchangeCommand, Renewal
from backstay.job.model import AGEING, FINAL, Concurrency, Finish, NewJob, StartRate, Tick, Unique

KEYS = (None,) * 6 + ("k1", "k2", "k3")
CONCURRENCY = (None,) * 6 + (("c1", 1), ("c1", 1), ("c2", 2))
RATES = (None,) * 8 + (StartRate("r1", SECOND, 1), StartRate("r2", 3 * SECOND, 2))
QUEUE_RATES = (None, StartRate("q", SECOND, 1), StartRate("q", 5 * SECOND, 2))
QUEUE_ORDERS = ((("q1", "q2"),), (("q1",), ("q2",)), (("q2",), ("q1",)), (("q1",),), (("q2",),))


class JobLockstep(Lockstep):
    """Histories of jobs without runs."""

    actions = (
        ["exchange"] * 14
        + ["enqueue"] * 10
        + ["cancel"] * 2
        + ["trigger"] * 3
        + ["renew", "reap", "again", "lower", "late", "pause", "limit", "tick", "prune", "purge", "twice", "watch"]
        + ["log"]
    )

    def __init__(self, apply: Apply, now: int, space: int) -> None:
        super().__init__(apply, now, space)
        self._seq = 0
        #: The last exchange of each worker.
        self._sent: dict[str, ExchangeCommand] = {}
        self._known: list[NewJob] = []

    def _enqueue(self, dice: Dice) -> None:
        self._both("enqueue", 0, [self._new(dice) for _ in range(dice.pick((1, 1, 2, 3)))])

    def _twice(self, dice: Dice) -> None:
        """Enqueue an existing job again, together with a new one."""
        if known := [new for new in self._known if new.id in self.model._rows]:
            self._both("enqueue", 0, [dice.pick(known), self._new(dice)])

    def _new(self, dice: Dice, **fixed: Any) -> NewJob:
        """Return a random job; `fixed` fields are not random."""
        key, concurrency = dice.pick(KEYS), dice.pick(CONCURRENCY)
        own = fixed.get("chain")  # a job that waits for its own chain would never start
        chains = [new.id for new in self._known if not new.chain and new.id != own and self._is_whole(new.id)]
        fields: dict[str, Any] = {
            "queue": dice.pick(("q1", "q1", "q2")),
            "labels": dice.pick(((), (), (), ("gpu",), ("eu", "gpu"))),
            "priority": dice.pick((0, 0, 0, 1, -1)),
            "delay": dice.pick((0, 0, 0, SECOND, LEASE)),
            "retries": dice.pick((0, 1, 2)),
            "after": tuple(dice.some(chains, 2)) if dice.pick((1, 0)) else (),
            "when": dice.pick(("all_success", "all_success", "all_done")),
            "rate": dice.pick(RATES),
            "keep": dice.pick((1000 * AGEING, LEASE)),
        }
        if concurrency:
            # Without a rate: a store may reserve rate capacity for a job whose concurrency key proves to be full, and
            # free it only for the next claim.
            fields |= {"concurrency": Concurrency(*concurrency), "rate": None, "queue": "q1"}
        # Not with blockers: the contract leaves open whether a job that is blocked again gets its unique key back.
        if key and not fields["after"]:
            scope = dice.pick(("until_start", "until_done", "window"))
            fields["unique"] = Unique(f"{key}{scope}", scope, 2 * LEASE if scope == "window" else 0)
        # Each store reports jobs of a concurrency key as ready at its own time, so their type tells them apart.
        type_ = "keyed" if concurrency else dice.pick(("a", "b"))
        new = NewJob(**{"id": next(self._ids), "type": type_, "args": b"\x00x", **fields, **fixed})
        self._known.append(new)
        return new

    def _is_whole(self, id_: str) -> bool:
        """Whether no job of this chain was deleted."""
        row = self.model._rows.get(id_)
        return row is not None and (not row.followed_by or self._is_whole(row.followed_by))

    def _exchange(self, dice: Dice) -> None:
        running = [row for row in self.model._rows.values() if row.state == "running"]
        if any(row.until <= self.now for row in running) and dice.pick((1, 0)):
            # The contract leaves open whether a finish under an expired, not yet reaped lease still counts.
            self._both("reap", 0)
        running = [row for row in running if row.until > self.now]
        finishes = tuple(self._finish(dice, row) for row in dice.some(running, 3))
        claim = Claim(
            want=dice.pick((2, 1, 0, 3, 20)),
            queues=dice.pick(QUEUE_ORDERS),
            labels=dice.pick(((), ("gpu",), ("eu", "gpu"))),
            lease=dice.pick((LEASE, LEASE, 3 * SECOND)),
        )
        self._send(dice.pick(("w1", "w2")), finishes, claim)

    def _finish(self, dice: Dice, row: Any) -> Finish:
        kind = dice.pick(("complete", "complete", "retry", "fail", "snooze", "release", "cancel"))
        fence = row.fence if dice.pick((1, 1, 1, 1, 1, 0)) else 1
        fields: dict[str, Any] = {"delay": dice.pick((0, SECOND))} if kind in ("retry", "snooze") else {}
        if kind in ("retry", "fail"):
            fields["error"] = OOPS
        if kind == "complete":
            fields["result"] = dice.pick((b"r", b"", b"\x00\xff"))
            if fence == row.fence and dice.pick((0, 0, 0, 1)):
                fields["next"] = self._new(dice, chain=row.chain)
        return Finish(job=row.new.id, fence=fence, kind=kind, **fields)

    def _send(self, worker: str, finishes: tuple[Finish, ...], claim: Claim, not_after: int = LEASE) -> None:
        self._seq += 1
        self._sent[worker] = ExchangeCommand(
            shard=0,
            worker=worker,
            incarnation="i",
            channel=0,
            seq=self._seq,
            finishes=finishes,
            claim=claim,
            not_after=self.now + not_after,
        )
        self._both("exchange", self._sent[worker])

    def _late(self, dice: Dice) -> None:
        """Send an exchange past its deadline."""
        self._both("reap", 0)
        self._send(dice.pick(("w1", "w2")), (), Claim(want=5, queues=QUEUE_ORDERS[0]), -1)

    def _again(self, dice: Dice) -> None:
        """Send the last exchange again, as after a lost reply. Expired leases are reaped first, since a store may reap
        before it replies.
        """
        if sent := self._sent.get(dice.pick(("w1", "w2"))):
            self._both("reap", 0)
            if self._is_remembered(sent):
                self._both("exchange", msgspec.structs.replace(sent, not_after=self.now + LEASE), lenient=True)

    def _lower(self, dice: Dice) -> None:
        """Send an exchange whose number is below the last one of its channel."""
        self._both("reap", 0)
        if (sent := self._sent.get(dice.pick(("w1", "w2")))) and self._is_remembered(sent):
            self._both("exchange", msgspec.structs.replace(sent, seq=sent.seq - 1, not_after=self.now + LEASE))

    def _is_remembered(self, sent: ExchangeCommand) -> bool:
        state = self.model._channels.get((sent.worker, sent.incarnation, sent.channel))
        return state is not None and state.keep_until > self.now and state.seq == sent.seq

    def _renew(self, dice: Dice) -> None:
        rows = [row for row in self.model._rows.values() if row.fence]
        leases = [Renewal(row.new.id, row.fence, dice.pick((-1.0, 0.5))) for row in dice.some(rows, 3)]
        self._both("renew", 0, dice.pick(("w1", "w2")), LEASE, leases)

    def _reap(self, dice: Dice) -> None:
        self._both("reap", 0, dice.pick((1000, 1, 2)))

    def _cancel(self, dice: Dice) -> None:
        if self._known:
            self._both("cancel", dice.pick(self._known).id, "why not")

    def _trigger(self, dice: Dice) -> None:
        # The contract leaves open whether a retried job gets its unique key back.
        if known := [new for new in self._known if new.unique is None]:
            self._both("trigger", dice.pick(known).id)

    def _pause(self, dice: Dice) -> None:
        self._both("pause", dice.pick(("q1", "q2")), paused=dice.pick((True, False)))

    def _limit(self, dice: Dice) -> None:
        self._both("limit_queue", "q2", dice.pick(QUEUE_RATES))

    def _tick(self, dice: Dice) -> None:
        at = self.now - self.now % (10 * SECOND) + dice.pick((0, 10 * SECOND))
        self._both("tick", Tick(name=dice.pick(("t1", "t2")), at=at, job=self._new(dice, after=())))
        self._both("ticks", ["t1", "t2"], lenient=True)

    def _prune(self, dice: Dice) -> None:
        self._both("prune", 0, 1000)

    def _purge(self, dice: Dice) -> None:
        self._both("purge", dice.pick(FINAL), queue=dice.pick(("q1", "")))

    def _watch(self, dice: Dice) -> None:
        if known := [new for new in self._known if new.id in self.model._rows]:
            self._both("watch", dice.pick(known).id, chain=False)

    def _log(self, dice: Dice) -> None:
        rows = [row for row in self.model._rows.values() if row.fence]
        for row in dice.some(rows, 1):
            first = dice.pick((1, 2))
            self._both("append_log", row.new.id, row.fence, [(self.now, "out", f"{first}"), (7, "out", "x")], first)
            self._both("read_log", row.new.id)
            self._both("put_outputs", row.new.id, row.fence, {dice.pick(("a", "b")): "1"})
            self._both("get_outputs", row.new.id)


class PlainJobLockstep(JobLockstep):
    """Histories in which most jobs have no rare options and most exchanges finish no job: stores have fast paths for
    these.
    """

    actions = ["enqueue", "exchange"] * 10 + ["renew", "reap", "again", "lower", "late", "pause", "cancel", "trigger"]

    def _new(self, dice: Dice, **fixed: Any) -> NewJob:
        if dice.pick((0,) * 19 + (1,)):
            return super()._new(dice, **fixed)
        new = NewJob(
            id=next(self._ids),
            type=dice.pick(("a", "b")),
            args=b"\x00x",
            queue=dice.pick(("q1",) * 9 + ("q2",)),
            labels=dice.pick(((),) * 19 + (("gpu",),)),
            priority=dice.pick((0, 0, 0, 1)),
            delay=dice.pick((0, 0, 0, 0, SECOND)),
            retries=dice.pick((0, 1, 2)),
            **{name: value for name, value in fixed.items() if name != "after"},
        )
        self._known.append(new)
        return new

    def _exchange(self, dice: Dice) -> None:
        if dice.pick((0, 0, 1)):
            super()._exchange(dice)
            return
        claim = Claim(
            want=dice.pick((2, 1, 3, 20)),
            queues=dice.pick((*QUEUE_ORDERS[:2], *QUEUE_ORDERS[3:])),
            labels=dice.pick(((), (), ("gpu",))),
            lease=dice.pick((LEASE, 3 * SECOND)),
        )
        self._send(dice.pick(("w1", "w2")), (), claim)
