"""A worker's exchange with Redis: encode its finishes and claim for `exchange.lua`, decode the reply."""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from struct import Struct
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from backstay.engine.base import DECODE_ERRORS, Micros, Op
from backstay.engine.redis.encoder import KeyedRequest, Procedure, SingleRequest
from backstay.engine.redis.link.protocol import ErrorReply
from backstay.job.exchange import Claimed, Delivery, DirectHandoff, ExchangeCommand, ExchangeReply, Verdict
from backstay.job.model import Finish, FinishKind, NewJob
from backstay.job.store import ReadHandoff
from backstay.job.stores.redis import record
from backstay.job.stores.redis.calls import parse_ready
from backstay.job.stores.redis.cross_shard import list_waits_to_register, parse_outcome
from backstay.job.stores.redis.permits import PermitBatch, Permits, parse_lanes

_FINISH = Struct(">cQQB")
_MORE = Struct(">IBI")
#: The head of the message with which `_direct_handoff.lua` hands a job to a worker: seq of the waiting claim, server's
#: time and end of the lease in µs; then the sizes of the channel's name, of the job's id and of the job's record. After
#: the head come the channel's name, the job's id, its record and its doc (arguments and metadata).
_HANDOFF = Struct(">QQQHHH")
_KINDS: Final[dict[FinishKind, bytes]] = {
    "complete": b"c",
    "fail": b"f",
    "retry": b"t",
    "snooze": b"z",
    "release": b"l",
    "cancel": b"x",
    "skip": b"k",
}
_VERDICTS: Final[dict[str, Verdict]] = {"o": "ok", "s": "stale"}
#: Values in the place of verdicts if the script rejected the exchange and changed nothing.
_REJECTED: Final = frozenset(("stale", "expired", "denied"))
_HANDED_OFF: Final = "handed"
#: The same, for a request with permits: an earlier request has used them.
_SPENT: Final = "spent"

_NO_PAUSES: Final[dict[str, Micros]] = {}

_encode = msgspec.msgpack.Encoder().encode
_pack_finish = _FINISH.pack


