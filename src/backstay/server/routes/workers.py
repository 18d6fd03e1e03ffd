"""Routes of workers: list, register, heartbeat, remove."""

from __future__ import annotations

from typing import TYPE_CHECKING

from backstay.job.flows import send
from backstay.job.model import WorkerRecord
from backstay.runtime import validation
from backstay.server.http.problem import not_found
from backstay.server.http.request import Request
from backstay.server.schemas.jobs import RegisterRequest, WorkerBeatRequest, WorkerInfo
from backstay.server.views.pages import read_jobs

if TYPE_CHECKING:
    from backstay.server.app import Server

#: The largest number of running jobs that are read to find busy workers.
MOST_RUNNING = 1000


async def busy_workers(server: Server) -> dict[str, str]:
    """Return the ids of workers that run a job, each with the id of one such job."""
    running = read_jobs(server.core, server.store, MOST_RUNNING, state="running")
    found = [(job.worker, job.id) async for job in running if job.worker]
    return dict(reversed(found))


def worker_info(server: Server, worker: WorkerRecord, current: str) -> WorkerInfo:
    status = server.heartbeats.status(worker, bool(current))
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


async def list_workers(request: Request) -> list[WorkerInfo]:
    """List all workers that sent a heartbeat within the last day, HTTP workers and others."""
    server = request.server
    busy = await busy_workers(server)
    workers = await send(server.core, server.store.workers())
    return [worker_info(server, worker, busy.get(worker.id, "")) for worker in workers]


async def register_worker(request: Request, body: RegisterRequest) -> WorkerInfo:
    """Register a worker with its labels and queues. Registering it again replaces them."""
    validation.check_label(body.worker_id, "worker_id")
    server = request.server
    await server.heartbeats.check_owner(body.worker_id, request.principal.owner)
    worker = WorkerRecord(
        id=body.worker_id,
        queues=tuple(body.queues),
        labels=tuple(sorted(set(body.labels))),
        concurrency=body.concurrency,
        host=body.host,
        owner=request.principal.owner,
    )
    await server.heartbeats.register(worker)
    found = await server.heartbeats.find(body.worker_id)
    return worker_info(server, found or worker, "")


async def beat_worker(request: Request, body: WorkerBeatRequest) -> WorkerInfo:
    """Record a heartbeat of a worker. A worker sends one every 10 s, and is offline after three missed ones."""
    server = request.server
    name = request.path["worker"]
    worker = await server.heartbeats.find(name)
    if worker is None:
        raise not_found("worker", name, "register it first")
    await server.heartbeats.check_owner(name, request.principal.owner)
    updated = WorkerRecord(
        id=worker.id,
        queues=worker.queues,
        labels=worker.labels if body.labels is None else tuple(sorted(set(body.labels))),
        concurrency=worker.concurrency,
        host=worker.host,
        pid=worker.pid,
        running=worker.running if body.running is None else body.running,
        draining=body.draining,
        owner=request.principal.owner,
    )
    await server.heartbeats.register(updated)
    return worker_info(server, await server.heartbeats.find(name) or updated, "")


async def remove_worker(request: Request) -> None:
    """Unregister a worker. Leases that it still has expire by themselves."""
    server = request.server
    name = request.path["worker"]
    if await server.heartbeats.find(name) is None:
        raise not_found("worker", name)
    if not request.principal.is_admin:
        await server.heartbeats.check_owner(name, request.principal.owner)
    await server.heartbeats.unregister(name)
