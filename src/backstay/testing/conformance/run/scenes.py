"""Runs as claims speak of them: jobs by name, in one line; worked off to the end; audited."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from backstay.job.model import FINAL, Claimed, Failure, Finish, Job, JobResult, NewJob
from backstay.job.run_model import FINISHED, NewRun, Run, RunEvent
from backstay.testing.conformance.job.bench import Bench, Desk, end

OOPS = Failure("OSError", "disk full")
#: What the last event of a job says of its state.
STATES = {"ready": "pending", "started": "running"}
PAGE = 1000

#: What is wished of each job, by its name; or names alone.
Wishes = Mapping[str, Any] | Sequence[str]


class Begun:
    """A run, and its jobs by the names they have in it (which are their types, too)."""

    def __init__(self, desk: Desk, new: NewRun) -> None:
        self.desk = desk
        self.new = new
        self.id = new.id
        self.ids = {job.type: job.id for job in new.jobs}

    async def run(self) -> Run:
        run: Run | None = await self.desk.ask("get_run", self.id)
        assert run is not None, f"run {self.id} is gone"
        return run

    async def status(self) -> str:
        return (await self.run()).status

    async def jobs(self) -> list[Job]:
        """All of them, the first one first."""
        return await jobs_of(self.desk, self.id)

    async def states(self) -> dict[str, str]:
        return {job.type: job.state for job in await self.jobs()}

    async def events(self) -> list[RunEvent]:
        return await events_of(self.desk, self.id)

    async def told(self, since: int = 0) -> list[tuple[str, str]]:
        """Its events as (kind, name of the job)."""
        names = {job.id: job.type for job in await self.jobs()} | {"": ""}
        return [(event.kind, names[event.job]) for event in (await self.events())[since:]]

    async def audit(self) -> Run:
        """What the run says of itself is what its jobs say, and its events tell the same story."""
        run, jobs, events = await self.run(), await self.jobs(), await self.events()
        assert run.counts == Counter(job.state for job in jobs if not job.followed_by)
        assert await self.desk.ask("results", self.id, limit=len(jobs) + 1) == [brief(job) for job in reversed(jobs)]
        assert [event.seq for event in events] == list(range(1, run.events + 1))
        assert [event.at for event in events] == sorted(event.at for event in events)
        assert {event.run for event in events} == {self.id}
        last = {event.job: STATES.get(event.kind, event.kind) for event in events if event.job}
        for job in jobs:
            if job.state != "blocked":
                assert last.get(job.id) == job.state, f"{job.type} is {job.state}, its last event {last.get(job.id)}"
        kinds = [event.kind for event in events if not event.job]
        assert kinds[0] == "run_created"
        assert events[0].kind == "run_created"
        assert kinds.count("run_finished") - kinds.count("run_reopened") == (run.status in FINISHED)
        if run.status in FINISHED:
            assert all(job.state in FINAL for job in jobs)
            assert (events[-1].kind, events[-1].why, events[-1].at) == ("run_finished", run.status, run.finished)
        else:
            assert any(job.state not in FINAL for job in jobs)
            assert run.finished == 0
        return run


def brief(job: Job) -> JobResult:
    """What it came to."""
    return JobResult(job.id, job.type, job.state, job.chain, job.followed_by, job.result)


def planned(bench: Bench, wishes: Wishes, **fields: Any) -> NewRun:
    """A run to be: {"a": {}, "b": {"after": "a"}}. `after` names jobs of the run, with spaces between."""
    id_ = fields.pop("id", "") or bench.new_id()
    wishes = wishes if isinstance(wishes, Mapping) else {name: {} for name in wishes}
    ids: dict[str, str] = {}
    jobs: list[NewJob] = []
    for name, wish in wishes.items():
        wish = dict(wish)  # noqa: PLW2901 - its own from here on
        after = wish.pop("after", "")
        names = after.split() if isinstance(after, str) else after
        new = bench.job(name, run=id_, after=tuple(ids[one] for one in names), **wish)
        ids[name] = new.id
        jobs.append(new)
    return NewRun(id=id_, workflow=fields.pop("workflow", "build"), jobs=tuple(jobs), **fields)


async def begin(desk: Desk, wishes: Wishes, **fields: Any) -> Begun:
    """Start a run."""
    new = planned(desk.bench, wishes, **fields)
    run = await desk.ask("start_run", new)
    assert run.id == new.id
    return Begun(desk, new)


def outcome(job: Claimed, kind: str = "complete", **fields: Any) -> Finish:
    """A job's end as most claims want it: its result is its name, its failure the usual one."""
    if kind == "complete":
        return end(job, kind, **{"result": job.type.encode(), **fields})
    return end(job, kind, **{"error": OOPS, **fields}) if kind in ("fail", "retry") else end(job, kind, **fields)


async def play(desk: Desk, kinds: Mapping[str, str] | None = None, *, most: int = 1000) -> list[str]:
    """Work off all that can be had, each job ending as `kinds` says; the names in the order they were had."""
    order: list[str] = []
    while jobs := await desk.claim(most):
        order += [job.type for job in jobs]
        await desk.step([outcome(job, (kinds or {}).get(job.type, "complete")) for job in jobs])
    return order


async def work_together(desks: Sequence[Desk], total: int, *, batch: int = 7) -> list[Claimed]:
    """Desks finish and claim at the same time until `total` jobs have been had; every one of them completes."""
    had: list[Claimed] = []

    async def work(desk: Desk, size: int) -> None:
        jobs: list[Claimed] = []
        while len(had) < total or jobs:
            reply = await desk.step([outcome(job) for job in jobs], want=size)
            assert set(reply.verdicts) <= {"ok"}
            jobs = list(reply.jobs)
            had.extend(jobs)
            if not jobs:
                await asyncio.sleep(0.001)  # the others' turn

    await asyncio.gather(*[work(desk, batch + nth) for nth, desk in zip(count(), desks, strict=False)])
    return had


async def jobs_of(desk: Desk, run: str) -> list[Job]:
    jobs: list[Job] = []
    while page := await desk.ask("list_jobs", run=run, before=jobs[-1].id if jobs else "", limit=PAGE):
        jobs += page
    return jobs[::-1]


async def events_of(desk: Desk, run: str) -> list[RunEvent]:
    events: list[RunEvent] = []
    while page := await desk.ask("run_events", run, len(events), PAGE):
        events += page
    return events


async def all_events(desk: Desk, after: str = "", limit: int = PAGE) -> tuple[list[RunEvent], str]:
    """Events of all runs behind a cursor, and the cursor behind them."""
    events: list[RunEvent] = []
    while True:
        page = await desk.ask("events", desk.bench.shard, after, limit)
        after = page.cursor
        events += page.events
        if not page.events:
            return events, after
