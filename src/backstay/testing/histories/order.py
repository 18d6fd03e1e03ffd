"""Check that a lock's queue was served in order, from snapshots of the queue and the grants that callers recorded.

A snapshot shows each waiter with its rank (the time when it entered) and the time of its last request. A waiter that
has the same rank in two snapshots kept it in between, so no waiter behind it may have been served in that time. There
are three exceptions:

- A waiter that does not confirm an offer in time is passed over until its next request. If another waiter gets an offer
  in the meantime, that offer stays valid. An offer lasts for `OFFER`; snapshots must be closer together than that, or
  they may miss it.
- An engine that loses state (failover, restart) continues from an earlier state. Ranks and grants that were lost are
  excused; a waiter that kept its rank must still be served in order.
- A grant whose reply was lost is not recorded. Its owner enters the queue again after the lease has expired. So a
  waiter of a snapshot may have had such a grant, and its rank counts only for the time of one lease after the snapshot.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from backstay.engine.base import Micros
from backstay.gate.machine import LAPSED, LIFE, OFFER


class QueuedWaiter(NamedTuple):
    """A waiter in a snapshot. Times are the engine's, in µs."""

    id: str
    entered: Micros
    #: The time of its last Acquire command: the one with which it entered the queue, or a later one that refreshed its
    #: place.
    asked: Micros
    #: Until when its offer is valid. 0: it has no offer. LAPSED: it did not confirm its offer, so it is passed over.
    offer: Micros = 0

    @property
    def offered(self) -> Micros:
        """When the waiter's offer was made. Meaningless if it has none (`offer` is 0 or LAPSED)."""
        return self.offer - OFFER


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a lock as an observer read it.

    seen: the engine's time of the read, in µs.
    holders: the tickets of the holders.
    queue: the waiters, first to last.
    """

    name: str
    seen: Micros
    holders: tuple[str, ...]
    queue: tuple[QueuedWaiter, ...]
    #: When the observer sent the read, on its own clock in seconds (`seen` is on the engine's clock).
    t: float = 0.0


class RecordedGrant(NamedTuple):
    """A grant that a caller recorded.

    id: the ticket of the caller.
    at: the engine's time of the grant, in µs.
    asked: the time just before the caller's first request, on the checker's clock in seconds.
    """

    id: str
    at: Micros
    asked: float


class StateLoss(NamedTuple):
    """A moment when the engine lost state (failover, restart): `t` on the checker's clock, `at` on the engine's."""

    t: float
    at: Micros


def find_violations(
    snapshots: Iterable[Snapshot],
    grants: Iterable[RecordedGrant],
    permits: int = 1,
    losses: Sequence[StateLoss] = (),
    ttl: Micros = 0,
) -> list[str]:
    """Return the violations of the order in which the waiters of one lock were served. `ttl`: the shortest lease;
    without it, fewer violations can be proven.
    """
    seen = sorted(snapshots, key=lambda snapshot: snapshot.seen)
    served = sorted(grants, key=lambda grant: grant.at)
    wrong = [found for snapshot in seen for found in _check_snapshot(snapshot, permits)]
    wrong += _check_ranks(seen, losses, ttl)
    nth = 0
    for before, after in pairwise(seen):
        while nth < len(served) and served[nth].at <= before.seen:
            nth += 1
        between: list[RecordedGrant] = []
        for grant in served[nth:]:
            if grant.at > after.seen:
                break
            between.append(grant)
        loss = next((loss for loss in reversed(losses) if before.seen <= loss.at < after.seen), None)
        if loss is None:
            wrong += _check_offers(before, after)
        wrong += _check_overtaking(before, after, between, permits == 1, loss, ttl)
    return list(dict.fromkeys(wrong))


def _check_snapshot(snapshot: Snapshot, permits: int) -> Iterator[str]:
    """Yield the violations that one snapshot shows without a comparison: too many holders and offers, a queue that is
    not in order of arrival, a waiter that is ignored although a place is free, or an offer to the wrong waiter.
    """
    queue = snapshot.queue
    offered = [w for w in queue if w.offer > 0]
    if len(snapshot.holders) + len(offered) > permits:
        yield (
            f"the engine itself shows {len(snapshot.holders)} holders and {len(offered)} offers, {permits} allowed:"
            f" {snapshot.holders}, {offered}"
        )
    if [w.entered for w in queue] != sorted(w.entered for w in queue):
        yield f"the queue is not in the order of arrival: {queue}"
    for i, w in enumerate(queue):
        if w.offer == LAPSED:
            if snapshot.seen - w.asked < OFFER:
                yield f"{w.id} is passed over although it has just asked"
            continue
        if w.offer == 0 and len(snapshot.holders) + len(offered) < permits:
            yield f"{w.id} waits although a place is free"
        for other in queue[i + 1 :]:
            if other.offer > 0 and w.asked < other.offered and (w.offer == 0 or other.offered < w.offered):
                yield f"{other.id} was offered a place past {w.id}, which waited"


def _check_ranks(snapshots: list[Snapshot], losses: Sequence[StateLoss], ttl: Micros) -> Iterator[str]:
    """Check that a waiter has the same rank in all snapshots. A new rank is allowed only after a grant, after its
    ticket expired, or after the engine lost state.
    """
    known: dict[str, tuple[QueuedWaiter, Micros]] = {}
    for snapshot in snapshots:
        for w in snapshot.queue:
            was, seen = known.get(w.id, (w, 0))
            known[w.id] = (w, snapshot.seen)
            if was.entered == w.entered or min(seen + ttl, max(was.asked + LIFE, was.offer)) <= w.entered:
                continue
            # The waiter has another rank than before. That is no violation if the engine lost state in between: then it
            # went back to an older rank of the waiter, or it lost the waiter, which entered again.
            forgot = [loss for loss in losses if seen <= loss.at < snapshot.seen]
            if not any(w.entered < was.entered or loss.at < w.entered for loss in forgot):
                yield f"{w.id} lost its rank: it entered at {was.entered} and again at {w.entered}"


def _check_offers(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Check that an offer stays valid until its end, and that a waiter is passed over only if its offer lapsed."""
    now = {(w.id, w.entered): w for w in after.queue}
    for was in before.queue:
        w = now.get((was.id, was.entered), was)
        if was.offer > after.seen and w.offer != was.offer:
            yield f"{w.id} was deprived of an offer before its end"
        expired = was.asked + LIFE <= after.seen
        if was.offer == 0 and w.offer == LAPSED and after.seen - before.seen < OFFER and not expired:
            yield f"{w.id} is passed over without an offer"


