"""Holdfast for async code: one object, from a URL. The only module that knows which engines there are."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from holdfast import channel as channels
from holdfast.channel import Ear, Message
from holdfast.core import Core, Identity
from holdfast.engine.base import Engine
from holdfast.errors import ConfigError
from holdfast.gate.lock import Lock, Locks, ReadWriteLock, Semaphore
from holdfast.hub.base import Hub
from holdfast.inputs import Duration, Template
from holdfast.policy import Policy
from holdfast.port import AsyncPort, BlockingPort
from holdfast.rooms import Rooms, Settings, observer
from holdfast.telemetry import Telemetry

if TYPE_CHECKING:
    from holdfast.sync import Holdfast as BlockingHoldfast

F = TypeVar("F", bound=Callable[..., Any])

#: URL schemes of Redis and Valkey; `+sentinel` and `+cluster` may follow.
REDIS = ("redis", "rediss", "valkey", "valkeys")


def open_engine(url: str, namespace: str) -> Engine:
    """The engine that a URL names. Each is loaded only when it is asked for."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme in ("memory", "sqlite"):
        from holdfast.engine.sqlite import SqliteEngine
        from holdfast.engine.sqlite.address import parse as parse_sqlite

        path, synchronous, timeout = parse_sqlite(url)
        return SqliteEngine(path, namespace=namespace, synchronous=synchronous, timeout=timeout)
    if scheme.partition("+")[0] in REDIS:
        from holdfast.engine.redis.topology import open_redis

        return open_redis(url, namespace)
    # What stands before a colon may be a password where the scheme was forgotten: show only what looks like one.
    shown = f"scheme {scheme!r}" if scheme.isalpha() and "://" in url else "URL"
    raise ConfigError(f"unknown engine {shown}; use sqlite:///holdfast.db, memory:// or redis://127.0.0.1:6379/0")


def open_hub(engine: Engine, identity: Identity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """The hub that goes with an engine."""
    if engine.default_hub == "local":
        from holdfast.engine.sqlite import SqliteEngine
        from holdfast.hub.local import LocalHub

        return LocalHub(cast("SqliteEngine", engine), inbox=identity.inbox)
    if engine.default_hub == "redis":
        from holdfast.engine.redis import RedisEngine
        from holdfast.hub.dial import AsyncDialer, ThreadDialer
        from holdfast.hub.redis import RedisHub

        server = cast("RedisEngine", engine)
        server.observe = observer(telemetry, "link")
        dialer = ThreadDialer(server) if blocking else AsyncDialer(server)
        return RedisHub(dialer, observe=observer(telemetry, "hub"))
    raise ConfigError(f"no hub is known for {type(engine).__name__}")


def build_core(settings: Settings, engine: Engine | None, *, blocking: bool) -> Core:
    """Engine, hub and port of one API, put together."""
    chosen = engine if engine is not None else open_engine(settings.url, settings.namespace)
    telemetry = Telemetry()
    return Core(
        engine=chosen,
        hub=lambda identity: open_hub(chosen, identity, telemetry, blocking=blocking),
        port=BlockingPort(chosen) if blocking else AsyncPort(chosen),
        policy=settings.policy,
        telemetry=telemetry,
    )


class Listening(Ear):
    """Messages of one channel: `async with hf.hub.listen("news") as messages: async for message in messages: …`."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def __aiter__(self) -> Listening:
        return self

    async def __anext__(self) -> Message:
        while (message := await self._next(None)) is None:
            pass
        return message

    async def next(self, timeout: float | None = None) -> Message | None:
        """The next message, or None when none came in time."""
        return await self._next(timeout)


class Channels:
    """Hints between processes: publish and listen."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def publish(self, channel: str, payload: str = "") -> None:
        """Tell whoever listens now. Not stored, not repeated."""
        await channels.publish(self._core, channel, payload)

    def listen(self, channel: str) -> Listening:
        """Hear what is published from entering on."""
        return Listening(self._core, channel)

    def states(self) -> dict[str, str]:
        """Each channel's listener: idle, starting, running or stopping."""
        return self._core.hub.states()


class Holdfast(Rooms[Lock, Semaphore, ReadWriteLock]):
    """Everything, from one URL. Belongs to the first event loop that uses it.

    url: `sqlite:///holdfast.db` (the default), `memory://`, `redis://…`; else the environment's HOLDFAST_URL.
    namespace: what shall not meet lives in different ones (HOLDFAST_NAMESPACE, "holdfast").
    profile: BALANCED, MAX_SAFETY, MAX_AVAILABILITY or a Policy of your own. engine: an engine object instead.
    """

    _lock_type = Lock
    _semaphore_type = Semaphore
    _rwlock_type = ReadWriteLock

    def __init__(
        self,
        url: str | None = None,
        *,
        namespace: str | None = None,
        profile: Policy | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._settings = Settings(url, namespace, profile)
        self._core = build_core(self._settings, engine, blocking=False)
        self._owns_engine = engine is None
        self._twin: BlockingHoldfast | None = None

    @property
    def locks(self) -> Locks:
        """Inspect, list, force-release, clean up."""
        return Locks(self._core)

    @property
    def hub(self) -> Channels:
        """Publish and listen."""
        return Channels(self._core)

    def locked(
        self,
        key: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | None = None,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
    ) -> Callable[[F], F]:
        """Run a function under a lock named by its arguments: `@hf.locked("user:{user_id}")`. Async or not."""

        def decorate(function: F) -> F:
            template = Template(key, function)
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def wrapper(*args: Any, **kwargs: Any) -> Any:
                    name = template.key(args, kwargs)
                    async with self.lock(name, ttl=ttl, wait=wait, renew=renew, max_hold=max_hold, reentrant=reentrant):
                        return await function(*args, **kwargs)

                return cast("F", wrapper)

            @functools.wraps(function)
            def blocking(*args: Any, **kwargs: Any) -> Any:
                name = template.key(args, kwargs)
                with self._blocking().lock(
                    name, ttl=ttl, wait=wait, renew=renew, max_hold=max_hold, reentrant=reentrant
                ):
                    return function(*args, **kwargs)

            return cast("F", blocking)

        return decorate

    def _blocking(self) -> BlockingHoldfast:
        """The blocking API over this one's engine, for functions that are not async."""
        if self._twin is None:
            from holdfast import sync

            settings = self._settings
            self._twin = sync.Holdfast(
                settings.url, namespace=settings.namespace, profile=settings.policy, engine=self._core.engine
            )
        return self._twin

    async def open(self) -> Self:
        """Reach the engine now instead of at first use."""
        self._core.check_open()
        cast("AsyncPort", self._core.port).loop()
        await self._core.engine.open()
        return self

    async def close(self) -> None:
        """Let go of connections and threads. Leases still held run out by themselves. Safe twice."""
        if self._twin is not None:
            await asyncio.to_thread(self._twin.close)
        if not self._core.closed:
            await self._core.dismiss()
            await self._core.hub.join()
            await asyncio.to_thread(self._core.close_parts)
        if self._owns_engine:
            await self._core.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
