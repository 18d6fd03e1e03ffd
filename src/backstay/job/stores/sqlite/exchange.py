"""Exchange: reap, make due, finish and claim for one worker, in one transaction. The reply is stored by sequence
number, so a resent exchange gets the same reply and runs once.
"""

from __future__ import annotations

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import ExchangeCommand, ExchangeReply, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.claim import Claimer, to_claimed
from backstay.job.stores.sqlite.columns import encode, json_text
from backstay.job.stores.sqlite.finish_batch import FinishBatch, apply_finishes
from backstay.job.stores.sqlite.reap import make_due, reap
from backstay.job.stores.sqlite.renew import RENEW
from backstay.job.stores.sqlite.statements import load

EXCHANGE = load("exchange")
#: Jobs that one exchange reaps and makes due, at most: the write lock must be short.
REAPED = 100
DUE = 1000

#: The stored claims of an exchange: number and fence of each job.
_decode_claims = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
_decode_verdicts = msgspec.msgpack.Decoder(tuple[Verdict, ...]).decode


def exchange(changes: Changes, command: ExchangeCommand, ends: FinishBatch) -> ExchangeReply:
    channel = (changes.space, command.worker, command.incarnation, command.channel)
    now = changes.now
    turn = changes.db.execute(EXCHANGE["last_seq"], channel).fetchone()
    if turn is not None and turn[1] > now:
        if command.seq < turn[0]:
            return ExchangeReply(now=now, stale=True)
        if command.seq == turn[0]:
            verdicts, claims = changes.db.execute(EXCHANGE["stored_reply"], channel).fetchone()
            return _replay(changes, command, _decode_verdicts(verdicts), _decode_claims(claims))
    if now > command.not_after:
        return ExchangeReply(now=now, expired=True)
    due, until = next_alarms(changes)
    if until is not None and until <= now:
        reap(changes, REAPED)
    if due is not None and due <= now:
        make_due(changes, DUE)
    verdicts = apply_finishes(changes, ends)
    if changes.ready:
        changes.write_counts()
    claimer = Claimer(changes, command.claim, command.worker)
    jobs, numbers = claimer.run()
    changes.db.execute(
        EXCHANGE["store_reply"],
        (*channel, command.seq, now + 2 * command.claim.lease, encode(verdicts), encode(numbers)),
    )
    ready = changes.close()
    return ExchangeReply(
        now=now,
        verdicts=verdicts,
        jobs=tuple(jobs),
        next_in=_earlier(next_due(changes), claimer.next_in),
        ready=ready,
    )


def next_due(changes: Changes) -> Micros | None:
    """Return the µs until a job becomes due or a lease expires; None: neither is scheduled."""
    first = _earlier(*next_alarms(changes))
    return None if first is None else max(0, first - changes.now)


def next_alarms(changes: Changes) -> tuple[Micros | None, Micros | None]:
    """Return when the first job becomes due, and when the first lease expires."""
    found: tuple[Micros | None, Micros | None] = changes.db.execute(EXCHANGE["next_due"], (changes.space,)).fetchone()
    return found


def _earlier(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _replay(
    changes: Changes, command: ExchangeCommand, verdicts: tuple[Verdict, ...], claims: list[tuple[int, int]]
) -> ExchangeReply:
    """Answer a resent exchange: the stored verdicts, and the jobs that are still under those leases, renewed."""
    until = changes.now + command.claim.lease
    fences = dict(claims)
    rows = [
        row
        for row in changes.db.execute(EXCHANGE["replay"], (json_text(list(fences)),)).fetchall()
        if row[0] == fences[row[1]]
    ]
    changes.db.executemany(RENEW["renew"], [(until, -1.0, row[1]) for row in rows])
    return ExchangeReply(
        now=changes.now,
        verdicts=verdicts,
        jobs=tuple(to_claimed(changes, rows, [row[0] for row in rows], until, 0)),
        next_in=next_due(changes),
    )
