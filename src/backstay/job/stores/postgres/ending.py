"""What follows when jobs end: unique keys are free again, concurrency keys have room, whoever waited starts or is
skipped, their runs count it. All of it inside the transaction in which they end.

Everybody who needs several rows takes them in one order: jobs that end, by id; then concurrency keys, by number; then
jobs that wait, by id; then runs, by id (`run_transitions.py`). This fixed lock order prevents deadlock.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any, NamedTuple

from backstay.engine.base import Micros, Wake
from backstay.hub.protocol import CHAIN_COMPLETED, OWNERSHIP_LOST, channel
from backstay.job.model import Failure, State
from backstay.job.stores.postgres.rows import (
    AWAITED,
    CHAIN_WATCHED,
    IN_RUN,
    KEYED,
    SOFT,
    UNIQUE_DONE,
    UNIQUE_START,
    WATCHED,
    Part,
    ask,
    encode_failure,
    inside,
    key_lock,
)
from backstay.job.stores.postgres.run_transitions import STATES, JobTransition, LockedRun, RunTransitions, wakes_of
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts, readable

#: Where the end of a watched job is announced while its chain goes on.
JOB_COMPLETED = "jobc"


class Ending(NamedTuple):
    """A job that is to end. `blame`: for those who wait for it that is a failure."""

    job: str
    state: State
    result: bytes = b""
    error: bytes = b""
    followed_by: str = ""
    blame: bool = False
    worker: str = ""
    why: str = ""


class Outcome(NamedTuple):
    """What a chain came to, for those who wait for it: a result; no success; a failure."""

    completed: bool
    spoilt: bool
    blame: bool
    result: bytes = b""


#: A chain that nobody knows, or not any more.
UNKNOWN = Outcome(completed=False, spoilt=True, blame=True)


def outcome_of(state: str, flags: int, blame: bool, result: bytes | None) -> Outcome:
    """`blame`: of one that was skipped."""
    completed = state == "completed"
    soft = state == "failed" and bool(flags & SOFT)
    blame = (state == "failed" and not soft) or (state == "skipped" and blame)
    return Outcome(completed, not completed and not soft, blame, result or b"")


class Ends:
    """Ends jobs, and gathers what others ought to hear of."""

    def __init__(self, space: str, prefix: str, now: Micros | None, wakes: list[Wake]) -> None:
        self.space = space
        self.now = now
        #: Id and type of what became pending.
        self.ready: dict[str, str] = {}
        self.transitions = RunTransitions(space)
        self._wakes = wakes
        self._prefix = prefix
        self._told: list[Wake] = []

    def counts(self, but: Iterable[str] = ()) -> dict[str, int]:
        """How many became pending by type, without those that the caller has himself."""
        mine = set(but)
        return dict(Counter(readable(type_) for id_, type_ in self.ready.items() if id_ not in mine))

    def publish_wakes(self) -> None:
        """After the commit: whoever listens may look."""
        self._wakes += self._told
        self._wakes += self.transitions.wakes(self._prefix)
        self._told.clear()

    def lost(self, job: str) -> None:
        """Whoever runs this job ought to look after its lease."""
        self._told.append(Wake(channel(self._prefix, OWNERSHIP_LOST), job))

    def announce(self, job: str, chain: str, flags: int, *, last: bool = True) -> None:
        if last and flags & (WATCHED | CHAIN_WATCHED):
            self._told.append(Wake(channel(self._prefix, CHAIN_COMPLETED), chain))
        if flags & WATCHED and (not last or job != chain):
            self._told.append(Wake(channel(self._prefix, JOB_COMPLETED), job))

    # ── runs ──

    def counted(self, rows: Sequence[tuple[str, int, bool]]) -> None:
        """Runs that the server has counted itself, as run_move.sql answers."""
        self._told += wakes_of(self._prefix, rows)

    def moved(
        self,
        flags: int,
        run: str,
        job: str,
        before: str,
        after: str,
        attempt: int = 0,
        worker: str = "",
        why: str = "",
        kind: str = "",
        *,
        followed: bool = False,
    ) -> None:
        """A job moved: if it belongs to a run, that counts there. The rest as in `JobTransition`."""
        if flags & IN_RUN:
            self.transitions.add(JobTransition(run, job, before, after, attempt, flags, worker, why, kind, followed))

    def released(
        self, rows: Sequence[Any], before: str, said: Mapping[str, tuple[str, str]] = MappingProxyType({})
    ) -> None:
        """Rows as release.sql answers them: these can be had, or will be. `said`: whose attempt ended, and why."""
        for id_, type_, state, attempt, flags, run in rows:
            if state == "pending":
                self.ready[id_] = type_
            self.moved(flags, run, id_, before, state, attempt, *said.get(id_, ("", "")))

    def settle(self) -> Part:
        """The end of the transaction: holds the runs that are concerned. Returns what is to go with the commit."""
        transitions = self.transitions
        unseen = bool(transitions.held)  # some are held already, and nobody has looked at them
        while transitions and ((runs := transitions.unheld) or unseen):
            unseen = False
            if runs:
                rows = yield from ask("run_hold", {"space": self.space, "now": self.now, "ids": Texts(runs)})
                transitions.held.update((row[0], LockedRun.of(row)) for row in rows)
                transitions.gone.update(set(runs) - transitions.held.keys())
            if transitions.recounted:
                rows = yield from ask("run_count", {"space": self.space, "ids": Texts(sorted(transitions.recounted))})
                transitions.recounted = {
                    id_: dict(zip((*STATES, "hard"), counts, strict=True)) for id_, *counts in rows
                }
            if caught := transitions.caught():
                yield from self.end([cancelled(job, *why) for job, why in sorted(caught.items())])
                transitions.forget(caught)
        return transitions.closing() if transitions else []

    # ── ends ──

    def end(self, endings: Sequence[Ending]) -> Part:
        """These jobs, which are held, end; with all that follows. In turns, where it matters whose end skips others: of
        a failure they tell those behind them.
        """
        for _, alike in groupby(endings, key=lambda ending: ending.blame):
            yield from self._end(list(alike))

    def _end(self, endings: Sequence[Ending]) -> Part:
        freed: dict[str, int] = {}
        reached = False
        while endings:
            rows = yield from ask("end", _columns(self.space, self.now, endings))
            wanted = {ending.job: ending for ending in endings}
            unique: list[tuple[str, str]] = []
            over: dict[str, Outcome] = {}
            for id_, chain, flags, key, limit, unique_key, was, attempt, run in rows:
                ending = wanted[id_]
                last = not ending.followed_by
                self.ready.pop(id_, None)
                self.announce(id_, chain, flags, last=last)
                if flags & IN_RUN:
                    before = "pending" if was == "parked" else was
                    who, why = ending.worker, ending.why
                    self.moved(flags, run, id_, before, ending.state, attempt, who, why, followed=not last)
                if flags & (UNIQUE_DONE | UNIQUE_START):
                    unique.append((unique_key, id_))  # of one that never started, too
                if flags & KEYED:
                    freed[key] = max(limit, freed.get(key, 0))
                if last and flags & AWAITED:
                    over[chain] = outcome_of(ending.state, flags, ending.blame, ending.result)
            if unique:
                keys, jobs = zip(*sorted(unique), strict=True)
                yield inside(("unique_end", {"space": self.space, "keys": Texts(keys), "jobs": Texts(jobs)}))
            yield from self.free(freed)
            freed = {}
            endings = yield from self._ended(over, reached=reached)
            reached = True

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
        while True:
            moved = {id_: type_ for _, id_, type_ in rows if id_ is not None}
            self.ready.update(moved)
            if len(moved) >= rows[0][0]:
                return
            # Another transaction has changed one of them, such as a caller that begins to wait for its result. Without
            # a second look it would stay parked until another job of its key ends, which may never be.
            (rows,) = yield inside(("key_unpark", values))

    def follow(self, over: dict[str, Outcome]) -> Part:
        """Chains ended: all that follows."""
        yield from self.end((yield from self._ended(over, reached=False)))

    def _ended(self, over: dict[str, Outcome], *, reached: bool) -> Part:
        """Chains ended: returns the jobs that are skipped because of it. `reached`: these were skipped themselves, and
        whoever waits for them is held already, with all that comes behind.
        """
        if not over:
            return []
        statements = [("after_end", told(self.space, over))]
        if not reached:
            bad = Numbers([int(outcome.spoilt) for outcome in over.values()])
            statements.insert(0, ("after_reach", {"space": self.space, "chains": Texts(list(over)), "bad": bad}))
        *_, rows = yield inside(*statements)
        return (yield from self._start(news_of(heard(rows), over), [row[:1] + row[2:] for row in rows if row[2]]))

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
        over = {
            chain: UNKNOWN if result is None else Outcome(completed=True, spoilt=False, blame=False)
            for _, chain, result in ended
        }
        skipped = yield from self.start(rows, over)
        yield from self.end(skipped)

    def start(self, heard: Iterable[tuple[str, str]], over: dict[str, Outcome], also: Iterable[str] = ()) -> Part:
        """Jobs have heard of the ends of chains (`also`: others to look at). Let those start that wait for nobody any
        more; returns those that are to be skipped, first those that are because of a failure.
        """
        news = news_of(heard, over, also)
        if not news:
            return []
        rows = yield from ask("after_state", {"space": self.space, "ids": Texts(sorted(news))})
        return (yield from self._start(news, rows))

    def _start(self, news: dict[str, list[Outcome]], states: Sequence[Any]) -> Part:
        """The same with what after_state.sql said."""
        skipped: list[Ending] = []
        free: list[str] = []
        for id_, condition, left, blame in states:
            if condition == "all_success" and any(outcome.spoilt for outcome in news[id_]):
                skipped.append(Ending(id_, "skipped", blame=any(outcome.blame for outcome in news[id_])))
            elif condition == "any_failure" and not left and not blame:
                skipped.append(Ending(id_, "skipped"))
            elif not left:
                free.append(id_)
        yield from self.release(sorted(free))
        return sorted(skipped, key=lambda ending: (not ending.blame, ending.job))

    def release(self, ids: Sequence[str]) -> Part:
        """Blocked jobs can be had, or are scheduled."""
        if ids:
            rows = yield from ask("release", {"space": self.space, "now": self.now, "ids": Texts(ids)})
            self.released(rows, "blocked")


def cancelled(job: str, reason: str, attempt: int, now: Micros) -> Ending:
    """The end of a job that somebody does not want any more."""
    error = encode_failure(Failure("Cancelled", reason, attempt=attempt, at=now))
    return Ending(job, "cancelled", error=error, why=reason)


def news_of(
    heard: Iterable[tuple[str, str]], over: dict[str, Outcome], also: Iterable[str] = ()
) -> dict[str, list[Outcome]]:
    """What jobs heard (job, chain), by job."""
    news: dict[str, list[Outcome]] = {job: [] for job in also}
    for job, chain in heard:
        news.setdefault(job, []).append(over[chain])
    return news


def heard(rows: Iterable[Sequence[Any]]) -> list[tuple[str, str]]:
    """Which jobs waited for which chains, as after_end.sql says."""
    return [(row[0], chain) for row in rows for chain in row[1]]


def told(space: str, over: dict[str, Outcome]) -> dict[str, Any]:
    """What after_end.sql wants."""
    outcomes = over.values()
    return {
        "space": space,
        "chains": Texts(list(over)),
        "completed": Numbers([int(outcome.completed) for outcome in outcomes]),
        "spoilt": Numbers([int(outcome.spoilt) for outcome in outcomes]),
        "blames": Numbers([int(outcome.blame) for outcome in outcomes]),
        "results": Bytes([outcome.result for outcome in outcomes]),
    }


def _columns(space: str, now: Micros | None, endings: Sequence[Ending]) -> dict[str, Any]:
    return {
        "space": space,
        "now": now,
        "ids": Texts([e.job for e in endings]),
        "states": Texts([e.state for e in endings]),
        "results": Bytes([e.result for e in endings]),
        "errors": Bytes([e.error for e in endings]),
        "followed_by": Texts([e.followed_by for e in endings]),
        "blamed": Numbers([int(e.blame and e.state == "skipped") for e in endings]),
    }
