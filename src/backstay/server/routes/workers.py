"""Workers: who they are, and that they are there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.job.flows import send
from backstay.job.model import Worker
from backstay.runtime import validation
from backstay.server.http.problem import not_found
from backstay.server.http.request import Call
from backstay.server.schemas.jobs import RegisterRequest, WorkerBeatRequest, WorkerInfo

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Running jobs that are looked at to tell who is busy.
MOST_RUNNING = 1000


async def busy_workers(server: Server) -> dict[str, str]:
    """Who runs something, and one thing that it runs."""
    running = await send(server.core, server.store.list_jobs(state="running", limit=MOST_RUNNING))
    return {job.worker: job.id for job in reversed(running) if job.worker}


def info(server: Server, worker: Worker, current: str) -> WorkerInfo:
    status = server.presences.status(worker, bool(current))
    return WorkerInfo(
        worker_id=worker.id,
        labels=list(worker.labels),
        registered_at_ms=worker.registered // 1000,
        last_heartbeat_ms=worker.beat // 1000,
        current_job=(current or worker.current or None) if status != "offline" else None,
        status=status,
        queues=list(worker.queues),
        concurrency=worker.concurrency,
        running=worker.running or int(bool(current)),
        host=worker.host,
        draining=worker.draining,
    )


async def list_workers(call: Call) -> list[WorkerInfo]:
    """All workers that were heard of within a day, whether they speak HTTP or to the engine."""
    server = call.server
    busy = await busy_workers(server)
    workers = await send(server.core, server.store.workers())
    return [info(server, worker, busy.get(worker.id, "")) for worker in workers]


async def register_worker(call: Call, body: RegisterRequest) -> WorkerInfo:
    """Say that a worker is there, and what it has. Registering again says it anew."""
    validation.word(body.worker_id, "worker_id")
    server = call.server
    worker = Worker(
        id=body.worker_id,
        queues=tuple(body.queues),
        labels=tuple(sorted(set(body.labels))),
        concurrency=body.concurrency,
        host=body.host,
    )
    await server.presences.register(worker)
    found = await server.presences.find(body.worker_id)
    return info(server, found or worker, "")


async def beat_worker(call: Call, body: WorkerBeatRequest) -> WorkerInfo:
    """A sign of life. After three that are missed (every 10 s is usual) a worker is offline."""
    server = call.server
    name = call.path["worker"]
    worker = await server.presences.find(name)
    if worker is None:
        raise not_found("worker", name, "register it first")
    told = Worker(
        id=worker.id,
        queues=worker.queues,
        labels=worker.labels if body.labels is None else tuple(sorted(set(body.labels))),
        concurrency=worker.concurrency,
        host=worker.host,
        pid=worker.pid,
        running=worker.running if body.running is None else body.running,
        draining=body.draining,
    )
    await server.presences.register(told)
    return info(server, await server.presences.find(name) or told, "")


async def remove_worker(call: Call) -> None:
    """Say that a worker has left. Its leases, if it has any, run out."""
    server = call.server
    name = call.path["worker"]
    if await server.presences.find(name) is None:
        raise not_found("worker", name)
    await server.presences.leave(name)
