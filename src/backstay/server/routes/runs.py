"""Routes of runs: list, read, cancel, retry one job, re-run failed jobs, and events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.errors import ConfigError
from backstay.job.flows import send
from backstay.job.run_model import Run
from backstay.server.events.sources import AllRunsSource, RunSource, bad_position, parse_position
from backstay.server.http.request import Request
from backstay.server.http.response import EventStream
from backstay.server.http.sse import follow, last_event_id, last_event_number
from backstay.server.routes.jobs import duration_ms, millis
from backstay.server.schemas.jobs import STATUSES, JobStateReply, ReasonRequest
from backstay.server.schemas.workflows import (
    Event,
    EventsQuery,
    RunDetail,
    RunEventsQuery,
    RunInfo,
    RunsQuery,
    RunStreamQuery,
)
from backstay.server.views.run_jobs import run_jobs
from backstay.workflow import flows

if TYPE_CHECKING:
    from backstay.server.app import Server


def run_fields(run: Run, now: int) -> dict[str, object]:
    return {
        "id": run.id,
        "run_id": run.id,
        "workflow_id": run.workflow,
        "version": run.version,
        "status": run.status,
        "created_at": run.created // 1000,
        "started_at": millis(run.started),
        "finished_at": millis(run.finished),
        "duration_ms": duration_ms(run.started, run.finished, now),
        "cancel_requested": run.cancel_requested,
        "reason": run.reason,
        "counts": run.counts,
        "events": run.events,
    }


def run_info(server: Server, run: Run) -> RunInfo:
    return RunInfo(**run_fields(run, server.core.engine.now()))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - its own fields


async def list_runs(request: Request, query: RunsQuery) -> list[RunInfo]:
    """List runs, newest first. `before` is the last id of the previous page."""
    server = request.server
    op = server.store.list_runs(workflow=query.workflow, status=query.status, before=query.before, limit=query.limit)
    return [run_info(server, run) for run in await send(server.core, op)]


async def get_run(request: Request) -> RunDetail:
    """Return a run with its inputs and all jobs of its DAG."""
    server = request.server
    run = await server.run_lookup.get_run(request.path["run"])
    plan = await server.run_lookup.plan_of(run)
    jobs = await run_jobs(server, run, plan)
    fields = run_fields(run, server.core.engine.now())
    return RunDetail(**fields, inputs=plan.doc.inputs, jobs=jobs)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - its own fields


async def cancel_run(request: Request, body: ReasonRequest) -> RunInfo:
    """Cancel a run: waiting jobs are cancelled at once, running jobs are asked to stop."""
    server = request.server
    return run_info(server, await flows.cancel(server.core, request.path["run"], body.reason))


async def retry_run_job(request: Request) -> JobStateReply:
    """Retry one job of a run, and the jobs that were skipped because of it. The run reopens. While a job that it needs
    has not succeeded, the retry is refused: retry the needed job, and this one runs after it.
    """
    server = request.server
    run = await server.run_lookup.get_run(request.path["run"], doc=False)
    job = await server.run_lookup.find_job_in_run(run, request.path["job"])
    state = await flows.retry(server.core, run.id, job.id)
    return JobStateReply(id=job.id, status=STATUSES[state], state=state)


async def rerun_failed(request: Request) -> RunInfo:
    """Retry all failed and cancelled jobs of a run, in one transaction. The run reopens."""
    server = request.server
    return run_info(server, await flows.rerun_failed(server.core, request.path["run"]))


async def read_events(request: Request, query: RunEventsQuery) -> list[Event] | EventStream:
    """List the events of a run in order. `after` is the last sequence number of the previous page. With
    `accept: text/event-stream`, the events are streamed.
    """
    if b"text/event-stream" in (request.header(b"accept") or b""):
        return await stream_run_events(request, RunStreamQuery(after=query.after))
    server = request.server
    run = await server.run_lookup.get_run(request.path["run"], doc=False)
    stored = await send(server.core, server.store.run_events(run.id, query.after, query.limit))
    return [await server.event_renderer.render(one) for one in stored]


async def stream_run_events(request: Request, query: RunStreamQuery) -> EventStream:
    """Stream the events of a run, with the sequence number as id; then `end` once the run has finished and all events
    were sent.
    """
    server = request.server
    run = await server.run_lookup.get_run(request.path["run"], doc=False)
    last = last_event_number(request)
    after = query.after if last is None else last
    return EventStream(follow(request, RunSource(server, server.event_renderer, run.id, after)))


async def stream_events(request: Request, query: EventsQuery) -> EventStream:
    """Stream the events of all runs: from now on, or after the event whose id is `after` or Last-Event-ID ("0": from
    the oldest stored event).
    """
    server = request.server
    start = parse_position(last_event_id(request) or query.after, server.store.shards)
    try:
        for shard, cursor in enumerate(start.cursors):
            await send(server.core, server.store.events(shard, cursor, 1))
    except ConfigError:
        raise bad_position() from None
    return EventStream(follow(request, AllRunsSource(server, server.event_renderer, start)))
