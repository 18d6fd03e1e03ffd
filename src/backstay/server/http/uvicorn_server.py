"""Runs the application on uvicorn. On stop, streams and long polls end before uvicorn waits for open requests."""

from __future__ import annotations

import logging
import socket

import uvicorn

from backstay.server.app import Server
from backstay.server.http.uvicorn_protocol import make_protocol

log = logging.getLogger("backstay.server")


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Server) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.begin_close()  # before uvicorn waits for open requests: streams end only after this call
        await super().shutdown(sockets)


class UvicornRunner:
    """Runs a Server on sockets: `run([sock])` returns after `stop()`. It installs no signal handlers, since uvicorn's
    handlers would end the process before the worker and the Backstay are closed.
    """

    def __init__(self, app: Server) -> None:
        settings = app.settings
        config = uvicorn.Config(
            app,
            http=make_protocol(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # its warnings concern only malformed requests and missing optional packages
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(settings.keep_alive),
            timeout_graceful_shutdown=max(1, int(settings.stop_timeout)),
        )
        self._app = app
        self._server = _Uvicorn(config, app)

    @property
    def started(self) -> bool:
        return self._server.started

    async def run(self, sockets: list[socket.socket]) -> None:
        """Serve until `stop()`. Then streams and long polls end at once; other requests have `stop_timeout` seconds."""
        await self._server._serve(sockets)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - serve() would install signal handlers

    def stop(self) -> None:
        """Stop gracefully. Call it on the event loop. Safe to call twice."""
        self._server.should_exit = True

    def force_stop(self) -> None:
        """Stop without waiting for open requests."""
        self._server.should_exit = self._server.force_exit = True
