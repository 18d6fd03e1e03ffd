"""Check that a queue was served in order, from snapshots of the queue and the grants that callers recorded.

A snapshot shows each waiter with the time of its last request; the waiter has been awake since then, unless its offer
has lapsed. Two snapshots prove more: a waiter with the same rank in both kept that rank in between, and no waiter
behind it may have been served in that time.

A waiter is passed over from the end of an offer that it did not confirm until its next request; an offer made to
another waiter in that time stays valid. An offer lasts `OFFER`, so snapshots that are closer together hide no lapse. An
engine that loses state (failover, restart) continues from an earlier one: a waiter that kept its rank is owed its turn,
and only the actions and ranks that were lost are excused. A grant whose reply was lost is in no record: its owner
enters again after the lease expires, so a rank is certain for at most one lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from backstay.engine.base import Micros
from backstay.gate.machine import LAPSED, LIFE, OFFER


class Waiting(NamedTuple):
    """A waiter as a snapshot shows it."""

    id: str
    entered: Micros
    #: The time of its last request: it entered the queue, or checked again.
    asked: Micros
    #: The time until which its offer is valid; 0: it has no offer; LAPSED: its offer expired, so it is passed over.
    offer: Micros = 0

    @property
    def offered(self) -> Micros:
        """When the current offer was made."""
        return self.offer - OFFER


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of a name as an observer read it: engine time of its last change, holders' ids, queue in order."""

    name: str
    seen: Micros
    holders: tuple[str, ...]
    queue: tuple[Waiting, ...]
    #: The observer's clock just before it took the snapshot.
    t: float = 0.0


class Grant(NamedTuple):
    """A recorded grant. `at` is the engine's time; `asked` is the checker's time before the first request."""

    id: str
    at: Micros
    asked: float


class Loss(NamedTuple):
    """The engine lost state: at `t` on the checker's clock, at `at` on the engine's."""

    t: float
    at: Micros


def out_of_order(
    looks: Iterable[Snapshot],
    grants: Iterable[Grant],
    permits: int = 1,
    losses: Sequence[Loss] = (),
    ttl: Micros = 0,
) -> list[str]:
    """Return all violations of the order in which one name was served. `ttl` is that of the shortest lease; without it,
    less can be proven.
    """
    seen = sorted(looks, key=lambda look: look.seen)
    served = sorted(grants, key=lambda grant: grant.at)
    wrong = [found for look in seen for found in _at_a_glance(look, permits)]
    wrong += _ranks(seen, losses, ttl)
    nth = 0
    for before, after in pairwise(seen):
        while nth < len(served) and served[nth].at <= before.seen:
            nth += 1
        between: list[Grant] = []
        for grant in served[nth:]:
            if grant.at > after.seen:
                break
            between.append(grant)
        loss = next((loss for loss in reversed(losses) if before.seen <= loss.at < after.seen), None)
        if loss is None:
            wrong += _offers(before, after)
        wrong += _overtaken(before, after, between, permits == 1, loss, ttl)
    return list(dict.fromkeys(wrong))


def _at_a_glance(look: Snapshot, permits: int) -> Iterator[str]:
    """Yield the violations that a single snapshot shows."""
    queue = look.queue
    offered = [w for w in queue if w.offer > 0]
    if len(look.holders) + len(offered) > permits:
        yield (
            f"the engine itself shows {len(look.holders)} holders and {len(offered)} offers, {permits} allowed:"
            f" {look.holders}, {offered}"
        )
    if [w.entered for w in queue] != sorted(w.entered for w in queue):
        yield f"the queue is not in the order of arrival: {queue}"
    for i, w in enumerate(queue):
        if w.offer == LAPSED:
            if look.seen - w.asked < OFFER:
                yield f"{w.id} is passed over although it has just asked"
            continue
        if w.offer == 0 and len(look.holders) + len(offered) < permits:
            yield f"{w.id} waits although a place is free"
        for other in queue[i + 1 :]:
            if other.offer > 0 and w.asked < other.offered and (w.offer == 0 or other.offered < w.offered):
                yield f"{other.id} was offered a place past {w.id}, which waited"


