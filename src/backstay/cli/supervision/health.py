"""A worker's health for probes: a file that it rewrites while it is healthy, and an HTTP port on loopback."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from backstay.errors import ConfigError
from backstay.job.worker.worker import Worker
from backstay.runtime.loop import Loop
from backstay.telemetry import Telemetry

#: Seconds between writes of the file. A probe should tolerate an age of three such periods.
WRITE_SECONDS = 2.0
#: A worker is unhealthy after the engine was unreachable for this many seconds.
UNREACHABLE = 15.0
#: Seconds after which a connection that sends no request is closed.
PROBE_TIMEOUT = 2.0


class HealthReporter:
    """Reports a worker's health in a file and on a port. The port is on loopback; remote probes need a proxy."""

    def __init__(self, worker: Worker, telemetry: Telemetry, *, file: str = "", port: int = 0) -> None:
        self._worker = worker
        self._file = Path(file) if file else None
        self._port = port
        self._loop = Loop(self._write, name="health file", every=WRITE_SECONDS, telemetry=telemetry)
        self._server: asyncio.Server | None = None

    @property
    def is_healthy(self) -> bool:
        return self._worker.unreachable_for < UNREACHABLE

    def report(self) -> dict[str, Any]:
        worker = self._worker
        return {
            "ok": self.is_healthy,
            "worker": worker.id,
            "queues": list(worker.queues),
            "running": worker.running,
            "done": worker.done,
            "draining": worker.is_draining,
            "engine_unreachable_seconds": round(worker.unreachable_for, 1),
        }

    async def open(self) -> None:
        if self._port:
            try:
                self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
            except OSError as error:
                raise ConfigError(f"--health-port {self._port} cannot be opened: {error.strerror or error}") from error
        if self._file is not None:
            self._loop.start()

    async def close(self) -> None:
        """Close the port and remove the file: a stopped worker is not healthy. Safe to call twice."""
        await self._loop.stop()
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None
        if self._file is not None:
            self._file.unlink(missing_ok=True)

    async def _write(self) -> None:
        if (
            self._file is not None and self.is_healthy
        ):  # otherwise the file is not rewritten, and the probe sees its age
            fresh = self._file.with_name(f".{self._file.name}.new")
            fresh.write_text(json.dumps(self.report()) + "\n")
            fresh.replace(self._file)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), PROBE_TIMEOUT)
            body = json.dumps(self.report()).encode()
            status = b"200 OK" if self.is_healthy else b"503 Service Unavailable"
            writer.write(
                b"HTTP/1.1 "
                + status
                + b"\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
