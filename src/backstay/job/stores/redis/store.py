"""Jobs in Redis: shards of keys that share a slot, one script for each verb.

A verb is one script in one shard, atomic there. Those that say so on other shards, too (`elsewhere.py`), are a
conversation of several, each safe to repeat.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache, partial
from struct import Struct
from typing import Any, Final, NamedTuple

import msgspec

from backstay.engine.base import UNREADABLE, Micros, Op, Within
from backstay.engine.redis.coalescing import Gathered
from backstay.engine.redis.encoder import Ready, Talk
from backstay.hub.protocol import new_hint_id, write_scheduled
from backstay.job.model import (
    Alike,
    Claimed,
    Delivery,
    Enqueued,
    Failure,
    Finish,
    FinishKind,
    Handed,
    NewJob,
    Renewal,
    RenewalVerdict,
    State,
    StepCommand,
    StepReply,
    Verdict,
    each_kind,
)
from backstay.job.store import ReadHanded
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import ready
from backstay.job.stores.redis.cross_shard import delivery, outcome, unknown, wire
from backstay.job.stores.redis.runs import Runs

_FINISH = Struct(">cQQB")
_MORE = Struct(">IBI")
_RENEWAL = Struct(">Qd")
#: What `_hand_over.lua` sends: seq, now, until, sizes of lane, id and record; then these and the doc.
_HANDED = Struct(">QQQHHH")
_KINDS: Final[dict[FinishKind, bytes]] = {
    "complete": b"c",
    "fail": b"f",
    "retry": b"t",
    "snooze": b"z",
    "release": b"l",
    "cancel": b"x",
    "skip": b"k",
}
_RENEWALS: Final[dict[int, RenewalVerdict]] = {ord("o"): "ok", ord("c"): "cancelled", ord("l"): "lost"}
_VERDICTS: Final[dict[str, Verdict]] = {"o": "ok", "s": "stale"}
#: What is said instead of verdicts when nothing was done.
_TURNED_AWAY: Final = frozenset(("stale", "expired", "denied"))
_HANDED_OVER: Final = "handed"
#: A worker's name is kept in the record of each job that it runs.
LONGEST_WORKER = 255

_encode = msgspec.msgpack.Encoder().encode
_pack_finish, _pack_renewal = _FINISH.pack, _RENEWAL.pack


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What `step.lua` answers before jobs and the rest."""

    now: Micros
    verdicts: str
    next_in: Micros = -1
    until: Micros = 0
    ready: tuple[str | int, ...] = ()
    jobs: int = 0
    upstreams: tuple[int, ...] = ()
    outbox: int = 0
    unregistered: int = 0
    results: int = 0


_heads = msgspec.msgpack.Decoder(_Head)


class _Plain(NamedTuple):
    """A job that depends on nothing, as `enqueue.lua` takes it."""

    id: str
    words: list[bytes]
    #: Its type, if workers are told of it by the step that makes it.
    told: list[str]

    def made(self, reply: list[bytes]) -> list[Enqueued]:
        return [Enqueued(self.id, _BY_LETTER[reply[0][0]])]