class _Head(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The head of the reply of `exchange.lua`. The comment at the top of that script explains the fields."""

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
    permits_wanted: tuple[Any, ...] = ()
    permits_used: tuple[Any, ...] = ()


_heads = msgspec.msgpack.Decoder(_Head)


class ExchangeOperations(Permits):
    """The store operation `exchange`, and `read_handoff`, which decodes direct handoffs."""

    def exchange(self, command: ExchangeCommand) -> Op[ExchangeReply]:
        shard = command.shard
        created = [job for finish in command.finishes for job in _list_created(finish)]

        def requests(clock: bytes) -> Procedure:
            outcomes: dict[str, bytes] = {}
            if created:
                outcomes = yield from self._peek_outcomes(clock, shard, created, strict=False)
            reply = yield from self._call("exchange", shard, clock, *self._encode_command(command, outcomes))
            head = _heads.decode(reply[0])
            if head.verdicts not in _REJECTED:
                if created:
                    yield from self._register_waits(clock, shard, list_waits_to_register(created, outcomes))
                if head.unregistered:
                    stop = len(reply) - 2 * head.results
                    yield from self._register_waits(clock, shard, reply[stop - head.unregistered : stop])
            found = _decode_reply(head, reply)
            if head.permits_wanted:
                return (yield from self._claim_with_permits(clock, command, head, found))
            return found

        op = self._operation(shard, requests)
        if created or self.shards > 1 or not self._shards_checked:
            return op

        def request() -> bytes:
            return self._pack_call("exchange", shard, b"", *self._encode_command(command, {}))

        return SingleRequest(op.work, op.key, request=request, read=_decode_raw_reply)

    def _claim_with_permits(
        self, clock: bytes, command: ExchangeCommand, head: _Head, first: ExchangeReply
    ) -> Generator[KeyedRequest, Any, ExchangeReply]:
        """Claim jobs whose rates are in other shards, after the first request of the exchange (`permits.py`). Returns
        the reply to both requests.
        """
        shard, want = command.shard, command.claim.want - len(first.jobs)
        batch = PermitBatch(parse_lanes(head.permits_wanted), want)
        yield from self._take_permits(clock, batch)
        starved = batch.lanes
        jobs, next_in = first.jobs, first.next_in
        permits = (head.now + batch.life, *batch.list_taken())
        claim = replace(command.claim, want=want, hints=(), waiting=None)
        parts = self._encode_command(replace(command, finishes=(), waiting_seq=0, claim=claim), {}, permits)
        try:
            reply = yield from self._call("exchange", shard, clock, *parts)
        except ErrorReply:
            return first  # the worker must receive the jobs of the first request
        second = _heads.decode(reply[0])
        if second.verdicts != _SPENT:
            used = dict(zip(second.permits_used[::2], second.permits_used[1::2], strict=True))
            yield from self._settle_permits(clock, batch, used)
        if second.verdicts == "":
            found = _decode_reply(second, reply)
            jobs, next_in = (*jobs, *found.jobs), found.next_in
            starved = parse_lanes(second.permits_wanted)
        self._remember_pauses(shard, head.now, batch)
        soonest = min((wait for wait in (next_in, batch.next_in(starved)) if wait is not None), default=None)
        return replace(first, jobs=jobs, next_in=soonest)

    def _encode_command(
        self, command: ExchangeCommand, outcomes: dict[str, bytes], permits: tuple[str | int, ...] | None = None
    ) -> list[bytes]:
        claim = command.claim
        options = _encode(
            (
                command.not_after,
                f"{command.worker}\0{command.incarnation}\0{command.channel}",
                command.seq,
                claim.lease,
                record.truncate_worker(command.worker),
                claim.want,
                claim.queues,
                claim.labels,
                [self._hint_keys % hint for hint in claim.hints],
                command.waiting_seq,
                claim.waiting,
                permits,
                self._pauses.get(command.shard, _NO_PAUSES),
            )
        )
        return [
            self._shard_count,
            self._prefix,
            options,
            *self._encode_finishes(command.shard, command.finishes, outcomes),
        ]

    def _encode_finishes(self, shard: int, finishes: Sequence[Finish], outcomes: dict[str, bytes]) -> list[bytes]:
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
            parts += (finish.job.encode(), head, payload, *self._encode_jobs(shard, _list_created(finish), outcomes)[0])
            parts += [part.encode() for pair in finish.outputs.items() for part in pair]
        return parts

    @property
    def read_handoff(self) -> ReadHandoff:
        return _read_handoff if self.announces else None


def _list_created(finish: Finish) -> list[NewJob]:
    """Return the jobs that a finish creates: those that it adds, then the one that continues the chain."""
    if finish.kind != "complete":
        return []
    return [*finish.adds, finish.next] if finish.next is not None else list(finish.adds)


def _decode_results(head: _Head, reply: list[Any]) -> dict[str, bytes | None]:
    """Decode the results of the claimed jobs' blockers, by chain. The reply contains each once, however many claimed
    jobs depend on it.
    """
    found = reply[-2 * head.results :]
    return {chain.decode(): result for chain, result in zip(found[::2], found[1::2], strict=True)}


def _read_handoff(message: bytes) -> DirectHandoff | None:
    """Decode the message of a direct handoff. Returns None if it is malformed, since any client of the Redis server can
    publish to a worker's inbox.
    """
    try:
        seq, now, until, channel, id_, raw = _HANDOFF.unpack_from(message)
        channel += _HANDOFF.size
        id_ += channel
        raw += id_
        job = record.decode_claimed(message[channel:id_], message[id_:raw], message[raw:], until, {}, {})
        return DirectHandoff(message[_HANDOFF.size : channel].decode(), seq, ExchangeReply(now=now, jobs=(job,)))
    except (*DECODE_ERRORS, struct.error, ValueError):
        return None


def _decode_raw_reply(reply: list[Any]) -> ExchangeReply:
    return _decode_reply(_heads.decode(reply[0]), reply)


def _decode_reply(head: _Head, reply: list[Any]) -> ExchangeReply:
    verdicts = head.verdicts
    if verdicts in _REJECTED:
        return ExchangeReply(
            now=head.now, stale=verdicts == "stale", expired=verdicts == "expired", denied=verdicts == "denied"
        )
    at = 1 + 3 * head.jobs
    results = _decode_results(head, reply) if head.results else {}
    upstreams: dict[int, dict[str, bytes | None]] = {}
    for index, count in zip(head.upstreams[::2], head.upstreams[1::2], strict=True):
        part = reply[at : at + 2 * count]
        at += 2 * count
        known = dict(zip(part[::2], part[1::2], strict=True))
        upstreams[index] = {
            chain: results.get(chain) if (value := known.get(chain.encode(), b"=")) == b"=" else parse_outcome(value)
            for chain in record.decode_after(reply[3 + 3 * index])
            if known.get(chain.encode()) != b"w"
        }
    until, make = head.until, record.decode_claimed
    jobs: list[Claimed] = [
        make(reply[i], reply[i + 1], reply[i + 2], until, upstreams.get(n, {}), results)
        for n, i in enumerate(range(1, 1 + 3 * head.jobs, 3))
    ]
    outbox = [
        Delivery(reply[i].decode(), reply[i + 1].decode(), parse_outcome(reply[i + 2]))
        for i in range(at, at + 3 * head.outbox, 3)
    ]
    handed_off = verdicts == _HANDED_OFF
    return ExchangeReply(
        now=head.now,
        verdicts=() if handed_off else tuple([_VERDICTS[letter] for letter in verdicts]),
        jobs=tuple(jobs),
        next_in=head.next_in if head.next_in >= 0 else None,
        ready=parse_ready(head.ready) if head.ready else {},
        outbox=tuple(outbox),
        handed_off=handed_off,
    )
