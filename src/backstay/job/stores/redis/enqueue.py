"""Enqueue jobs in Redis. Plain jobs (without run, chain, blockers and keys) that are enqueued one by one in the same
turn of the event loop share one script call; every other enqueue is its own call.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

import msgspec

from backstay.engine.base import Op, StoreOperation
from backstay.engine.redis.coalescing import CoalescedRequest
from backstay.engine.redis.encoder import Procedure
from backstay.hub.protocol import new_hint_id, write_scheduled
from backstay.job.model import Enqueued, NewJob, State, UniformBatch, distinct_templates
from backstay.job.stores.redis import record
from backstay.job.stores.redis.cross_shard import CrossShard, list_waits_to_register, unknown_chain

_encode = msgspec.msgpack.Encoder().encode
_BY_LETTER: Final[dict[int, State]] = {letter[0]: state for letter, state in record.STATES.items()}


class _PlainJob(NamedTuple):
    """A job without blockers, keys, run or chain, encoded as arguments of `enqueue.lua`."""

    id: str
    arguments: list[bytes]
    #: The job's type if the script announces the job to workers; else empty.
    announced: list[str]

    def decode(self, reply: list[bytes]) -> list[Enqueued]:
        return [Enqueued(self.id, _BY_LETTER[reply[0][0]])]


def _choose_form(arguments: list[bytes]) -> tuple[bytes, list[bytes]]:
    """Choose the form in which plain jobs are passed to `enqueue.lua`. Form 1: each job is sent with its record; form
    2: all jobs have the same record, which is sent once. Returns the form, and the arguments in this form.
    """
    records = arguments[1::4]
    if records.count(records[0]) < len(records):
        return b"1", arguments
    uniform = [records[0]] * (2 * len(records) + 1)
    uniform[1::2], uniform[2::2] = arguments[::4], arguments[2::4]
    return b"2", uniform


class EnqueueOperations(CrossShard):
    """The store operation `enqueue`. With `announces`, the script that stores jobs also announces them to workers."""

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
            form, parts = _choose_form(parts) if plain else (b"0", parts)
            flags = form + self._encode_announcements(announced)
            states, *others = yield from self._call(
                "enqueue", shard, clock, self._shard_count, self._prefix, flags, *parts
            )
            if not states:
                raise unknown_chain(others[0].decode())
            yield from self._register_waits(clock, shard, list_waits_to_register(jobs, outcomes))
            return _decode_enqueued(jobs, states, others)

        return self._operation(shard, requests)

    def _enqueue_plain(self, shard: int, job: _PlainJob) -> Op[list[Enqueued]]:
        """Enqueue one plain job. The engine may combine several such operations into one script call. This is safe: a
        plain job is never rejected, so it cannot make the other jobs of the call fail.
        """
        key = self._keys[self._check_shard(shard)]

        def alone(clock: bytes) -> Procedure:
            requests: Procedure = self._enqueue_together(shard, [job]).work(clock)
            return (yield from requests)[0]

        return CoalescedRequest(
            alone,
            key=key,
            item=job,
            combine=partial(self._enqueue_together, shard),
            request=(lambda: self._pack_call("enqueue", shard, b"", *self._encode_plain([job])))
            if self._shards_checked
            else None,
            read=job.decode,
        )

    def _enqueue_together(self, shard: int, jobs: Sequence[_PlainJob]) -> StoreOperation[list[list[Enqueued]]]:
        def requests(clock: bytes) -> Procedure:
            (states,) = yield from self._call("enqueue", shard, clock, *self._encode_plain(jobs))
            return [[Enqueued(job.id, _BY_LETTER[state])] for job, state in zip(jobs, states, strict=True)]

        return self._operation(shard, requests)

    def _encode_plain(self, jobs: Sequence[_PlainJob]) -> list[bytes]:
        announcement = self._encode_announcements([kind for job in jobs for kind in job.announced])
        form, arguments = _choose_form([argument for job in jobs for argument in job.arguments])
        return [self._shard_count, self._prefix, form + announcement, *arguments]

    def _encode_announcements(self, types: list[str]) -> bytes:
        """Encode the announcements of new jobs. For each type: the key of the announcement's counter
        (`hub/hint_publish.lua`), the number of jobs and the message to publish.
        """
        if not types:
            return b""
        parts: list[str] = []
        for kind, count in Counter(types).items() if len(types) > 1 else ((types[0], 1),):
            hint = new_hint_id()
            parts += (self._hint_keys % hint, str(count), write_scheduled(hint, kind))
        return _encode(parts)


def _decode_enqueued(jobs: Sequence[NewJob], states: bytes, others: list[bytes]) -> list[Enqueued]:
    """Decode the reply of the script. `states` has one letter for each job. A lower-case letter is the state of the new
    job. An upper-case letter means that the job was not created, because another job holds its unique key: it is that
    job's state. `others`: the ids of those other jobs, in order.
    """
    if not others:
        return [Enqueued(job.id, _BY_LETTER[state]) for job, state in zip(jobs, states, strict=True)]
    enqueued: list[Enqueued] = []
    holders = iter(others)
    for job, state in zip(jobs, states, strict=True):
        if state in _BY_LETTER:
            enqueued.append(Enqueued(job.id, _BY_LETTER[state]))
        else:
            enqueued.append(Enqueued(next(holders).decode(), _BY_LETTER[state | 0x20], deduplicated=True))
    return enqueued
