"""What follows when jobs end: unique keys are free again, concurrency keys have room, whoever waited starts or is
skipped. All of it inside the transaction in which they end.

Everybody who needs several rows takes them in one order: jobs that end, by id; then concurrency keys, by number; then
jobs that wait, by id. So nobody waits in a circle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from holdfast.engine.base import Micros, Wake
from holdfast.hub.wire import CHAIN_COMPLETED, OWNERSHIP_LOST, channel
from holdfast.job.model import State
from holdfast.job.postgres.rows import (
    AWAITED,
    CHAIN_WATCHED,
    KEYED,
    UNIQUE_DONE,
    UNIQUE_START,
    WATCHED,
    Part,
    ask,
    inside,
    key_lock,
)
from holdfast.job.postgres.texts import Bytes, Numbers, Texts

#: Where the end of a watched job is announced while its chain goes on.
JOB_COMPLETED = "jobc"


class Ending(NamedTuple):
    """A job that is to end."""

    job: str
    state: State
    result: bytes = b""
    error: bytes = b""
    followed_by: str = ""


class Ends:
    """Ends jobs, and gathers what others ought to hear of."""

    def __init__(self, space: str, prefix: str, now: Micros | None, wakes: list[Wake]) -> None:
        self.space = space
        self.now = now
        #: Id and type of what became pending.
        self.ready: dict[str, str] = {}
        self._wakes = wakes
        self._prefix = prefix
        self._told: list[Wake] = []

    def counts(self, but: Iterable[str] = ()) -> dict[str, int]:
        """How many became pending by type, without those that the caller has himself."""
        mine = set(but)
        return dict(Counter(type_ for id_, type_ in self.ready.items() if id_ not in mine))

    def tell(self) -> None:
        """After the commit: whoever listens may look."""
        self._wakes += self._told
        self._told.clear()

    def lost(self, job: str) -> None:
        """Whoever runs this job ought to look after its lease."""
        self._told.append(Wake(channel(self._prefix, OWNERSHIP_LOST), job))

    def announce(self, job: str, chain: str, flags: int, *, last: bool = True) -> None:
        if last and flags & (WATCHED | CHAIN_WATCHED):
            self._told.append(Wake(channel(self._prefix, CHAIN_COMPLETED), chain))
        if flags & WATCHED and (not last or job != chain):
            self._told.append(Wake(channel(self._prefix, JOB_COMPLETED), job))

    def end(self, endings: Sequence[Ending]) -> Part:
        """These jobs, which are held, end; with all that follows."""
        freed: dict[str, int] = {}
        while endings:
            rows = yield from ask("end", _columns(self.space, self.now, endings))
            followed = {ending.job: ending.followed_by for ending in endings}
            unique: list[tuple[str, str]] = []
            over: dict[str, tuple[bool, bytes]] = {}
            for id_, chain, flags, state, result, key, limit, unique_key, _ in rows:
                last = not followed[id_]
                self.announce(id_, chain, flags, last=last)
                if flags & (UNIQUE_DONE | UNIQUE_START):
                    unique.append((unique_key, id_))  # of one that never started, too
                if flags & KEYED:
                    freed[key] = max(limit, freed.get(key, 0))
                if last and flags & AWAITED:
                    over[chain] = (state == "completed", result)
            if unique:
                keys, jobs = zip(*sorted(unique), strict=True)
                yield inside(("unique_end", {"space": self.space, "keys": Texts(keys), "jobs": Texts(jobs)}))
            yield from self.free(freed)
            freed = {}
            endings = yield from self._ended(over)

    def free(self, keys: dict[str, int]) -> Part:
        """Jobs of these concurrency keys (by limit) run no more: others may."""
        if not keys:
            return
        locks = sorted(key_lock(self.space, key) for key in keys)
        values = {
            "space": self.space,
            "now": self.now,
            "keys": Texts(list(keys)),
            "limits": Numbers(list(keys.values())),
        }
        # In a statement of its own: it must see what others parked while the locks were waited for.
        _, rows = yield inside(("key_hold", {"locks": Numbers(locks)}), ("key_unpark", values))
        self.ready.update(rows)

    def _ended(self, over: dict[str, tuple[bool, bytes]]) -> Part:
        """Chains ended (completed?, result): returns the jobs that are skipped because of it."""
        if not over:
            return []
        chains = list(over)
        reach = {
            "space": self.space,
            "chains": Texts(chains),
            "bad": Texts([chain for chain, (completed, _) in over.items() if not completed]),
        }
        rows = yield from ask("after_reach", reach)
        waiting = sorted({job for (job,) in rows})
        if not waiting:
            return []
        values = {
            "space": self.space,
            "chains": Texts(chains),
            "completed": Numbers([int(completed) for completed, _ in over.values()]),
            "results": Bytes([result or b"" for _, result in over.values()]),
        }
        hold = {"space": self.space, "ids": Texts(waiting)}
        _, rows = yield inside(("after_hold", hold), ("after_end", values))
        return (yield from self.start({job for (job,) in rows}))

    def delivered(self, ended: Sequence[tuple[str, str, bytes | None]]) -> Part:
        """Jobs hear of chains that ended elsewhere (job, chain, result)."""
        if not ended:
            return
        jobs, chains, results = zip(*ended, strict=True)
        values = {
            "space": self.space,
            "jobs": Texts(jobs),
            "chains": Texts(chains),
            "completed": Numbers([int(result is not None) for result in results]),
            "results": Bytes([result or b"" for result in results]),
        }
        hold = {"space": self.space, "ids": Texts(sorted(set(jobs)))}
        _, rows = yield inside(("after_hold", hold), ("after_told", values))
        skipped = yield from self.start({job for (job,) in rows})
        yield from self.end(skipped)

    def start(self, waiting: Iterable[str]) -> Part:
        """Let those start that wait for nobody any more; returns those that are to be skipped."""
        ids = sorted(waiting)
        if not ids:
            return []
        rows = yield from ask("after_state", {"space": self.space, "ids": Texts(ids)})
        skipped = [Ending(id_, "skipped") for id_, condition, _, bad in rows if condition == "all_success" and bad]
        without = {ending.job for ending in skipped}
        free = [id_ for id_, _, left, _ in rows if not left and id_ not in without]
        if free:
            rows = yield from ask("release", {"space": self.space, "now": self.now, "ids": Texts(free)})
            self.ready.update((id_, type_) for id_, type_, state in rows if state == "pending")
        return skipped


def _columns(space: str, now: Micros | None, endings: Sequence[Ending]) -> dict[str, Any]:
    return {
        "space": space,
        "now": now,
        "ids": Texts([e.job for e in endings]),
        "states": Texts([e.state for e in endings]),
        "results": Bytes([e.result for e in endings]),
        "errors": Bytes([e.error for e in endings]),
        "followed_by": Texts([e.followed_by for e in endings]),
    }