def _check_overtaking(
    before: Snapshot, after: Snapshot, grants: list[RecordedGrant], alone: bool, loss: StateLoss | None, ttl: Micros
) -> Iterator[str]:
    """Check that, between two snapshots, no caller got a grant or an offer before a waiter that was certainly ahead of
    it.
    """
    waiting = {w.id: w for w in before.queue}
    served = [(g.id, g.at) for g in grants if loss is None or _has_known_place(g, waiting, loss)]
    for w in after.queue:
        new = w.offer > 0 and w.offered > before.seen
        if new and (loss is None or (w.offered > loss.at and (w.id in waiting or w.entered > loss.at))):
            served.append((w.id, w.offered))
    if not served:
        return
    now = {(w.id, w.entered): w for w in after.queue}
    # Before its recorded grant, a waiter may have had another one whose reply was lost and whose lease has expired. So
    # treat every waiter as served at most one lease after the first snapshot.
    granted = {grant.id: min(grant.at, before.seen + ttl) for grant in grants}
    place = {w.id: i for i, w in enumerate(before.queue)}
    ends = [
        _waits_until(w, now.get((w.id, w.entered)), granted.get(w.id), before, after, alone, loss is not None)
        for w in before.queue
    ]
    for who, at in served:
        if who in waiting and at < waiting[who].offer:
            continue  # `who` accepted an offer that the first snapshot shows; `_check_snapshot` has checked that offer
        for i, end in enumerate(ends[: place.get(who, len(ends))]):
            if at < end:
                yield f"{who} was served past {before.queue[i].id}, which waited"
                break


def _has_known_place(grant: RecordedGrant, waiting: dict[str, QueuedWaiter], loss: StateLoss) -> bool:
    """Whether the grant was made after the loss of state, and its caller's place in the queue is known. It is known if
    the caller is in `waiting` (the waiters of the first snapshot), or if it asked only after the loss: then it is
    behind all waiters of the first snapshot.
    """
    return grant.at > loss.at and (grant.id in waiting or grant.asked > loss.t)


def _waits_until(
    was: QueuedWaiter,
    now: QueuedWaiter | None,
    granted: Micros | None,
    before: Snapshot,
    after: Snapshot,
    alone: bool,
    forgot: bool,
) -> Micros:
    """Return the engine's time until which a waiter of the first snapshot certainly waited. Until then, no waiter
    behind it may be served. 0: nothing is certain.

    was: the waiter in the first snapshot.
    now: the waiter in the second snapshot; None if it is no longer in the queue.
    granted: the engine's time of the waiter's grant; None if no grant is recorded.
    before, after: the first and the second snapshot.
    alone: whether only one caller can hold the lock. Then no other waiter may be served while this one has an offer.
    forgot: whether the engine lost state between the snapshots.
    """
    if was.offer == LAPSED or was.asked + LIFE <= after.seen:  # it was passed over, or its ticket may have expired
        return 0
    # The earliest time at which the waiter can have been passed over.
    lapse = was.offer or before.seen + OFFER
    if now is None:
        return min(granted, lapse) if granted is not None and alone and not forgot else 0
    if now.offer != LAPSED and (now.asked == was.asked or (after.seen < lapse and not forgot)):
        return now.offered if now.offer > 0 and not alone else after.seen + 1
    return lapse if alone and not forgot else 0
