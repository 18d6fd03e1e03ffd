"""Runs: begun, looked at, cancelled, tried again, watched over."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.errors import ConfigError
from backstay.job.model import NewJob
from backstay.job.run_model import FINISHED, LARGEST_RUN, EventPage, NewRun, Run, RunEvent, RunStatus, bad_cursor_error
from backstay.job.stores.postgres.admin import Admin
from backstay.job.stores.postgres.ending import Ends, cancelled
from backstay.job.stores.postgres.enqueue import after_columns
from backstay.job.stores.postgres.events import Cursor, events_of, page_of
from backstay.job.stores.postgres.rows import AWAITED, Part, ask, inside, whole
from backstay.job.stores.postgres.run_transitions import run_of
from backstay.job.stores.postgres.statements import Texts, readable, storable

#: Why a run is cancelled that nobody cancelled.
LATE = "the run did not end before its deadline"
#: A page that would be empty, only because somebody's short transaction is under way, is read again so often.
MOMENTS = 10
#: Jobs that one statement stores.
PORTION = 1000
#: Before all that ever happened.
FIRST = "0.0"
#: What happened in one moment is one place; the last number: how much of it was shown.
CURSOR = re.compile(r"([0-9]{1,19})\.([0-9]{1,18})(?:\.([0-9]{1,2}))?")


class Runs(Admin):
    """start_run, get_run, list_runs, cancel_run, rerun_failed, run_events, events, check_runs."""

    #: Where the next look at runs goes on.
    _checked = ""

    def start_run(self, run: NewRun) -> Op[Run]:
        _check(run)

        def work(ends: Ends) -> Part:
            mine = {
                "space": self.namespace,
                "now": ends.now,
                "id": run.id,
                "workflow": storable(run.workflow),
                "version": run.version,
                "doc": run.doc,
                "timeout": run.timeout,
                "keep": run.keep,
            }
            rows = yield from ask("run_start", mine)
            if rows:
                ends.transitions.begun.add(run.id)
                yield from self._begin(ends, run)

        return self._on_run(run.id, work)

    def _begin(self, ends: Ends, run: NewRun) -> Part:
        """All of its jobs. Nobody can wait for them, or end them, before this is over."""
        if not run.jobs:
            return
        runs = (run.id,)
        awaited = {chain for job in run.jobs for chain in job.after}
        # In one round: the server stores what has come while the rest is still being packed.
        statements: list[tuple[str, dict[str, Any]]] = []
        for flags, alike in (
            (0, [job for job in run.jobs if job.id not in awaited]),
            (AWAITED, [job for job in run.jobs if job.id in awaited]),
        ):
            for first in range(0, len(alike), PORTION):
                jobs = alike[first : first + PORTION]
                statements += self._enqueueing.statements(
                    jobs, ends.now, flags=flags, runs=runs, own=True, lowers=False
                )
        if awaited:
            statements.append(("after_store", after_columns(self.namespace, run.jobs, own=True)))
        answers = yield inside(*statements)
        made = [row for (name, _), rows in zip(statements, answers, strict=True) if name == "enqueue" for row in rows]
        states = {id_: state for id_, state, _ in made}
        ends.ready.update((id_, type_) for id_, state, type_ in made if state == "pending")
        self._enqueueing.count_in(run.jobs, states, ends, runs)
        alone = [job.id for job in run.jobs if job.when == "any_failure" and not job.after]
        skipped = yield from ends.start((), {}, alone)
        yield from ends.end(skipped)

    def _on_run(self, run: str, work: Callable[[Ends], Part]) -> StoreOperation[Any]:
        """A verb that answers the run as it is afterwards."""

        def talk(now: Micros | None, wakes: list[Wake]) -> Part:
            mine = {"space": self.namespace, "id": storable(run)}
            todo = work
            while True:
                ends = Ends(self.namespace, self.prefix, now, wakes)
                yield from todo(ends)
                *_, rows = yield whole(*(yield from ends.settle()), ("get_run", mine))
                ends.publish_wakes()
                if not ends.transitions.missed:
                    return run_of(rows[0], rows[0][19]) if rows else None
                todo = partial(self._cancel, runs=dict(ends.transitions.cancelling))

        return StoreOperation(talk)

    def get_run(self, run: str, *, doc: bool = True) -> Op[Run | None]:
        def answer(rows: list[Any]) -> Run | None:
            return run_of(rows[0], rows[0][19] if doc else b"") if rows else None

        return self.one("get_run" if doc else "get_run_bare", {"id": storable(run)}, answer, reads=True)

    def list_runs(
        self, *, workflow: str = "", status: RunStatus | None = None, before: str = "", limit: int = 50
    ) -> Op[list[Run]]:
        name = "list_runs_workflow" if workflow else "list_runs_status" if status else "list_runs"
        values = {"workflow": storable(workflow), "status": status or "", "before": before, "limit": limit}
        return self.one(name, values, lambda rows: [run_of(row) for row in rows], reads=True)

    def cancel_run(self, run: str, reason: str) -> Op[Run | None]:
        def work(ends: Ends) -> Part:
            rows = yield from ask("get_run", {"space": self.namespace, "id": storable(run)})
            if rows and rows[0][3] not in FINISHED and not rows[0][8]:
                yield from self._cancel(ends, {run: reason})

        return self._on_run(run, work)

    def _cancel(self, ends: Ends, runs: dict[str, str]) -> Part:
        """All of their jobs that have not ended: what runs is told, the rest ends. Whatever somebody else puts into
        them meanwhile meets a run that is being cancelled: see `Ends.settle`.
        """
        ends.transitions.cancelling.update(runs)
        rows = yield from ask("run_jobs", {"space": self.namespace, "runs": Texts(sorted(runs))})
        running = [(id_, storable(runs[run])) for id_, state, _, run, _ in rows if state == "running"]
        if running:
            ids, reasons = zip(*running, strict=True)
            yield inside(("run_cancel", {"space": self.namespace, "ids": Texts(ids), "reasons": Texts(reasons)}))
            for id_ in ids:
                ends.lost(id_)
            ends.transitions.asked.update(run for _, state, _, run, _ in rows if state == "running")
        yield from ends.end(
            [
                cancelled(id_, runs[run], attempt, ends.now or now)
                for id_, state, attempt, run, now in rows
                if state != "running"
            ]
        )

    def rerun_failed(self, run: str) -> Op[Run | None]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "id": storable(run), "run": storable(run)}
            rows = yield from ask("get_run", mine)
            if not rows or rows[0][3] not in FINISHED:
                return
            rows = yield from ask("rerun_find", mine)
            held = yield from self._hold([id_ for (id_,) in rows])
            rows = yield from ask("get_run", mine)
            if rows[0][3] in FINISHED:  # nobody was quicker
                yield from self._again(ends, held)

        return self._on_run(run, work)

    def _hold(self, jobs: Sequence[str]) -> Part:
        """Jobs that have ended, by id, with their chains."""
        rows = yield from ask("trigger_hold", {"space": self.namespace, "ids": Texts(sorted(jobs))})
        return {id_: chain for id_, _, chain in rows}

    def _again(self, ends: Ends, failed: dict[str, str]) -> Part:
        """Jobs that failed or were cancelled, with their chains; and those that were skipped because of them."""
        back = dict(failed)
        behind: set[str] = set()
        chains = set(back.values())
        new: list[str] = list(chains)
        while new:
            rows = yield from ask("rerun_behind", {"space": self.namespace, "chains": Texts(sorted(new))})
            new = []
            for id_, chain, condition, spoilt in rows:
                behind.add(id_)
                if id_ not in back and (condition != "all_success" or chains.issuperset(spoilt)):
                    back[id_] = chain
                    new.append(chain)
            chains.update(new)
        skipped = back.keys() - failed.keys()
        held = yield from self._hold(sorted(skipped))
        rows = yield from ask("after_of", {"space": self.namespace, "ids": Texts(sorted(back.keys() | behind))})
        yield from self.back(ends, failed, at_once=True)
        yield from self.back(ends, held, at_once=False)
        # Whoever comes back waits for those of its blockers that come back, too. Whoever stays away for another reason
        # does so no longer because of them.
        yield from self.unhear([(job, chain) for job, chain, ended in rows if ended and chain in chains])
        yield from self.let_go(ends, [*failed, *held])

    def run_events(self, run: str, after: int = 0, limit: int = 1000) -> Op[list[RunEvent]]:
        values = {"run": storable(run), "after": after, "limit": limit}

        def answer(rows: list[Any]) -> list[RunEvent]:
            events = (event for row in rows for event in events_of(row))
            return [event for event in events if after < event.seq <= after + limit]

        return self.one("run_events", values, answer, reads=True)

    def events(self, shard: int, after: str = "", limit: int = 1000) -> Op[EventPage]:
        if after == "$":
            return self.one("events_now", {}, lambda rows: EventPage((), f"{rows[0][0]}.0"), reads=True)
        given = CURSOR.fullmatch(after or FIRST)
        if given is None:
            raise bad_cursor_error(after)
        place = Cursor(given[1], int(given[2]), int(given[3] or 0))
        # What was begun of a row is read again with it.
        mine = {"space": self.namespace, "mark": place.mark, "number": place.number - bool(place.shown)}

        def talk(*_: object) -> Part:
            page = EventPage((), str(place))
            for _nth in range(MOMENTS):
                (rows,) = yield whole(("events", {**mine, "limit": limit + place.shown}))
                page = page_of(rows, place, limit)
                if page.events:
                    break
                (more,) = yield whole(("events_behind", {**mine, "number": place.number}))
                if not more:
                    break
            return page

        return StoreOperation(talk, reads=True)

    def check_runs(self, shard: int, limit: int = 100) -> Op[list[str]]:
        def work(ends: Ends) -> Part:
            mine = {"space": self.namespace, "now": ends.now, "limit": limit}
            looked, late = yield inside(("run_check", {**mine, "after": self._checked}), ("run_late", mine))
            # The next look goes on behind this one, and begins anew when there is nothing left.
            self._checked = looked[-1][0] if len(looked) >= limit else ""
            wrong = [id_ for id_, differs, *_ in looked if differs]
            ends.transitions.recounted.update((id_, {}) for id_ in wrong)
            # Somebody died who was about to cancel all of a run's jobs.
            stuck = {id_: readable(reason) for id_, _, is_stuck, reason in looked if is_stuck}
            if late or stuck:
                yield from self._cancel(ends, {**{id_: LATE for (id_,) in late}, **stuck})
            return wrong

        return self.act(work)


def _check(run: NewRun) -> None:
    if len(run.jobs) > LARGEST_RUN:
        raise ConfigError(f"run {run.id} has {len(run.jobs)} jobs, and {LARGEST_RUN} is the most: split it")
    known: set[str] = set()
    for job in run.jobs:
        if job.run != run.id:
            raise ConfigError(f"job {job.id} is of run {job.run!r}, not of {run.id}: give it the run's id")
        if job.unique is not None:
            raise ConfigError(f"job {job.id} of run {run.id} has a unique key, and a run needs all of its jobs")
        _check_after(job, known)
        known.add(job.id)


def _check_after(job: NewJob, known: Iterable[str]) -> None:
    for chain in job.after:
        if chain not in known:
            raise ConfigError(f"job {job.id} waits for {chain}, which is no job of its run that comes before it")
