"""Health, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.engine.base import Ping
from backstay.errors import BackstayError
from backstay.job.flows import send
from backstay.server.http.request import Answer, Call, Text
from backstay.server.routes.workers import busy_workers
from backstay.server.schemas.workflows import Health

#: How long a probe waits for the engine.
PATIENCE = 2.0


async def healthz(call: Call) -> Health:  # noqa: ARG001 - as all handlers
    """Whether this process answers. It may be so while its engine is away."""
    return Health(status="ok")


async def readyz(call: Call) -> Health | Answer:
    """Whether requests would be served: the engine answers, and the server does not stop."""
    if call.server.is_closing:
        return Answer(503, Health(status="stopping"))
    try:
        async with asyncio.timeout(PATIENCE):
            await call.server.core.port.apply(Ping())
    except (BackstayError, TimeoutError):
        return Answer(503, Health(status="unready"))
    return Health(status="ok")


async def metrics(call: Call) -> Text:
    """What Prometheus reads: requests, queues, workers, events."""
    server = call.server
    queues = await send(server.core, server.store.queues())
    workers = await send(server.core, server.store.workers())
    busy = await busy_workers(server)
    statuses = [(worker, server.presences.status(worker, worker.id in busy)) for worker in workers]
    return Text(server.metrics.text(queues, statuses, server.waiting))


async def openapi_document(call: Call) -> dict[str, Any]:
    """This document: OpenAPI 3.1, made from the server's own table of routes."""
    return call.server.document
