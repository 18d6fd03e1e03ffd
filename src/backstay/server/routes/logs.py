"""Routes of job logs: one page, or a stream."""

from __future__ import annotations

from backstay.job.api.chain_log import ChainLog
from backstay.server.http.request import Request
from backstay.server.http.response import EventStream
from backstay.server.http.sse import follow, last_number
from backstay.server.schemas.jobs import LogChunk, LogQuery, StreamQuery
from backstay.server.workers.logs import LogSource, build_chunk


async def read_logs(request: Request, query: LogQuery) -> list[LogChunk]:
    """Read a job's log in order. `after` is the last sequence number of the previous page.

    `{job}` is the job's name in the workflow or its own id; the workflow `-` stands for jobs without a workflow.
    """
    server = request.server
    workflow = request.path["workflow"]
    job = await server.run_lookup.find_job(workflow, request.path["job"], query.run, first=True)
    name = await server.run_lookup.key_of(job)
    lines = await ChainLog(server.core, job.id).read(query.after, query.limit)
    return [build_chunk(line, workflow, job.run, name) for line in lines]


async def stream_logs(request: Request, query: StreamQuery) -> EventStream:
    """Stream a job's log: `log` events with the sequence number as id, then `end` once the job has ended.

    A client that reconnects with Last-Event-ID continues there, without gaps or duplicates.
    """
    server = request.server
    server.check_waiting_limit()
    workflow = request.path["workflow"]
    job = await server.run_lookup.find_job(workflow, request.path["job"], query.run, first=True)
    name = await server.run_lookup.key_of(job)
    after = last_number(request, query.after)
    source = LogSource(server.core, job.id, after, workflow, job.run, name)
    return EventStream(follow(request, source))
