"""Routes for operators: health, metrics and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.engine.base import Ping, steady
from backstay.errors import BackstayError
from backstay.job.flows import send
from backstay.runtime.core import Core
from backstay.server.http.request import Request
from backstay.server.http.response import Response, Text
from backstay.server.routes.workers import busy_workers
from backstay.server.schemas.workflows import Health

#: Seconds that a readiness probe waits for the engine.
PROBE_TIMEOUT = 2.0
#: Seconds for which the result of a probe is used.
PROBE_AGE = 1.0


async def healthz(request: Request) -> Health:  # noqa: ARG001 - the signature of all handlers
    """Liveness: this process responds. Its engine may be unavailable."""
    return Health(status="ok")


async def readyz(request: Request) -> Health | Response:
    """Readiness: the engine responds, and the server is not stopping."""
    if request.server.is_closing:
        return Response(503, Health(status="stopping"))
    if not await request.server.readiness.check():
        return Response(503, Health(status="unready"))
    return Health(status="ok")


class Readiness:
    """Asks the engine whether it responds, at most once per PROBE_AGE seconds: the route needs no token, and its
    requests must not become load of the engine. Concurrent callers share one probe. Runs on the event loop only.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._probed_at = -PROBE_AGE
        self._probe: asyncio.Task[bool] | None = None

    async def check(self) -> bool:
        if self._probe is None or (self._probe.done() and steady() - self._probed_at >= PROBE_AGE):
            self._probed_at = steady()
            self._probe = asyncio.create_task(self._ping())
        return await asyncio.shield(self._probe)

    async def _ping(self) -> bool:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT):
                await self._core.port.apply(Ping())
        except (BackstayError, TimeoutError):
            return False
        return True


async def metrics(request: Request) -> Text:
    """Metrics in the Prometheus text format: requests, queues, workers, events."""
    server = request.server
    queues = await send(server.core, server.store.queues())
    workers = await send(server.core, server.store.workers())
    busy = await busy_workers(server)
    statuses = [(worker, server.heartbeats.status(worker, worker.id in busy)) for worker in workers]
    return Text(server.metrics.render(queues, statuses, server.waiting))


async def openapi_document(request: Request) -> dict[str, Any]:
    """The OpenAPI 3.1 document, built from the server's table of routes."""
    return request.server.document
