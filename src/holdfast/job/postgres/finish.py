"""Attempts end, by whoever holds their leases. What is plain, one statement ends (`columns`); the rest is here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from holdfast.engine.base import Micros
from holdfast.job.model import AGEING, Failure, Finish
from holdfast.job.postgres.ending import Ending, Ends
from holdfast.job.postgres.enqueue import Enqueueing
from holdfast.job.postgres.rows import AWAITED, CHAIN_WATCHED, Part, ask, encode_failure
from holdfast.job.postgres.texts import Bytes, Numbers, Texts

#: How a job ends for good.
STATES = {"complete": "completed", "fail": "failed", "cancel": "cancelled"}


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
        nexts: list[tuple[Finish, int, str]] = []
        counted: list[int] = []
        for nth, id_, attempt, retries, snoozes, flags, chain, cancel, now in sorted(rows, key=_by_place):
            place, finish = ordered[int(nth) - 1]
            counted.append(place)
            error = encode_failure(finish.error) if finish.error is not None else b""
            if cancel is not None and finish.kind != "complete":  # it neither fails nor comes back
                asked = encode_failure(Failure("Cancelled", cancel, attempt=attempt, at=self._now or now))
                endings.append(Ending(id_, "cancelled", error=error or asked))
            elif finish.kind in STATES:
                ends_as = cast("Any", STATES[finish.kind])
                follow = finish.next if finish.kind == "complete" else None
                endings.append(Ending(id_, ends_as, finish.result, error, follow.id if follow else ""))
                if follow is not None:
                    nexts.append((finish, flags, chain))
            elif finish.kind == "retry" and attempt > retries:
                endings.append(Ending(id_, "failed", error=error))
            elif finish.kind == "retry":
                again.append((id_, max(0, finish.delay), attempt, snoozes, error))
            elif finish.kind == "snooze":
                again.append((id_, max(0, finish.delay), attempt - 1, snoozes + 1, error))
            else:
                again.append((id_, -1, attempt - 1, snoozes, error))
        yield from self._go_on(nexts)
        yield from self._ends.end(endings)
        yield from self._again(again)
        return sorted(counted)

    def _go_on(self, nexts: list[tuple[Finish, int, str]]) -> Part:
        """The next jobs of chains: whoever waits for a chain, or watches it, goes on with it."""
        awaited = {chain for finish, _, _ in nexts if finish.next is not None for chain in finish.next.after}
        for finish, flags, chain in nexts:
            if finish.next is None:
                continue
            kept = flags & (CHAIN_WATCHED | AWAITED) | (AWAITED if chain in awaited else 0)
            yield from self._enqueueing.store([finish.next], self._now, self._ends, flags=kept, chain=chain)

    def _again(self, again: list[tuple[str, int, int, int, bytes]]) -> Part:
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
        self._ends.ready.update((id_, type_) for id_, type_, _, _, state in rows if state == "pending")
        keys = {key: limit for _, _, key, limit, _ in rows if key}
        yield from self._ends.free(keys)


def _by_place(row: tuple[Any, ...]) -> int:
    return int(row[0])


def _by_job(placed: tuple[int, Finish]) -> str:
    return placed[1].job


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
