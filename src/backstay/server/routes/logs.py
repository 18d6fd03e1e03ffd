"""A job's log: a page of it, or as it grows."""

from __future__ import annotations

from backstay.job.api.chain_log import ChainLog
from backstay.server.http.request import Call, EventStream
from backstay.server.http.sse import follow, last_number
from backstay.server.schemas.jobs import LogChunk, LogQuery, StreamQuery
from backstay.server.workers.logs import LogSource, chunk_of


async def read_logs(call: Call, query: LogQuery) -> list[LogChunk]:
    """A job's log, in order, in pages: `after` is the last sequence number of the page before.

    `{job}` is its name in the workflow or its own id; the workflow `-` has all jobs that belong to none.
    """
    server = call.server
    workflow = call.path["workflow"]
    job = await server.runbook.find_job(workflow, call.path["job"], query.run, first=True)
    name = await server.runbook.key_of(job)
    lines = await ChainLog(server.core, job.id).read(query.after, query.limit)
    return [chunk_of(line, workflow, job.run, name) for line in lines]


async def stream_logs(call: Call, query: StreamQuery) -> EventStream:
    """A job's log as it grows: events `log` with the sequence number as id, then `end` once the job has ended.

    A client that comes back with Last-Event-ID goes on from there: no gap, no double.
    """
    server = call.server
    server.make_room()
    workflow = call.path["workflow"]
    job = await server.runbook.find_job(workflow, call.path["job"], query.run, first=True)
    name = await server.runbook.key_of(job)
    after = last_number(call, query.after)
    source = LogSource(server.core, job.id, after, workflow, job.run, name)
    return EventStream(follow(call, source))
