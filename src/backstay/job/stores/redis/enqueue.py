"""Enqueue jobs in Redis. Single plain jobs of one loop turn share a script call; any other enqueue is its own call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from backstay.engine.base import Op, StoreOperation
from backstay.engine.redis.coalescing import Coalesced
from backstay.engine.redis.encoder import Procedure
from backstay.hub.protocol import new_hint_id, write_scheduled
from backstay.job.model import Enqueued, NewJob, State, UniformBatch, distinct_templates
from backstay.job.stores.redis import record
from backstay.job.stores.redis.cross_shard import CrossShard, unknown_chain, waits_to_register

_encode = msgspec.msgpack.Encoder().encode
_BY_LETTER: Final[dict[int, State]] = {letter[0]: state for letter, state in record.STATES.items()}


class _PlainJob(NamedTuple):
    """A job without blockers, keys, run or chain, as `enqueue.lua` takes it."""

    id: str
    arguments: list[bytes]
    #: Its type, if the script that stores it announces it; else empty.
    announced: list[str]

    def decode(self, reply: list[bytes]) -> list[Enqueued]:
        return [Enqueued(self.id, _BY_LETTER[reply[0][0]])]


def _uniform_form(arguments: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Return the form and the arguments of plain jobs for `enqueue.lua`. Jobs with equal records send the record
    once.
    """
    records = arguments[1::4]
    if records.count(records[0]) < len(records):
        return b"1", arguments
    uniform = [records[0]] * (2 * len(records) + 1)
    uniform[1::2], uniform[2::2] = arguments[::4], arguments[2::4]
    return b"2", uniform


class EnqueueOperations(CrossShard):
    """`enqueue`, with announcements where the store announces."""

    def enqueue(self, shard: int, jobs: Sequence[NewJob], *, announce: bool = False) -> Op[list[Enqueued]]:
        announced = (
            [job.type for job in distinct_templates(jobs) if job.starts_at_once] if announce and self.announces else []
        )
        if announced and isinstance(jobs, UniformBatch):
            announced *= len(jobs)
        if len(jobs) == 1 and not jobs[0].after:
            arguments, plain = self._encode_jobs(shard, jobs, {})
            if plain:
                return self._enqueue_plain(shard, _PlainJob(jobs[0].id, arguments, announced))

        def requests(clock: bytes) -> Procedure:
            if not jobs:
                return []
            outcomes = yield from self._peek_outcomes(clock, shard, jobs, strict=True)
            parts, plain = self._encode_jobs(shard, jobs, outcomes)
            form, parts = _uniform_form(parts) if plain else (b"0", parts)
            flags = form + self._announcement(announced)
            states, *others = yield from self._call("enqueue", shard, clock, self._count, self._prefix, flags, *parts)
            if not states:
                raise unknown_chain(others[0].decode())
            yield from self._register_waits(clock, shard, waits_to_register(jobs, outcomes))
            return _decode_enqueued(jobs, states, others)

        return self._within(shard, requests)

    def _enqueue_plain(self, shard: int, job: _PlainJob) -> Op[list[Enqueued]]:
        """Enqueue one plain job. Plain jobs can share a call, since none of them can be rejected alone."""
        key = self._keys[self._check_shard(shard)]

        def alone(clock: bytes) -> Procedure:
            requests: Procedure = self._enqueue_together(shard, [job]).work(clock)
            return (yield from requests)[0]

        return Coalesced(
            alone,
            key=key,
            item=job,
            combine=partial(self._enqueue_together, shard),
            request=(lambda: self._packed("enqueue", shard, b"", *self._plain_arguments([job])))
            if self._agreed
            else None,
            read=job.decode,
        )

    def _enqueue_together(self, shard: int, jobs: Sequence[_PlainJob]) -> StoreOperation[list[list[Enqueued]]]:
        def requests(clock: bytes) -> Procedure:
            (states,) = yield from self._call("enqueue", shard, clock, *self._plain_arguments(jobs))
            return [[Enqueued(job.id, _BY_LETTER[state])] for job, state in zip(jobs, states, strict=True)]

        return self._within(shard, requests)

    def _plain_arguments(self, jobs: Sequence[_PlainJob]) -> list[bytes]:
        announcement = self._announcement([kind for job in jobs for kind in job.announced])
        form, arguments = _uniform_form([argument for job in jobs for argument in job.arguments])
        return [self._count, self._prefix, form + announcement, *arguments]

    def _announcement(self, types: list[str]) -> bytes:
        """Encode the announcement: for each type a hint counter, the number of jobs and the message to publish."""
        if not types:
            return b""
        parts: list[str] = []
        for kind, count in Counter(types).items() if len(types) > 1 else ((types[0], 1),):
            hint = new_hint_id()
            parts += (self._hint_keys % hint, str(count), write_scheduled(hint, kind))
        return _encode(parts)


def _decode_enqueued(jobs: Sequence[NewJob], states: bytes, others: list[bytes]) -> list[Enqueued]:
    """Decode the reply: a lower-case letter is the new job's state; an upper-case letter is the state of the job that
    holds the unique key, whose id follows in `others`.
    """
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
