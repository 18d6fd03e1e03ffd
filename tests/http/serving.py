"""A real uvicorn on a free loopback port, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

import uvicorn

from backstay import Backstay
from backstay.testing.waiting import WITHIN, eventually


@contextlib.contextmanager
def serving(make, url, **options):
    """Serve the application that `make(stay)` returns and yield its URL. The Backstay lives on the server's loop."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        ready = threading.Event()
        servers, troubles = [], []

        async def serve():
            async with contextlib.AsyncExitStack() as stack:
                stay = Backstay(url, **options)
                stack.push_async_callback(stay.close)
                config = uvicorn.Config(make(stay), log_level="error", lifespan="off", proxy_headers=False)
                server = uvicorn.Server(config)
                servers.append(server)
                ready.set()
                await server.serve(sockets=[sock])

        def run():
            try:
                asyncio.run(serve())
            except BaseException as error:  # noqa: BLE001 - raised in the test
                troubles.append(error)
                ready.set()

        thread = threading.Thread(target=run)
        thread.start()
        try:
            assert ready.wait(WITHIN)
            assert not troubles, troubles
            assert eventually(lambda: servers[0].started)
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            if servers:
                servers[0].should_exit = True
            thread.join(WITHIN)
    assert not troubles, troubles