def _alike(words: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Plain jobs, as `enqueue.lua` takes them: those of one record are said with that record once."""
    records = words[1::4]
    if records.count(records[0]) < len(records):
        return b"1", words
    told = [records[0]] * (2 * len(records) + 1)
    told[1::2], told[2::2] = words[::4], words[2::4]
    return b"2", told


class RedisStore(Runs):
    """A namespace's jobs, in `shards` shards. Holds nothing but what it was told: processes share nothing here."""

    lanes = 2
    parts = False

    # ── work ──

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, tell: bool = False) -> Op[list[Enqueued]]:
        told = [job.type for job in each_kind(jobs) if job.starts_at_once] if tell and self.announces else []
        if told and isinstance(jobs, Alike):
            told *= len(jobs)
        if len(jobs) == 1 and not jobs[0].after:
            words, plain = self._new(shard, jobs, {})
            if plain:
                return self._enqueue_plain(shard, _Plain(jobs[0].id, words, told))

        def talk(clock: bytes) -> Talk:
            if not jobs:
                return []
            outcomes = yield from self._outcomes(clock, shard, jobs, strict=True)
            parts, plain = self._new(shard, jobs, outcomes)
            form, parts = _alike(parts) if plain else (b"0", parts)
            flags = form + self._announcement(told)
            states, *others = yield from self._call("enqueue", shard, clock, self._count, self._prefix, flags, *parts)
            if not states:
                raise unknown(others[0].decode())
            yield from self._register(clock, shard, _waiting(jobs, outcomes))
            return _enqueued(jobs, states, others)

        return self._within(shard, talk)

    def _enqueue_plain(self, shard: int, job: _Plain) -> Op[list[Enqueued]]:
        """One job that depends on nothing: such may go together, for nothing can be wrong with one of them alone."""
        key = self._keys[self._checked(shard)]

        def alone(clock: bytes) -> Talk:
            talk: Talk = self._together(shard, [job]).work(clock)
            return (yield from talk)[0]

        return Gathered(
            alone,
            key=key,
            item=job,
            together=partial(self._together, shard),
            request=(lambda: self._packed("enqueue", shard, b"", *self._plain_words([job]))) if self._agreed else None,
            read=job.made,
        )

    def _together(self, shard: int, jobs: Sequence[_Plain]) -> Within[list[list[Enqueued]]]:
        def talk(clock: bytes) -> Talk:
            (states,) = yield from self._call("enqueue", shard, clock, *self._plain_words(jobs))
            return [[Enqueued(job.id, _BY_LETTER[state])] for job, state in zip(jobs, states, strict=True)]

        return self._within(shard, talk)

    def _plain_words(self, jobs: Sequence[_Plain]) -> list[bytes]:
        said = self._announcement([kind for job in jobs for kind in job.told])
        form, words = _alike([word for job in jobs for word in job.words])
        return [self._count, self._prefix, form + said, *words]

    def _announcement(self, types: list[str]) -> bytes:
        """For each type a counter, how many may come, and the message that calls them."""
        if not types:
            return b""
        said: list[str] = []
        for kind, count in Counter(types).items() if len(types) > 1 else ((types[0], 1),):
            hint = new_hint_id()
            said += (self._hint_keys % hint, str(count), write_scheduled(hint, kind))
        return _encode(said)

    def step(self, command: StepCommand) -> Op[StepReply]:
        shard = command.shard
        following = [job for finish in command.finishes for job in _made_by(finish)]

        def talk(clock: bytes) -> Talk:
            outcomes: dict[str, bytes] = {}
            if following:
                outcomes = yield from self._outcomes(clock, shard, following, strict=False)
            reply = yield from self._call("step", shard, clock, *self._step_words(command, outcomes))
            head = _heads.decode(reply[0])
            if head.verdicts not in _TURNED_AWAY:
                if following:
                    yield from self._register(clock, shard, _waiting(following, outcomes))
                if head.unregistered:
                    stop = len(reply) - 2 * head.results
                    yield from self._register(clock, shard, reply[stop - head.unregistered : stop])
            return _step_reply(head, reply)

        op = self._within(shard, talk)
        if following or self.shards > 1 or not self._agreed:
            return op

        def request() -> bytes:
            return self._packed("step", shard, b"", *self._step_words(command, {}))

        return Ready(op.work, op.key, request=request, read=_stepped)

    def _step_words(self, command: StepCommand, outcomes: dict[str, bytes]) -> list[bytes]:
        claim = command.claim
        options = _encode(
            (
                command.not_after,
                f"{command.worker}\0{command.incarnation}\0{command.lane}",
                command.seq,
                claim.lease,
                _short(command.worker),
                claim.want,
                claim.queues,
                claim.labels,
                [self._hint_keys % hint for hint in claim.hints],
                command.unheard,
                claim.stand,
            )
        )
        return [self._count, self._prefix, options, *self._finishes(command.shard, command.finishes, outcomes)]

    def _finishes(self, shard: int, finishes: Sequence[Finish], outcomes: dict[str, bytes]) -> list[bytes]:
        parts: list[bytes] = []
        for finish in finishes:
            error, following = finish.error, finish.next
            payload = finish.result if finish.kind == "complete" else b"" if error is None else _encode(error)
            more = finish.kind == "complete" and bool(following or finish.adds or finish.outputs)
            head = _pack_finish(_KINDS[finish.kind], finish.fence, finish.delay, more)
            if not more:
                parts += (finish.job.encode(), head, payload)
                continue
            head += _MORE.pack(len(finish.adds), following is not None, len(finish.outputs))
            parts += (finish.job.encode(), head, payload, *self._new(shard, _made_by(finish), outcomes)[0])
            parts += [part.encode() for pair in finish.outputs.items() for part in pair]
        return parts

    def renew(self, shard: int, worker: str, lease: Micros, leases: Sequence[Renewal]) -> Op[list[RenewalVerdict]]:
        def talk(clock: bytes) -> Talk:
            if not leases:
                return []
            parts: list[bytes] = []
            for each in leases:
                parts += (each.job.encode(), _pack_renewal(each.fence, each.progress))
            verdicts = yield from self._call("renew", shard, clock, _short(worker).encode(), b"%d" % lease, *parts)
            return [_RENEWALS[verdict] for verdict in verdicts]

        return self._within(shard, talk)

    def reap(self, shard: int, limit: int = 1000) -> Op[dict[str, int]]:
        def talk(clock: bytes) -> Talk:
            made, unregistered, outbox = yield from self._call("reap", shard, clock, self._prefix, str(limit).encode())
            yield from self._tell(clock, shard, outbox)
            yield from self._register(clock, shard, unregistered)
            return ready(made)

        return self._within(shard, talk)

    def undelivered(self, shard: int, limit: int = 1000) -> Op[list[Delivery]]:
        def talk(clock: bytes) -> Talk:
            found = yield from self._call("undelivered", shard, clock, str(limit).encode())
            return [delivery(found[i], found[i + 1]) for i in range(0, len(found), 2)]

        return self._within(shard, talk, reads=True)

    def deliver(self, shard: int, deliveries: Sequence[Delivery]) -> Op[dict[str, int]]:
        def talk(clock: bytes) -> Talk:
            if not deliveries:
                return {}
            words = [part for each in deliveries for part in wire(each)]
            made, outbox = yield from self._call("deliver", shard, clock, self._prefix, *words)
            yield from self._tell(clock, shard, outbox)
            return ready(made)

        return self._within(shard, talk)

    def delivered(self, shard: int, deliveries: Sequence[Delivery]) -> Op[None]:
        def talk(clock: bytes) -> Talk:
            if deliveries:
                pairs = [f"{each.job} {each.chain}".encode() for each in deliveries]
                yield from self._call("delivered", shard, clock, *pairs)

        return self._within(shard, talk)

    @property
    def read_handed(self) -> ReadHanded:
        return _read_handed if self.announces else None

    # ── by hand ──

    def cancel(self, job: str, reason: str) -> Op[State | None]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return None
            failure = _encode(Failure("Cancelled", reason))
            state, _, outbox = yield from self._call("cancel", shard, clock, self._prefix, job.encode(), failure)
            yield from self._tell(clock, shard, outbox)
            return record.STATES.get(state)

        return self._within(max(shard, 0), talk)

    def trigger(self, job: str) -> Op[State | None]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return None
            state, _, elsewhere = yield from self._call("trigger", shard, clock, self._prefix, job.encode())
            yield from self._wait_again(clock, elsewhere)
            return record.STATES.get(state)

        return self._within(max(shard, 0), talk)


