"""Helpers of the run suite: build a run from job names, execute its jobs, and check its consistency."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

from backstay.job.exchange import Claimed
from backstay.job.model import FINAL, Failure, Finish, Job, JobResult, NewJob
from backstay.job.run_model import FINISHED, NewRun, Run, RunEvent
from backstay.job.run_status import final_status
from backstay.testing.conformance.job.bench import Bench, StoreClient, build_finish

OOPS = Failure("OSError", "disk full")
#: The job state by event kind, for kinds that are not named after the state.
STATES = {"ready": "pending", "started": "running"}
PAGE = 1000

#: The jobs of a run: their options by name, or only their names.
JobOptionsByName = Mapping[str, Any] | Sequence[str]


class StartedRun:
    """A run with the ids of its jobs by name. A job's name is also its type."""

    def __init__(self, client: StoreClient, new: NewRun) -> None:
        self.client = client
        self.new = new
        self.id = new.id
        self.ids = {job.type: job.id for job in new.jobs}

    async def run(self) -> Run:
        run: Run | None = await self.client.call("get_run", self.id)
        assert run is not None, f"run {self.id} is gone"
        return run

    async def status(self) -> str:
        return (await self.run()).status

    async def jobs(self) -> list[Job]:
        """Return all jobs of the run, oldest first."""
        return await jobs_of(self.client, self.id)

    async def states(self) -> dict[str, str]:
        return {job.type: job.state for job in await self.jobs()}

    async def events(self) -> list[RunEvent]:
        return await events_of(self.client, self.id)

    async def event_list(self, since: int = 0) -> list[tuple[str, str]]:
        """Return the run's events as (kind, name of the job)."""
        names = {job.id: job.type for job in await self.jobs()} | {"": ""}
        return [(event.kind, names[event.job]) for event in (await self.events())[since:]]

    async def audit(self) -> Run:
        """Check that the run's record, its jobs and its events agree. Returns the run."""
        run, jobs, events = await self.run(), await self.jobs(), await self.events()
        assert run.counts == Counter(job.state for job in jobs if not job.followed_by)
        assert await self.client.call("results", self.id, limit=len(jobs) + 1) == [
            to_result(job) for job in reversed(jobs)
        ]
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
            soft = {job.id for job in self.new.jobs if job.soft}
            assert run.status == final_status(
                hard_failures=sum(job.state == "failed" and job.id not in soft for job in jobs),
                cancelled=sum(job.state == "cancelled" for job in jobs),
                cancel_requested=run.cancel_requested,
            )
            assert (events[-1].kind, events[-1].why, events[-1].at) == ("run_finished", run.status, run.finished)
        else:
            assert any(job.state not in FINAL for job in jobs)
            assert run.finished == 0
        return run


def to_result(job: Job) -> JobResult:
    """Convert a job to the `JobResult` that `results` returns for it."""
    return JobResult(job.id, job.type, job.state, job.chain, job.followed_by, job.result)


def plan_run(bench: Bench, jobs_by_name: JobOptionsByName, **fields: Any) -> NewRun:
    """Build a run from jobs such as {"a": {}, "b": {"after": "a"}}. `after`: the names of its blockers, separated by
    spaces.
    """
    id_ = fields.pop("id", "") or bench.new_id()
    jobs_by_name = jobs_by_name if isinstance(jobs_by_name, Mapping) else {name: {} for name in jobs_by_name}
    ids: dict[str, str] = {}
    jobs: list[NewJob] = []
    for name, options in jobs_by_name.items():
        options = dict(options)  # noqa: PLW2901 - a copy, because `after` is removed
        after = options.pop("after", "")
        names = after.split() if isinstance(after, str) else after
        new = bench.job(name, run=id_, after=tuple(ids[one] for one in names), **options)
        ids[name] = new.id
        jobs.append(new)
    return NewRun(id=id_, workflow=fields.pop("workflow", "build"), jobs=tuple(jobs), **fields)


async def begin(client: StoreClient, jobs_by_name: JobOptionsByName, **fields: Any) -> StartedRun:
    """Start a run."""
    new = plan_run(client.bench, jobs_by_name, **fields)
    run = await client.call("start_run", new)
    assert run.id == new.id
    return StartedRun(client, new)


def default_finish(job: Claimed, kind: str = "complete", **fields: Any) -> Finish:
    """Build a `Finish`, with which a worker reports how a job has ended. Unless `fields` say otherwise, a completed job
    has its name as the result, and a failed or retried one has the error `OOPS`.
    """
    if kind == "complete":
        return build_finish(job, kind, **{"result": job.type.encode(), **fields})
    return (
        build_finish(job, kind, **{"error": OOPS, **fields})
        if kind in ("fail", "retry")
        else build_finish(job, kind, **fields)
    )


async def run_jobs(client: StoreClient, kinds: Mapping[str, str] | None = None, *, most: int = 1000) -> list[str]:
    """Claim and finish jobs until none can be claimed. `kinds`: the kind of finish by job name, by default `complete`.
    Returns the names in order of claim.
    """
    order: list[str] = []
    while jobs := await client.claim(most):
        order += [job.type for job in jobs]
        await client.exchange([default_finish(job, (kinds or {}).get(job.type, "complete")) for job in jobs])
    return order


async def complete_concurrently(clients: Sequence[StoreClient], total: int, *, batch: int = 7) -> list[Claimed]:
    """Let clients claim and complete jobs concurrently until `total` jobs were claimed. Returns all claimed jobs."""
    had: list[Claimed] = []

    async def work(client: StoreClient, size: int) -> None:
        jobs: list[Claimed] = []
        while len(had) < total or jobs:
            reply = await client.exchange([default_finish(job) for job in jobs], want=size)
            assert set(reply.verdicts) <= {"ok"}
            jobs = list(reply.jobs)
            had.extend(jobs)
            if not jobs:
                await asyncio.sleep(0.001)  # let the other clients run

    await asyncio.gather(*[work(client, batch + nth) for nth, client in zip(count(), clients, strict=False)])
    return had


async def jobs_of(client: StoreClient, run: str) -> list[Job]:
    jobs: list[Job] = []
    while page := await client.call("list_jobs", run=run, before=jobs[-1].id if jobs else "", limit=PAGE):
        jobs += page
    return jobs[::-1]


async def events_of(client: StoreClient, run: str) -> list[RunEvent]:
    events: list[RunEvent] = []
    while page := await client.call("run_events", run, len(events), PAGE):
        events += page
    return events


async def all_events(client: StoreClient, after: str = "", limit: int = PAGE) -> tuple[list[RunEvent], str]:
    """Return the events of all runs after the cursor `after` ("": from the beginning), and the cursor after the last of
    these events. A cursor is a position in the list of all events.
    """
    events: list[RunEvent] = []
    while True:
        page = await client.call("events", client.bench.shard, after, limit)
        after = page.cursor
        events += page.events
        if not page.events:
            return events, after
