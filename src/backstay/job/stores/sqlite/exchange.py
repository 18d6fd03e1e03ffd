"""Step: a worker's turn. Reap, make due, finish, claim, and remember what was answered, so that a turn that is sent
again is answered again and done once.
"""

from __future__ import annotations

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import StepCommand, StepReply, Verdict
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.claim import Claiming, hand_out
from backstay.job.stores.sqlite.columns import encode, text_of
from backstay.job.stores.sqlite.finish_batch import Ends, end
from backstay.job.stores.sqlite.reap import make_due, reap
from backstay.job.stores.sqlite.renew import RENEW
from backstay.job.stores.sqlite.statements import load

STEP = load("step")
#: One step takes back and makes due at most this much, so that nobody waits long for it.
REAPED = 100
DUE = 1000

#: What a lane remembers of its claims: number and fence of each.
_decode_claims = msgspec.msgpack.Decoder(list[tuple[int, int]]).decode
_decode_verdicts = msgspec.msgpack.Decoder(tuple[Verdict, ...]).decode


def step(changes: Changes, command: StepCommand, ends: Ends) -> StepReply:
    lane = (changes.space, command.worker, command.incarnation, command.lane)
    now = changes.now
    turn = changes.db.execute(STEP["turn"], lane).fetchone()
    if turn is not None and turn[1] > now:
        if command.seq < turn[0]:
            return StepReply(now=now, stale=True)
        if command.seq == turn[0]:
            verdicts, claims = changes.db.execute(STEP["answered"], lane).fetchone()
            return _again(changes, command, _decode_verdicts(verdicts), _decode_claims(claims))
    if now > command.not_after:
        return StepReply(now=now, expired=True)
    due, until = alarms(changes)
    if until is not None and until <= now:
        reap(changes, REAPED)
    if due is not None and due <= now:
        make_due(changes, DUE)
    verdicts = end(changes, ends)
    if changes.ready:
        changes.count()
    claiming = Claiming(changes, command.claim, command.worker)
    jobs, numbers = claiming.run()
    changes.db.execute(
        STEP["remember"],
        (*lane, command.seq, now + 2 * command.claim.lease, encode(verdicts), encode(numbers)),
    )
    ready = changes.close()
    return StepReply(
        now=now,
        verdicts=verdicts,
        jobs=tuple(jobs),
        next_in=_sooner(next_due(changes), claiming.next_in),
        ready=ready,
    )


def next_due(changes: Changes) -> Micros | None:
    """µs until something becomes due or a lease ends."""
    first = _sooner(*alarms(changes))
    return None if first is None else max(0, first - changes.now)


def alarms(changes: Changes) -> tuple[Micros | None, Micros | None]:
    """When the first job becomes due, and when the first lease ends."""
    found: tuple[Micros | None, Micros | None] = changes.db.execute(STEP["next_due"], (changes.space,)).fetchone()
    return found


def _sooner(one: Micros | None, other: Micros | None) -> Micros | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)


def _again(
    changes: Changes, command: StepCommand, verdicts: tuple[Verdict, ...], claims: list[tuple[int, int]]
) -> StepReply:
    """The reply was lost: the same verdicts, and what is still under those leases, renewed."""
    until = changes.now + command.claim.lease
    fences = dict(claims)
    rows = [
        row
        for row in changes.db.execute(STEP["again"], (text_of(list(fences)),)).fetchall()
        if row[0] == fences[row[1]]
    ]
    changes.db.executemany(RENEW["renew"], [(until, -1.0, row[1]) for row in rows])
    return StepReply(
        now=changes.now,
        verdicts=verdicts,
        jobs=tuple(hand_out(changes, rows, [row[0] for row in rows], until, 0)),
        next_in=next_due(changes),
    )