@lru_cache(maxsize=64)
def _short(worker: str) -> str:
    return worker.encode()[:LONGEST_WORKER].decode(errors="ignore")


def _made_by(finish: Finish) -> list[NewJob]:
    """The jobs that come into being with a good end, in order."""
    if finish.kind != "complete":
        return []
    return [*finish.adds, finish.next] if finish.next is not None else list(finish.adds)


def _waiting(jobs: Sequence[NewJob], outcomes: dict[str, bytes]) -> list[bytes]:
    """Who is to be registered with whom, elsewhere."""
    if not outcomes:
        return []
    # One that ended badly may be tried again: it, too, is to know who waits.
    return [f"{job.id} {chain}".encode() for job in jobs for chain in job.after if outcomes.get(chain) in (b"w", b"-")]


def _enqueued(jobs: Sequence[NewJob], states: bytes, others: list[bytes]) -> list[Enqueued]:
    """Small letters are states; a capital is that of another job, whose id comes with it."""
    if not others:
        return [Enqueued(job.id, _BY_LETTER[state]) for job, state in zip(jobs, states, strict=True)]
    answer: list[Enqueued] = []
    rest = iter(others)
    for job, state in zip(jobs, states, strict=True):
        if state in _BY_LETTER:
            answer.append(Enqueued(job.id, _BY_LETTER[state]))
        else:
            answer.append(Enqueued(next(rest).decode(), _BY_LETTER[state | 0x20], deduplicated=True))
    return answer


