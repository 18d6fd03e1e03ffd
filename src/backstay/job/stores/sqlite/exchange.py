"""A worker's exchange in one transaction: reap expired leases, make due jobs pending, apply finishes, claim jobs. The
reply is stored with the exchange's sequence number, so a resent exchange gets the same reply and is applied once.
"""

from __future__ import annotations

import msgspec

from backstay.engine.base import Micros
from backstay.job.exchange import ExchangeCommand, ExchangeReply, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.claim import Claimer, to_claimed
from backstay.job.stores.sqlite.columns import encode, json_text
from backstay.job.stores.sqlite.finish_batch import FinishBatch, apply_finishes
from backstay.job.stores.sqlite.reap import make_due, reap
from backstay.job.stores.sqlite.renew import RENEW
from backstay.job.stores.sqlite.statements import load

EXCHANGE = load("exchange")
#: The most expired leases that one exchange reaps. An exchange must be short, because it blocks all other writers.
MAX_REAPED = 100
#: The most scheduled jobs that one exchange makes pending because they are due.
MAX_DUE = 1000

#: The stored claims of an exchange: number and fence of each job.
_decode_claims = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
_decode_verdicts = msgspec.msgpack.Decoder(tuple[Verdict, ...]).decode


def exchange(changes: Changes, command: ExchangeCommand, finishes: FinishBatch) -> ExchangeReply:
    channel = (changes.space, command.worker, command.incarnation, command.channel)
    now = changes.now
    last = changes.db.execute(EXCHANGE["last_seq"], channel).fetchone()
    if last is not None and last[1] > now:
        if command.seq < last[0]:
            return ExchangeReply(now=now, stale=True)
        if command.seq == last[0]:
            verdicts, claims = changes.db.execute(EXCHANGE["stored_reply"], channel).fetchone()
            return _replay(changes, command, _decode_verdicts(verdicts), _decode_claims(claims))
    if now > command.not_after:
        return ExchangeReply(now=now, expired=True)
    due, until = next_alarms(changes)
    if until is not None and until <= now:
        reap(changes, MAX_REAPED)
    if due is not None and due <= now:
        make_due(changes, MAX_DUE)
    verdicts = apply_finishes(changes, finishes)
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
    """Return the µs until the first scheduled job is due or the first lease expires; None if there is neither."""
    first = _earlier(*next_alarms(changes))
    return None if first is None else max(0, first - changes.now)


def next_alarms(changes: Changes) -> tuple[Micros | None, Micros | None]:
    """Return two times: when the first scheduled job is due (None: no job is scheduled), and when the first lease of a
    running job expires (None: no job runs).
    """
    found: tuple[Micros | None, Micros | None] = changes.db.execute(EXCHANGE["next_due"], (changes.space,)).fetchone()
    return found


def _earlier(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _replay(
    changes: Changes, command: ExchangeCommand, verdicts: tuple[Verdict, ...], claims: list[tuple[int, int]]
) -> ExchangeReply:
    """Return the reply to a resent exchange: the stored verdicts, and the jobs that the exchange claimed when it was
    first applied. Jobs that the worker no longer holds are left out. The leases of the returned jobs are renewed.
    """
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