def _ranks(looks: list[Snapshot], losses: Sequence[Loss], ttl: Micros) -> Iterator[str]:
    """An attempt enters the queue once. It loses its rank only by a grant, by expiry, or if the engine loses state."""
    known: dict[str, tuple[Waiting, Micros]] = {}
    for look in looks:
        for w in look.queue:
            was, seen = known.get(w.id, (w, 0))
            known[w.id] = (w, look.seen)
            if was.entered == w.entered or min(seen + ttl, max(was.asked + LIFE, was.offer)) <= w.entered:
                continue
            # After a loss of state, the engine knows an older rank of the waiter, or none.
            forgot = [loss for loss in losses if seen <= loss.at < look.seen]
            if not any(w.entered < was.entered or loss.at < w.entered for loss in forgot):
                yield f"{w.id} lost its rank: it entered at {was.entered} and again at {w.entered}"


def _offers(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Check that an offer stays valid until its end, and that no waiter is passed over without an offer."""
    now = {(w.id, w.entered): w for w in after.queue}
    for was in before.queue:
        w = now.get((was.id, was.entered), was)
        if was.offer > after.seen and w.offer != was.offer:
            yield f"{w.id} was deprived of an offer before its end"
        if was.offer == 0 and w.offer == LAPSED and after.seen - before.seen < OFFER:
            yield f"{w.id} is passed over without an offer"


def _overtaken(
    before: Snapshot, after: Snapshot, grants: list[Grant], alone: bool, loss: Loss | None, ttl: Micros
) -> Iterator[str]:
    """Check that no ticket is granted or offered a place ahead of a waiter that was certainly waiting."""
    stood = {w.id: w for w in before.queue}
    served = [(g.id, g.at) for g in grants if loss is None or _behind(g, stood, loss)]
    for w in after.queue:
        new = w.offer > 0 and w.offered > before.seen
        if new and (loss is None or (w.offered > loss.at and (w.id in stood or w.entered > loss.at))):
            served.append((w.id, w.offered))
    if not served:
        return
    now = {(w.id, w.entered): w for w in after.queue}
    # A recorded grant may be the waiter's second one: the reply of the first was lost, and its lease expired.
    granted = {grant.id: min(grant.at, before.seen + ttl) for grant in grants}
    place = {w.id: i for i, w in enumerate(before.queue)}
    ends = [
        _waits_until(w, now.get((w.id, w.entered)), granted.get(w.id), before, after, alone, loss is not None)
        for w in before.queue
    ]
    for who, at in served:
        if who in stood and at < stood[who].offer:
            continue  # it had an offer in the first snapshot, and that snapshot has been checked by itself
        for i, end in enumerate(ends[: place.get(who, len(ends))]):
            if at < end:
                yield f"{who} was served past {before.queue[i].id}, which waited"
                break


def _behind(grant: Grant, stood: dict[str, Waiting], loss: Loss) -> bool:
    """Whether the grant came after the loss of state, and to a waiter whose place in the queue is known: it is one of
    `stood`, or it asked after the loss and so comes after all of them.
    """
    return grant.at > loss.at and (grant.id in stood or grant.asked > loss.t)


def _waits_until(
    was: Waiting,
    now: Waiting | None,
    granted: Micros | None,
    before: Snapshot,
    after: Snapshot,
    alone: bool,
    forgot: bool,
) -> Micros:
    """Return the time before which no waiter behind this one may be served. From the first snapshot until then, this
    waiter was certainly awake and not served; if only one caller can hold the lock, the time in which the lock was
    offered to this waiter counts, too. 0: nothing is certain.
    """
    if was.offer == LAPSED:
        return 0
    # The earliest time at which the waiter can have been passed over.
    lapse = was.offer or before.seen + OFFER
    if now is None:
        return min(granted, lapse) if granted is not None and alone and not forgot else 0
    if now.offer != LAPSED and (now.asked == was.asked or (after.seen < lapse and not forgot)):
        return now.offered if now.offer > 0 and not alone else after.seen + 1
    return lapse if alone and not forgot else 0