_BY_LETTER: Final[dict[int, State]] = {letter[0]: state for letter, state in record.STATES.items()}


def _results(head: _Head, reply: list[Any]) -> dict[str, bytes | None]:
    """What chains came to that several jobs may have waited for: told once."""
    found = reply[-2 * head.results :]
    return {chain.decode(): result for chain, result in zip(found[::2], found[1::2], strict=True)}


def _read_handed(message: bytes) -> Handed | None:
    """Anybody may have sent it."""
    try:
        seq, now, until, lane, id_, raw = _HANDED.unpack_from(message)
        lane += _HANDED.size
        id_ += lane
        raw += id_
        job = record.claimed(message[lane:id_], message[id_:raw], message[raw:], until, {}, {})
        return Handed(message[_HANDED.size : lane].decode(), seq, StepReply(now=now, jobs=(job,)))
    except (*UNREADABLE, struct.error, ValueError):
        return None


def _stepped(reply: list[Any]) -> StepReply:
    return _step_reply(_heads.decode(reply[0]), reply)


def _step_reply(head: _Head, reply: list[Any]) -> StepReply:
    said = head.verdicts
    if said in _TURNED_AWAY:
        return StepReply(now=head.now, stale=said == "stale", expired=said == "expired", denied=said == "denied")
    at = 1 + 3 * head.jobs
    results = _results(head, reply) if head.results else {}
    upstreams: dict[int, dict[str, bytes | None]] = {}
    for index, count in zip(head.upstreams[::2], head.upstreams[1::2], strict=True):
        part = reply[at : at + 2 * count]
        at += 2 * count
        known = dict(zip(part[::2], part[1::2], strict=True))
        upstreams[index] = {
            chain: results.get(chain) if (value := known.get(chain.encode(), b"=")) == b"=" else outcome(value)
            for chain in record.after_of(reply[3 + 3 * index])
            if known.get(chain.encode()) != b"w"
        }
    until, make = head.until, record.claimed
    jobs: list[Claimed] = [
        make(reply[i], reply[i + 1], reply[i + 2], until, upstreams.get(n, {}), results)
        for n, i in enumerate(range(1, 1 + 3 * head.jobs, 3))
    ]
    outbox = [
        Delivery(reply[i].decode(), reply[i + 1].decode(), outcome(reply[i + 2]))
        for i in range(at, at + 3 * head.outbox, 3)
    ]
    handed = said == _HANDED_OVER
    return StepReply(
        now=head.now,
        verdicts=() if handed else tuple([_VERDICTS[letter] for letter in said]),
        jobs=tuple(jobs),
        next_in=head.next_in if head.next_in >= 0 else None,
        ready=ready(head.ready) if head.ready else {},
        outbox=tuple(outbox),
        handed=handed,
    )
