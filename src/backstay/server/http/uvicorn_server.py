"""Runs the application: uvicorn, with an end that streams and long polls hear of first."""

from __future__ import annotations

import logging
import socket

import uvicorn

from backstay.server.app import Server
from backstay.server.http.uvicorn_protocol import protocol

log = logging.getLogger("backstay.server")


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, app: Server) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.begin_close()  # before uvicorn waits for requests to end
        await super().shutdown(sockets)


class Serving:
    """A server on sockets: `await serving.run([sock])` until `stop()`. Signals are somebody else's business: uvicorn
    would end the process with them before anything else could be closed.
    """

    def __init__(self, app: Server) -> None:
        settings = app.settings
        config = uvicorn.Config(
            app,
            http=protocol(settings),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # its warnings are of what clients sent, and advise packages that nobody needs
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=int(settings.keep_alive),
            timeout_graceful_shutdown=max(1, int(settings.stop_patience)),
        )
        self._app = app
        self._server = _Uvicorn(config, app)

    @property
    def started(self) -> bool:
        return self._server.started

    async def run(self, sockets: list[socket.socket]) -> None:
        """Until it is told to stop; streams and long polls end at once, other requests have a moment."""
        await self._server._serve(sockets)  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - serve() without its signals

    def stop(self) -> None:
        """From the loop's thread. Safe twice."""
        self._server.should_exit = True

    def hurry(self) -> None:
        """Do not wait for anybody."""
        self._server.should_exit = self._server.force_exit = True
