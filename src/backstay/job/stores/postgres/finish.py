"""Attempts end, by whoever holds their leases. What is plain, one statement ends (`columns`); the rest is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import AGEING, Failure, Finish, NewJob
from backstay.job.stores.postgres.ending import Ending, Ends
from backstay.job.stores.postgres.enqueue import NONE, Enqueueing
from backstay.job.stores.postgres.rows import AWAITED, CHAIN_WATCHED, IN_RUN, SOFT, Part, ask, encode_failure, inside
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts, readable, storable

#: How a job ends for good.
STATES = {"complete": "completed", "fail": "failed", "cancel": "cancelled", "skip": "skipped"}


class Maker(NamedTuple):
    """A job that ends well and makes others. They are of its run."""

    finish: Finish
    flags: int
    chain: str
    run: str

    @property
    def made(self) -> list[NewJob]:
        return [*self.finish.adds, *([self.finish.next] if self.finish.next is not None else [])]


class Finishing:
    """The ends of one step that something hangs on, inside a transaction that holds its turn."""

    def __init__(self, ends: Ends, enqueueing: Enqueueing) -> None:
        self._space = ends.space
        self._now: Micros | None = ends.now
        self._ends = ends
        self._enqueueing = enqueueing

    def finish(self, finishes: Sequence[tuple[int, Finish]]) -> Part:
        """Ends attempts with all that hangs on them; returns the places of those whose lease was current."""
        if not finishes:
            return []
        ordered: list[tuple[int, Finish]] = sorted(finishes, key=_by_job)
        ids = {"ids": Texts([f.job for _, f in ordered]), "fences": Numbers([f.fence for _, f in ordered])}
        rows = yield from ask("finish_lock", {"space": self._space, **ids})
        endings: list[Ending] = []
        again: list[tuple[str, int, int, int, bytes]] = []
        makers: list[Maker] = []
        said: dict[str, tuple[str, str]] = {}
        counted: list[int] = []
        found = sorted((ordered[int(row[0]) - 1], row[1:]) for row in rows)  # in the order in which they were told
        for (place, finish), (id_, attempt, retries, snoozes, flags, chain, run, worker, cancel, now) in found:
            counted.append(place)
            error = encode_failure(finish.error) if finish.error is not None else b""
            why = finish.error.message if finish.error is not None else ""
            said[id_] = worker, why
            own: dict[str, Any] = {"worker": worker, "why": why}
            if cancel is not None and finish.kind != "complete":  # it neither fails nor comes back
                reason = readable(cancel)
                asked = encode_failure(Failure("Cancelled", reason, attempt=attempt, at=self._now or now))
                own["why"] = why if error else reason
                endings.append(Ending(id_, "cancelled", error=error or asked, **own))
            elif finish.kind == "complete":
                follow = finish.next.id if finish.next is not None else ""
                endings.append(Ending(id_, "completed", finish.result, error, follow, worker=worker))
                if finish.next is not None or finish.adds:
                    makers.append(Maker(finish, flags, chain, run))
            elif finish.kind == "fail" or (finish.kind == "retry" and attempt > retries):
                endings.append(Ending(id_, "failed", error=error, blame=not flags & SOFT, **own))
            elif finish.kind in STATES:
                endings.append(Ending(id_, cast("Any", STATES[finish.kind]), error=error, **own))
            elif finish.kind == "retry":
                again.append((id_, max(0, finish.delay), attempt, snoozes, error))
            elif finish.kind == "snooze":
                again.append((id_, max(0, finish.delay), attempt - 1, snoozes + 1, error))
            else:
                again.append((id_, -1, attempt - 1, snoozes, error))
        yield from self._put_outputs([found[0][1] for found in found])
        yield from self._make(makers)
        yield from self._ends.end(endings)
        yield from self._again(again, said)
        return sorted(counted)

    def _put_outputs(self, finishes: Sequence[Finish]) -> Part:
        left = [
            (finish.job, storable(key), value.encode())
            for finish in finishes
            if finish.kind == "complete"
            for key, value in finish.outputs.items()
        ]
        if left:
            jobs, keys, values = zip(*left, strict=True)
            columns = {"jobs": Texts(jobs), "keys": Texts(keys), "vals": Bytes(values)}
            yield inside(("finish_outputs", {"space": self._space, **columns}))

    def _make(self, makers: list[Maker]) -> Part:
        """What finishes add, and the next jobs of chains: whoever waits for a chain, or watches it, goes on with it."""
        awaited = {chain for maker in makers for made in maker.made for chain in made.after}
        known = yield from self._enqueueing.runs({maker.run for maker in makers if maker.flags & IN_RUN}, self._now)
        for finish, flags, chain, run in makers:
            these: dict[str, Any] = {"follows": True, "runs": known if flags & IN_RUN else NONE}
            if finish.adds:
                adds = [msgspec.structs.replace(job, run=run) for job in finish.adds]
                yield from self._enqueueing.store(adds, self._now, self._ends, **these)
            if finish.next is not None:
                kept = flags & (CHAIN_WATCHED | AWAITED) | (AWAITED if chain in awaited else 0)
                follow = msgspec.structs.replace(finish.next, run=run) if run else finish.next
                yield from self._enqueueing.store([follow], self._now, self._ends, flags=kept, chain=chain, **these)

    def _again(self, again: list[tuple[str, int, int, int, bytes]], said: dict[str, tuple[str, str]]) -> Part:
        if not again:
            return
        ids, delays, attempts, snoozes, errors = zip(*again, strict=True)
        values = {
            "space": self._space,
            "now": self._now,
            "ageing": AGEING,
            "ids": Texts(ids),
            "delays": Numbers(delays),
            "attempts": Numbers(attempts),
            "snoozes": Numbers(snoozes),
            "errors": Bytes(errors),
        }
        rows = yield from ask("again", values)
        self._ends.released([(row[0], row[1], *row[4:]) for row in rows], "running", said)
        yield from self._ends.free({row[2]: row[3] for row in rows if row[2]})


def _by_job(placed: tuple[int, Finish]) -> str:
    return placed[1].job


def is_plain(finish: Finish) -> bool:
    """Whether one statement can end it, if nothing hangs on its job."""
    bare = finish.next is None and not finish.adds and not finish.outputs
    return finish.kind in ("fail", "cancel") or (finish.kind == "complete" and bare)


def columns(plain: Sequence[Finish | None]) -> dict[str, Any]:
    """Columns with a place for every finish: those that are not plain have a fence that nobody has."""
    ids: list[str] = []
    fences: list[int] = []
    states: list[str] = []
    results: list[bytes] = []
    errors: list[bytes] = []
    for finish in plain:
        if finish is None:
            finish = _NOBODY  # noqa: PLW2901 - a place must be filled
        ids.append(finish.job)
        fences.append(finish.fence)
        states.append(STATES[finish.kind])
        results.append(finish.result)
        errors.append(encode_failure(finish.error) if finish.error is not None else b"")
    return {
        "ids": Texts(ids),
        "fences": Numbers(fences),
        "states": Texts(states),
        "results": Bytes(results),
        "errors": Bytes(errors),
    }


#: Fills the place of a finish that is not plain.
_NOBODY = Finish(job="", fence=-1, kind="complete")
