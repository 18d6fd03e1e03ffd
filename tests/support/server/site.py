"""Run a real server on a free loopback port, in a thread with its own event loop, on the test's engine."""

from __future__ import annotations

import asyncio
import contextlib

import httpx

from backstay import Backstay
from backstay.server.app import Server
from backstay.server.hosting import bind
from backstay.server.http.uvicorn_server import UvicornRunner
from backstay.server.settings import ServerSettings
from support.server.thread import server_thread


class Site:
    """A running server: its URL, a client, and its event loop for tests that run code there."""

    def __init__(self, port, loop, server):
        self.url = f"http://127.0.0.1:{port}"
        self.port = port
        self.loop = loop
        self.server = server
        self.http = httpx.Client(base_url=self.url, timeout=30)

    def do(self, coroutine):
        """Run a coroutine on the server's loop and return its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    @property
    def stay(self):
        return self.server.stay

    def post(self, path, body=None, **options):
        return self.http.post(path, json={} if body is None else body, **options)

    def get(self, path, **options):
        return self.http.get(path, **options)

    def enqueue(self, type_="work", args=None, **options):
        body = {"type": type_, "args": args or {}, **options}
        return self.post("/api/jobs", body).json()["id"]

    def claim(self, worker="w1", queues=("default",), **options):
        return self.post("/api/jobs/claim", {"worker_id": worker, "queues": list(queues), **options}).json()


@contextlib.contextmanager
def serving(url, *, namespace=None, settings=None, prepare=None, **options):
    """Run a server and yield its Site. The Backstay is created and closed on the server's loop; `prepare(server)` runs
    there before the server accepts requests.
    """
    with bind("127.0.0.1", 0) as sock:
        servers = []

        async def serve(ready):
            async with contextlib.AsyncExitStack() as stack:
                stay = Backstay(url, namespace=namespace, **options)
                stack.push_async_callback(stay.close)
                server = Server(stay, settings or ServerSettings(access_log=False))
                if prepare is not None:
                    await prepare(server)
                servers.append(server)
                runner = UvicornRunner(server)
                ready(runner)
                await runner.run([sock])

        with server_thread(serve, UvicornRunner.stop) as (loop, _):
            site = Site(sock.getsockname()[1], loop, servers[0])
            try:
                yield site
            finally:
                site.http.close()
