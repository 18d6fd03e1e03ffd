"""Random histories of a job store for property tests: a few queues, labels and keys that meet all the time, at times
that stand still and jump. `Lockstep` plays a history on the model and on a real store at once and demands that they
say the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
from hypothesis import strategies as st

from backstay.job.model import (
    AGEING,
    FINAL,
    Claim,
    Claimed,
    Concurrency,
    Enqueued,
    ExchangeCommand,
    ExchangeReply,
    Failure,
    Finish,
    Job,
    NewJob,
    Rate,
    Renewal,
    Tick,
    Unique,
)
from support.job_model.store import ModelEngine, ModelStore

SECOND = 1_000_000
LEASE = 10 * SECOND
OOPS = Failure("Oops", "it broke", "trace", attempt=1, at=7)

TIMES = (0, 0, 0, 1, 1, SECOND - 1, SECOND, SECOND, SECOND + 1, 3 * SECOND, LEASE - 1, LEASE, LEASE + 1, 2 * LEASE)
FAR = (*TIMES, AGEING - 1, AGEING, AGEING + 1)
KEYS = (None,) * 6 + ("k1", "k2", "k3")
CONCURRENCY = (None,) * 6 + (("c1", 1), ("c1", 1), ("c2", 2))
RATES = (None,) * 8 + (Rate("r1", SECOND, 1), Rate("r2", 3 * SECOND, 2))
QUEUE_RATES = (None, Rate("q", SECOND, 1), Rate("q", 5 * SECOND, 2))
WISHES = ((("q1", "q2"),), (("q1",), ("q2",)), (("q2",), ("q1",)), (("q1",),), (("q2",),))
#: Bytes for one deed: fewer, and most of its choices would be the first.
DRAWS = 24
#: How often each happens.
DEEDS = (
    ["exchange"] * 14
    + ["enqueue"] * 10
    + ["cancel"] * 2
    + ["trigger"] * 3
    + ["renew", "reap", "again", "lower", "late", "pause", "limit", "tick", "prune", "purge", "twice", "watch", "log"]
)


class Dice:
    """Choices out of bytes; when they are used up, always the first."""

    def __init__(self, thrown: bytes) -> None:
        self._thrown = iter(thrown)

    def pick(self, options: Any) -> Any:
        options = tuple(options)
        return options[next(self._thrown, 0) % len(options)]

    def some(self, options: Any, most: int) -> list[Any]:
        options = list(options)
        count = min(most, len(options), self.pick(range(most + 1)))
        return [options.pop(next(self._thrown, 0) % len(options)) for _ in range(count)]


scripts = st.lists(st.binary(min_size=DRAWS, max_size=DRAWS), min_size=8, max_size=40)


class Lockstep:
    """One history on both sides. `other(verb, args, named)` asks the real store, whose time is `self.now`."""

    deeds = DEEDS

    def __init__(self, other: Any, now: int, space: int) -> None:
        self.now = now
        self.other = other
        self.model = ModelStore()
        self._engine = ModelEngine(self.model, lambda: self.now)
        self._ids = (f"0-{space:08x}{nth:04x}" for nth in itertools.count())
        self._seq = 0
        self._sent: dict[str, ExchangeCommand] = {}
        self._known: list[NewJob] = []
        #: The other side's fences, by the model's.
        self._fences: dict[int, int] = {}
        self.history: list[str] = []

    def play(self, script: list[bytes]) -> None:
        for thrown in script:
            dice = Dice(thrown)
            getattr(self, f"_{dice.pick(self.deeds)}")(dice)
            self._compare()
            self.now += dice.pick(FAR if dice.pick((0, 0, 0, 1)) else TIMES)
        self._compare_queues()

    # ── what happens ──

    def _enqueue(self, dice: Dice) -> None:
        self._both("enqueue", 0, [self._new(dice) for _ in range(dice.pick((1, 1, 2, 3)))])

    def _twice(self, dice: Dice) -> None:
        if known := [new for new in self._known if new.id in self.model._rows]:
            self._both("enqueue", 0, [dice.pick(known), self._new(dice)])

    def _new(self, dice: Dice, **fixed: Any) -> NewJob:
        key, concurrency = dice.pick(KEYS), dice.pick(CONCURRENCY)
        own = fixed.get("chain")  # which waits for itself for ever
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
            # A rate's room that a job turns out not to need, because its key is full, may be used by the next claim.
            fields |= {"concurrency": Concurrency(*concurrency), "rate": None, "queue": "q1"}
        if key and not fields["after"]:  # whether who waits again has its key again is not promised
            scope = dice.pick(("until_start", "until_done", "window"))
            fields["unique"] = Unique(f"{key}{scope}", scope, 2 * LEASE if scope == "window" else 0)
        # Each store unparks jobs of a concurrency key in its own time: compare them by type.
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
            # Whether a finish under an expired lease that was not reaped still counts is up to the store.
            self._both("reap", 0)
        running = [row for row in running if row.until > self.now]
        finishes = tuple(self._finish(dice, row) for row in dice.some(running, 3))
        claim = Claim(
            want=dice.pick((2, 1, 0, 3, 20)),
            queues=dice.pick(WISHES),
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
        self._both("reap", 0)
        self._send(dice.pick(("w1", "w2")), (), Claim(want=5, queues=WISHES[0]), -1)

    def _again(self, dice: Dice) -> None:
        """A reply was lost. What has run out is reaped first: a store may, before it answers."""
        if sent := self._sent.get(dice.pick(("w1", "w2"))):
            self._both("reap", 0)
            if self._is_remembered(sent):
                self._both("exchange", msgspec.structs.replace(sent, not_after=self.now + LEASE), lenient=True)

    def _lower(self, dice: Dice) -> None:
        self._both("reap", 0)
        if (sent := self._sent.get(dice.pick(("w1", "w2")))) and self._is_remembered(sent):
            self._both("exchange", msgspec.structs.replace(sent, seq=sent.seq - 1, not_after=self.now + LEASE))

    def _is_remembered(self, sent: ExchangeCommand) -> bool:
        lane = self.model._lanes.get((sent.worker, sent.incarnation, sent.channel))
        return lane is not None and lane.keep_until > self.now and lane.seq == sent.seq

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
        # Whether a job that is tried again gets its key back is not promised.
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

    # ── both sides ──

    def _both(self, verb: str, *args: Any, lenient: bool = False, **named: Any) -> Any:
        self.history.append(f"{self.now}: {verb} {', '.join(map(shown, args))} {named or ''}")
        ours = self._engine.apply(getattr(self.model, verb)(*args, **named))
        self.history.append(f"    -> {shown(ours)}")
        theirs = self.other(self.now, verb, tuple(self._translated(arg) for arg in args), named)
        if verb == "exchange":
            for mine, their in zip(ours.jobs, theirs.jobs, strict=False):
                self._fences[mine.fence] = their.fence
            if lenient or _comes_in_time(ours, theirs, args[0].claim.want):
                ours, theirs = (msgspec.structs.replace(reply, next_in=None) for reply in (ours, theirs))
                lenient = False
        if not lenient:
            self._demand(self._plain(theirs), self._plain(ours, translate=True))
        return ours

    def _translated(self, arg: Any) -> Any:
        """Our fences are not theirs."""
        if isinstance(arg, ExchangeCommand):
            finishes = tuple(
                msgspec.structs.replace(finish, fence=self._fence(finish.fence)) for finish in arg.finishes
            )
            return msgspec.structs.replace(arg, finishes=finishes)
        if isinstance(arg, list) and arg and isinstance(arg[0], Renewal):
            return [Renewal(lease.job, self._fence(lease.fence), lease.progress) for lease in arg]
        return self._fences.get(arg, arg) if isinstance(arg, int) else arg

    def _fence(self, fence: int) -> int:
        return self._fences.get(fence, fence)

    def _plain(self, answer: Any, *, translate: bool = False) -> Any:
        """What must be equal of an answer."""
        match answer:
            case ExchangeReply():
                fields = msgspec.structs.asdict(answer)
                fields["jobs"] = {nth: self._plain(job, translate=translate) for nth, job in enumerate(answer.jobs)}
                fields["ready"] = _unkeyed(answer.ready)
                return fields
            case Claimed():
                fields = msgspec.structs.asdict(answer)
                if translate:
                    fields["fence"] = self._fence(answer.fence)
                return fields
            case Job():
                return self._plain_job(answer, translate=translate)
            case {**counts} if answer and all(isinstance(count, int) for count in counts.values()):
                return _unkeyed(answer)
            case [Enqueued(), *_] | None | [*_]:
                return answer
            case _:
                return answer

    def _plain_job(self, job: Job, *, translate: bool) -> dict[str, Any]:
        fields = msgspec.structs.asdict(job)
        fields["waits_for"] = sorted(job.waits_for) if job.state == "blocked" else ()
        fields["after"] = sorted(job.after)
        error = job.error if job.state == "failed" else None
        fields["error"] = error and (error if error.kind == OOPS.kind else "some")
        if job.state != "running":
            for name in ("fence", "worker", "lease_until", "started", "progress", "cancel_requested"):
                del fields[name]
        elif translate:
            fields["fence"] = self._fence(job.fence)
        return fields

    def _compare(self) -> None:
        """After every deed."""
        self._compare_jobs()

    def _compare_jobs(self) -> None:
        ours = self._engine.apply(self.model.list_jobs(limit=1000))
        theirs = self.other(self.now, "list_jobs", (), {"limit": 1000})
        self._demand(
            {job.id: self._plain(job) for job in theirs}, {job.id: self._plain(job, translate=True) for job in ours}
        )

    def _compare_queues(self) -> None:
        ours = self._engine.apply(self.model.queues())
        theirs = self.other(self.now, "queues", (), {})
        # A queue without jobs may be listed or not; with several priorities, `oldest_due` is that of a head.
        full, others = (
            {queue.name: msgspec.structs.replace(queue, oldest_due=0) for queue in queues if _jobs(queue)}
            for queues in (ours, theirs)
        )
        self._demand(others, full)

    def _demand(self, theirs: Any, ours: Any) -> None:
        if theirs != ours:
            said = "\n".join(_differences(theirs, ours, ""))
            raise AssertionError("\n".join([f"the model and the store differ:\n{said}\nafter", *self.history]))


class PlainLockstep(Lockstep):
    """Most jobs have nothing rare, and workers often bring nothing: what stores have short ways for."""

    deeds = ["enqueue", "exchange"] * 10 + ["renew", "reap", "again", "lower", "late", "pause", "cancel", "trigger"]

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
            queues=dice.pick((*WISHES[:2], *WISHES[3:])),
            labels=dice.pick(((), (), ("gpu",))),
            lease=dice.pick((LEASE, 3 * SECOND)),
        )
        self._send(dice.pick(("w1", "w2")), (), claim)


def shown(value: Any) -> str:
    """A short form without the fields that every job has."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(shown, value))}]"
    if not isinstance(value, msgspec.Struct):
        return repr(value)
    told = [
        f"{field.name}={shown(getattr(value, field.name))}"
        for field in msgspec.structs.fields(value)
        if getattr(value, field.name) != field.default and field.name not in ("args", "keep_failed", "meta")
    ]
    return f"{type(value).__name__}({', '.join(told)})"


def _differences(theirs: Any, ours: Any, at: str) -> Iterator[str]:
    if isinstance(theirs, dict) and isinstance(ours, dict):
        for key in {**theirs, **ours}:
            yield from _differences(theirs.get(key, "nothing"), ours.get(key, "nothing"), f"{at} {key}")
    elif theirs != ours:
        yield f"{at}: the store says {theirs!r}, the model {ours!r}"


def _comes_in_time(ours: ExchangeReply, theirs: ExchangeReply, want: int) -> bool:
    """A worker may be asked back too early, never too late; one that got all it wanted comes back anyway."""
    if ours.next_in is None or len(ours.jobs) >= want:
        return True
    return theirs.next_in is not None and theirs.next_in <= ours.next_in


def _jobs(queue: Any) -> int:
    return sum(getattr(queue, state) for state in ("scheduled", "blocked", "pending", "running", *FINAL))


def _unkeyed(ready: dict[str, int]) -> dict[str, int]:
    return {type_: count for type_, count in ready.items() if type_ != "keyed"}
