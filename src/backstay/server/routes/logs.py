"""Routes of job logs: one page, or a stream."""

from __future__ import annotations

from backstay.job.api.chain_log import ChainLog
from backstay.server.http.request import Request
from backstay.server.http.response import EventStream
from backstay.server.http.sse import follow, last_event_number
from backstay.server.schemas.jobs import LogChunk, LogQuery, StreamQuery
from backstay.server.views.pages import PageBudget
from backstay.server.workers.logs import LogSource, build_chunk, lines_read

#: Lines per read: a line has up to 64 KiB.
LINES = 100


async def read_logs(request: Request, query: LogQuery) -> list[LogChunk]:
    """Read a job's log in order. `after` is the last sequence number of the previous page; without it, the log is read
    from the start. A page may have fewer chunks than `limit` while there are more: continue until a page is empty.

    `{job}` is the job's name in the workflow or its own id; the workflow `-` stands for jobs without a workflow.
    """
    server = request.server
    workflow = request.path["workflow"]
    job = await server.run_lookup.find_job(workflow, request.path["job"], query.run, first=True)
    name = await server.run_lookup.key_of(job)
    log = ChainLog(server.core, job.id)
    budget = PageBudget()
    made: list[LogChunk] = []
    after = lines_read(query.after)
    while len(made) < query.limit:
        lines = await log.read(after, min(LINES, query.limit - len(made)))
        for line in lines:
            chunk = build_chunk(line, workflow, job.run, name)
            if not budget.fits(chunk) and made:
                return made
            made.append(chunk)
        if not lines:
            break
        after = lines[-1].seq
    return made


async def stream_logs(request: Request, query: StreamQuery) -> EventStream:
    """Stream a job's log: `log` events with the sequence number as id, then `end` once the job has ended.

    A client that reconnects with Last-Event-ID continues after that event, without gaps or duplicates.
    """
    server = request.server
    workflow = request.path["workflow"]
    job = await server.run_lookup.find_job(workflow, request.path["job"], query.run, first=True)
    name = await server.run_lookup.key_of(job)
    last = last_event_number(request)
    after = lines_read(query.after if last is None else last)
    source = LogSource(server.core, job.id, after, workflow, job.run, name)
    return EventStream(follow(request, source))
