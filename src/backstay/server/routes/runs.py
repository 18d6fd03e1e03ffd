"""Runs: list, look, cancel, retry, re-run what failed, and what happened in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.errors import ConfigError
from backstay.job.flows import send
from backstay.job.run_model import Run
from backstay.server.events.sources import AllSource, RunSource, no_position, position
from backstay.server.http.request import Call, EventStream
from backstay.server.http.sse import follow, last_event_id, last_number
from backstay.server.routes.jobs import millis
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
from backstay.server.views.run_jobs import flow_jobs
from backstay.workflow import flows

if TYPE_CHECKING:
    from backstay.server.app import Server


def run_fields(run: Run, now: int) -> dict[str, object]:
    duration = max(0, (run.finished or now) - run.started) / 1_000_000 if run.started else None
    return {
        "id": run.id,
        "run_id": run.id,
        "workflow_id": run.workflow,
        "version": run.version,
        "status": run.status,
        "created_at": run.created // 1000,
        "started_at": millis(run.started),
        "finished_at": millis(run.finished),
        "duration_secs": duration,
        "cancel_requested": run.cancel_requested,
        "reason": run.reason,
        "counts": run.counts,
        "events": run.events,
    }


def info(server: Server, run: Run) -> RunInfo:
    return RunInfo(**run_fields(run, server.core.engine.now()))  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - its own fields


async def list_runs(call: Call, query: RunsQuery) -> list[RunInfo]:
    """Runs, newest first: `before` is the last id of the page before."""
    server = call.server
    op = server.store.list_runs(workflow=query.workflow, status=query.status, before=query.before, limit=query.limit)
    return [info(server, run) for run in await send(server.core, op)]


async def get_run(call: Call) -> RunDetail:
    """A run with its inputs and its whole DAG."""
    server = call.server
    run = await server.runbook.run(call.path["run"])
    play = server.runbook.learn(run)
    jobs = await flow_jobs(server, run)
    fields = run_fields(run, server.core.engine.now())
    return RunDetail(**fields, inputs=play.doc.inputs, jobs=jobs)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - its own fields


async def cancel_run(call: Call, body: ReasonRequest) -> RunInfo:
    """End a run: what waits is cancelled at once, what runs is told to stop."""
    server = call.server
    run = await server.runbook.run(call.path["run"])
    return info(server, await flows.cancel(server.core, run.id, body.reason))


async def retry_run_job(call: Call) -> JobStateReply:
    """Try one job of a run again, and what was skipped because of it. The run goes on. One whose own needs did not
    succeed is refused: try those again, and it follows.
    """
    server = call.server
    run = await server.runbook.run(call.path["run"])
    job = await server.runbook.find_job(run.workflow, call.path["job"], run.id)
    state = await flows.retry(server.core, run.id, job.id)
    return JobStateReply(id=job.id, status=STATUSES[state], state=state)


async def rerun_failed(call: Call) -> RunInfo:
    """Try everything that failed or was cancelled again, in one step. The run goes on."""
    server = call.server
    run = await server.runbook.run(call.path["run"])
    return info(server, await flows.rerun_failed(server.core, run.id))


async def read_events(call: Call, query: RunEventsQuery) -> list[Event] | EventStream:
    """What happened in a run, in order, in pages: `after` is the last sequence number of the page before. With
    `accept: text/event-stream`, as they happen.
    """
    if b"text/event-stream" in (call.header(b"accept") or b""):
        return await stream_run_events(call, RunStreamQuery(after=query.after))
    server = call.server
    run = await server.runbook.run(call.path["run"])
    happened = await send(server.core, server.store.run_events(run.id, query.after, query.limit))
    return [await server.names.view(one) for one in happened]


async def stream_run_events(call: Call, query: RunStreamQuery) -> EventStream:
    """What happens in a run, with its number as id; `end` once the run has ended and everything was told."""
    server = call.server
    server.make_room()
    run = await server.runbook.run(call.path["run"])
    after = last_number(call, query.after)
    return EventStream(follow(call, RunSource(server, server.names, run.id, after)))


async def stream_events(call: Call, query: EventsQuery) -> EventStream:
    """What happens in all runs, from now on; or behind the event whose id is `after` or Last-Event-ID ("0": from the
    oldest that is kept).
    """
    server = call.server
    server.make_room()
    start = position(last_event_id(call) or query.after, server.store.shards)
    try:
        for shard, cursor in enumerate(start.cursors):
            await send(server.core, server.store.events(shard, cursor, 1))
    except ConfigError:
        raise no_position() from None
    return EventStream(follow(call, AllSource(server, server.names, start)))
