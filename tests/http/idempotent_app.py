"""A Starlette application behind IdempotencyMiddleware on a real uvicorn, in a thread of this process."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

import backstay
from backstay import IdempotencyMiddleware
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import eventually

#: Headers that differ between a response and its replay: the server's date, the replay marker, and cookies, which are
#: never replayed.
VARYING_HEADERS = {"date", "idempotent-replayed", "set-cookie"}


class IdempotentApp:
    """Records the effects of requests; while `proceed` is cleared, handlers wait inside the request."""

    def __init__(self, url, *, namespace="app", profile=None, inner=(), **options):
        self.effects = []
        self.background = []
        self.proceed = threading.Event()
        self.proceed.set()
        self.status = 201
        self.port = reserve_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self._url = url
        self._namespace = namespace
        self._profile = profile
        self._inner = inner
        self._options = options

    async def wait_to_proceed(self):
        await asyncio.to_thread(self.proceed.wait)

    async def charge(self, request):
        body = await request.body()
        self.effects.append(body)
        await self.wait_to_proceed()
        number = len(self.effects)
        response = Response(
            b"\x00\xff receipt %d " % number + body,
            self.status,
            {"x-receipt": str(number), "set-cookie": f"seen={number}", "content-type": "application/octet-stream"},
            background=BackgroundTask(self.background.append, number),
        )
        response.raw_headers += [(b"set-cookie", b"second=1"), (b"x-latin", b"\xe9")]
        return response

    async def stream(self, request):
        self.effects.append(await request.body())

        async def chunks():
            yield b"first,"
            await self.wait_to_proceed()
            yield b"second"

        return StreamingResponse(chunks(), media_type="text/plain")

    async def ticker(self, request):
        self.effects.append(await request.body())

        async def chunks():
            for _ in range(100):
                yield b"tick,"
                await asyncio.sleep(0.005)
            yield b"end"

        return StreamingResponse(chunks(), media_type="text/plain")

    async def large(self, request):
        self.effects.append(b"large")
        return Response(b"x" * 5000)

    async def broken(self, request):
        self.effects.append(b"broken")
        if len(self.effects) < 3:
            raise backstay.EngineUnavailable("raised by the application")
        return JSONResponse({"done": len(self.effects)})

    def _app(self):
        @contextlib.asynccontextmanager
        async def lifespan(app):
            yield
            await stay.close()

        stay = backstay.Backstay(self._url, namespace=self._namespace, profile=self._profile)
        handlers = {"/charge": self.charge, "/refund": self.charge, "/stream": self.stream}
        handlers |= {"/large": self.large, "/broken": self.broken, "/ticker": self.ticker}
        routes = [Route(path, handler, methods=["GET", "POST"]) for path, handler in handlers.items()]
        app = Starlette(routes=routes, lifespan=lifespan)
        for inner in self._inner:
            app.add_middleware(inner)
        app.add_middleware(IdempotencyMiddleware, stay=stay, **self._options)
        return app

    def __enter__(self):
        config = uvicorn.Config(self._app(), port=self.port, log_level="critical", timeout_graceful_shutdown=2)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run)
        self._thread.start()
        assert eventually(lambda: self._server.started)
        return self

    def __exit__(self, *_):
        self.proceed.set()
        self._server.should_exit = True
        self._thread.join()


#: The credentials of requests whose test does not care who sends them.
CALLER = {"authorization": "Bearer one"}


def post(app, path="/charge", *, key="k1", content=b"5 EUR", **headers):
    named = {"idempotency-key": key} if key is not None else {}
    return httpx.post(app.base + path, content=content, headers={**named, **(headers or CALLER)}, timeout=30)


def is_replay(response):
    return response.headers.get("idempotent-replayed") == "true"


def visible_parts(response):
    """Return the parts of a response that must be equal in its replay."""
    headers = [(name, value) for name, value in response.headers.multi_items() if name not in VARYING_HEADERS]
    return response.status_code, headers, response.content
