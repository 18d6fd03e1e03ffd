"""A real uvicorn on a free loopback port, in a thread with an event loop of its own."""

from __future__ import annotations

import contextlib
import socket

import uvicorn

from backstay import Backstay
from support.server.thread import server_thread


@contextlib.contextmanager
def serving(make, url, **options):
    """Serve the application that `make(stay)` returns and yield its URL. The Backstay lives on the server's loop."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))

        async def serve(ready):
            async with contextlib.AsyncExitStack() as stack:
                stay = Backstay(url, **options)
                stack.push_async_callback(stay.close)
                config = uvicorn.Config(make(stay), log_level="error", lifespan="off", proxy_headers=False)
                server = uvicorn.Server(config)
                ready(server)
                await server.serve(sockets=[sock])

        def stop(server):
            server.should_exit = True

        with server_thread(serve, stop):
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
