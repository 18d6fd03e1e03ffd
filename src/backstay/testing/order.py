"""Whether a queue was served in order: judged by looks at it, and by what the contenders were granted.

One look shows a state of the engine, and a waiter in it says when it last asked. Since then it has been awake, unless
it is passed over now. Two looks prove more: who stands in both with the same rank stood there in between, and nobody
behind it may have been served meanwhile.

A waiter is passed over from the end of an offer that it did not answer until it asks again, and an offer made to
another meanwhile still stands after that. An offer lasts `OFFER`, so looks that are closer than that hide no lapse. An
engine that forgets goes on from an earlier state: who kept its rank is owed its turn by the successor too, and only
what the forgotten one did, or the ranks that it forgot, are excused. A grant whose reply is lost is in no diary: when
its lease has run out, its owner enters anew, so a rank is certainly kept no longer than a lease lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from backstay.engine.base import Micros
from backstay.gate.machine import LAPSED, LIFE, OFFER


class Waiting(NamedTuple):
    """A waiter as a look shows it."""

    id: str
    entered: Micros
    #: When it last asked: it entered, or looked again.
    asked: Micros
    #: 0, or the moment until which an offer stands, or LAPSED: it is passed over.
    offer: Micros = 0

    @property
    def offered(self) -> Micros:
        """When the standing offer was made."""
        return self.offer - OFFER


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A name as an observer saw it: the engine time of its last change, holders' ids, and the queue in order."""

    name: str
    seen: Micros
    holders: tuple[str, ...]
    queue: tuple[Waiting, ...]
    #: Our time before it looked.
    t: float = 0.0


class Grant(NamedTuple):
    """What a contender was told: when the engine granted it. `asked` is our time before its first request."""

    id: str
    at: Micros
    asked: float


class Loss(NamedTuple):
    """When the engine forgot: our time, and its own."""

    t: float
    at: Micros


def out_of_order(
    looks: Iterable[Snapshot],
    grants: Iterable[Grant],
    permits: int = 1,
    losses: Sequence[Loss] = (),
    ttl: Micros = 0,
) -> list[str]:
    """What is wrong with the order in which one name was served; empty when nothing is. ttl: that of the shortest
    lease; without it less can be proven.
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
    """What is wrong with a single state."""
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
    """An attempt enters once. It leaves its rank only by a grant, by dying, or when the engine forgets."""
    known: dict[str, tuple[Waiting, Micros]] = {}
    for look in looks:
        for w in look.queue:
            was, seen = known.get(w.id, (w, 0))
            known[w.id] = (w, look.seen)
            if was.entered == w.entered or min(seen + ttl, max(was.asked + LIFE, was.offer)) <= w.entered:
                continue
            # The successor knows its older rank, or none at all.
            forgot = [loss for loss in losses if seen <= loss.at < look.seen]
            if not any(w.entered < was.entered or loss.at < w.entered for loss in forgot):
                yield f"{w.id} lost its rank: it entered at {was.entered} and again at {w.entered}"


def _offers(before: Snapshot, after: Snapshot) -> Iterator[str]:
    """An offer stands until its end, and nobody is passed over without one."""
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
    """Nobody is granted or offered a place past a waiter while that one certainly waits."""
    stood = {w.id: w for w in before.queue}
    served = [(g.id, g.at) for g in grants if loss is None or _behind(g, stood, loss)]
    for w in after.queue:
        new = w.offer > 0 and w.offered > before.seen
        if new and (loss is None or (w.offered > loss.at and (w.id in stood or w.entered > loss.at))):
            served.append((w.id, w.offered))
    if not served:
        return
    now = {(w.id, w.entered): w for w in after.queue}
    # It may be the second: the first, whose reply was lost, had run out.
    granted = {grant.id: min(grant.at, before.seen + ttl) for grant in grants}
    place = {w.id: i for i, w in enumerate(before.queue)}
    ends = [
        _waits_until(w, now.get((w.id, w.entered)), granted.get(w.id), before, after, alone, loss is not None)
        for w in before.queue
    ]
    for who, at in served:
        if who in stood and at < stood[who].offer:
            continue  # its place was kept for it at the first look: whether rightly, that look has shown
        for i, end in enumerate(ends[: place.get(who, len(ends))]):
            if at < end:
                yield f"{who} was served past {before.queue[i].id}, which waited"
                break


def _behind(grant: Grant, stood: dict[str, Waiting], loss: Loss) -> bool:
    """Whether the successor granted this, and to one whose place in the queue is known: it stood there, or came
    later than all of them.
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
    """Nobody behind may be granted before this: until then, from the first look on, it was awake and not served; with
    a single place, also while that is offered to it. 0: nothing is certain.
    """
    if was.offer == LAPSED:
        return 0
    #: Before that it cannot have been passed over.
    lapse = was.offer or before.seen + OFFER
    if now is None:
        return min(granted, lapse) if granted is not None and alone and not forgot else 0
    if now.offer != LAPSED and (now.asked == was.asked or (after.seen < lapse and not forgot)):
        return now.offered if now.offer > 0 and not alone else after.seen + 1
    return lapse if alone and not forgot else 0
