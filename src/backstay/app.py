"""Backstay for async code: one object, from a URL. The only module that knows which engines there are."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, cast
from urllib.parse import urlsplit

from backstay.assembly.base import Rooms, Settings, observer, shards_here
from backstay.channel.api import Channels
from backstay.engine.base import Carrier, Engine, WakesAfterCommit
from backstay.engine.client_types import Owned, family
from backstay.errors import ConfigError
from backstay.gate.api import Lock, Locks, ReadWriteLock, Semaphore
from backstay.gate.durability import replicas
from backstay.gate.options import UNSET, Unset
from backstay.hub.base import Hub
from backstay.idempotency.api import Idempotency
from backstay.idempotency.decorator import Calls, awaited
from backstay.idempotency.options import OnError, OnUnavailable, spec
from backstay.interop.n8n_wire.option import Wire, is_n8n
from backstay.job import shutdown
from backstay.job.api.mixin import JobDoor
from backstay.limit.api import LimitDoor
from backstay.policy import Policy
from backstay.runtime.core import Core, Identity
from backstay.runtime.port import AsyncPort, BlockingPort
from backstay.runtime.serialization import Codec
from backstay.runtime.validation import Duration, Template
from backstay.telemetry import Telemetry
from backstay.workflow.api.mixin import WorkflowDoor
from backstay.workflow.api.worker_mixin import WorkerDoor

if TYPE_CHECKING:
    from backstay.job.store import Store
    from backstay.sync import Backstay as BlockingBackstay

F = TypeVar("F", bound=Callable[..., Any])

#: URL schemes of Redis and Valkey; `+sentinel`, `+cluster` and `+unix` may follow.
REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
POSTGRES = ("postgresql", "postgres")


def open_engine(url: str, namespace: str) -> Engine:
    """The engine that a URL names. Each is loaded only when it is asked for."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme in ("memory", "sqlite"):
        from backstay.engine.sqlite.address import parse as parse_sqlite
        from backstay.engine.sqlite.engine import SqliteEngine

        path, synchronous, timeout = parse_sqlite(url)
        return SqliteEngine(path, namespace=namespace, synchronous=synchronous, timeout=timeout)
    if scheme.partition("+")[0] in REDIS:
        from backstay.engine.redis.topology.open import open_redis

        return open_redis(url, namespace)
    if scheme in POSTGRES:
        postgres_or_explain()
        from backstay.engine.postgres.address import parse as parse_postgres
        from backstay.engine.postgres.engine import PostgresEngine

        return PostgresEngine(parse_postgres(url), namespace=namespace)
    # What stands before a colon may be a password where the scheme was forgotten: show only what looks like one.
    shown = f"scheme {scheme!r}" if scheme.isalpha() and "://" in url else "URL"
    raise ConfigError(
        f"unknown engine {shown}; use sqlite:///backstay.db, memory://, redis://127.0.0.1:6379/0"
        " or postgresql://user@127.0.0.1:5432/database"
    )


def engine_of(given: object, namespace: str, *, blocking: bool, what: str = "an engine is") -> Engine:
    """The engine for a URL, or for a client or pool of the user's, which stays theirs."""
    if isinstance(given, str):
        return open_engine(given, namespace)
    if family(given, what) == "redis":
        from backstay.engine.redis.client_settings import open_client

        return open_client(given, namespace)
    from backstay.engine.postgres.connection.pool_settings import open_pool

    return open_pool(given, namespace, blocking=blocking)


def postgres_or_explain() -> None:
    """The driver is an extra: say so instead of failing with an import."""
    if find_spec("psycopg") is None:
        raise ConfigError("PostgreSQL needs its driver: pip install 'backstay[postgres]'")


def open_hub(engine: Engine, identity: Identity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """The hub that goes with an engine, which carries out its operations, too."""
    observe = observer(telemetry, "hub")
    if engine.default_hub == "local":
        from backstay.engine.sqlite.engine import SqliteEngine
        from backstay.hub.local import LocalHub

        return LocalHub(cast("SqliteEngine", engine), inbox=identity.inbox, carrier=engine, observe=observe)
    if engine.default_hub == "redis":
        from backstay.engine.redis.engine import RedisEngine
        from backstay.hub.redis import RedisHub
        from backstay.hub.redis_connection import AsyncDialer, ThreadDialer

        server = cast("RedisEngine", engine)
        server.watch(observer(telemetry, "link"))
        dialer = ThreadDialer(server) if blocking else AsyncDialer(server)
        return RedisHub(dialer, carrier=engine, observe=observe)
    if engine.default_hub == "postgres":
        from backstay.engine.postgres.engine import PostgresEngine
        from backstay.hub.postgres import PostgresHub

        return PostgresHub(cast("PostgresEngine", engine), inbox=identity.inbox, carrier=engine, observe=observe)
    raise ConfigError(f"no hub is known for {type(engine).__name__}")


def open_store(engine: Engine, prefix: str, shards: int | None) -> Store:
    """Where jobs live on this engine. `prefix`: what the hub's channels begin with."""
    if engine.default_hub != "redis" and shards not in (None, 1):
        raise ConfigError(f"shards={shards} is for Redis; SQLite and PostgreSQL keep all jobs in one place")
    if engine.default_hub == "local":
        from backstay.job.stores.sqlite.store import SqliteStore

        return SqliteStore(engine.namespace, prefix)
    if engine.default_hub == "postgres":
        from backstay.job.stores.postgres.store import PostgresStore

        return PostgresStore(engine.namespace, prefix)
    if engine.default_hub == "redis":
        from backstay.engine.redis.topology.cluster import ClusterEngine
        from backstay.job.stores.redis.store import RedisStore

        shards = shards_here() if shards is None else shards
        # On a Cluster a hint's counter may be another node's than the job's; and a hint names no shard.
        one_place = shards == 1 and not isinstance(engine, ClusterEngine)
        return RedisStore(engine.namespace, prefix, shards, announces=one_place)
    raise ConfigError(f"no job store is known for {type(engine).__name__}")


def hub_carrier(given: object, engine: Engine, *, blocking: bool) -> Engine:
    """The engine whose hub replaces `engine`'s own: from a URL, or from a client or pool of the user's."""
    if not isinstance(engine, WakesAfterCommit):
        raise ConfigError(
            f"{type(engine).__name__} wakes waiters by itself: leave out hub= and BACKSTAY_HUB, or keep state in"
            " SQLite or PostgreSQL"
        )
    return engine_of(given, engine.namespace, blocking=blocking, what="hub= is a Hub,")


def build_core(settings: Settings, *, blocking: bool) -> Core:
    """Engine, hub and port of one API, put together."""
    chosen = settings.engine
    if chosen is None:
        chosen = engine_of(settings.url, settings.namespace, blocking=blocking)
    telemetry = Telemetry()
    given = settings.hub
    carrier: Carrier = chosen
    make: Callable[[Identity], Hub]
    if isinstance(given, Hub):
        carrier = given.carrier or chosen
        make = lambda _: given  # noqa: E731 - the same for every identity
    else:
        speaker = chosen if given is None else hub_carrier(given, chosen, blocking=blocking)
        carrier = speaker
        make = lambda identity: open_hub(speaker, identity, telemetry, blocking=blocking)  # noqa: E731 - one of two

    def port(way: Carrier) -> AsyncPort | BlockingPort:
        return BlockingPort(way, chosen.thread_ears) if blocking else AsyncPort(way)

    return Core(
        engine=chosen,
        hub=make,
        port=port(chosen),
        policy=settings.policy,
        telemetry=telemetry,
        hub_prefix=settings.hub_prefix,
        post=None if carrier is chosen else port(carrier),
        owns_hub=not isinstance(given, Hub),
        store=lambda: open_store(chosen, settings.hub_prefix, settings.shards),
    )


class Backstay(Rooms[Lock, Semaphore, ReadWriteLock], LimitDoor, JobDoor, WorkerDoor, WorkflowDoor):
    """Everything, from one URL or client. Belongs to the first event loop that uses it.

    url: `sqlite:///backstay.db` (the default), `memory://`, `redis://…`, `postgresql://…`; or a client or pool of
    yours (redis-py's, psycopg_pool's), which is never closed here. Else the environment's BACKSTAY_URL.
    namespace: what shall not meet lives in different ones (BACKSTAY_NAMESPACE, "backstay").
    profile: BALANCED, MAX_SAFETY, MAX_AVAILABILITY or a Policy of your own. engine: an engine object instead.
    hub: what carries hints instead of the engine's own: `redis://…` (BACKSTAY_HUB), a client or pool, or a Hub.
    hub_prefix: what its channels begin with (the namespace).
    shards: into how many parts jobs are cut on Redis, so that a Cluster shares the work (BACKSTAY_SHARDS, 1).
        Everybody must agree.
    """

    _lock_type = Lock
    _semaphore_type = Semaphore
    _rwlock_type = ReadWriteLock

    def __init__(
        self,
        url: str | Owned | None = None,
        *,
        namespace: str | None = None,
        profile: Policy | None = None,
        engine: Engine | Owned | None = None,
        hub: str | Hub | Owned | None = None,
        hub_prefix: str | None = None,
        shards: int | None = None,
    ) -> None:
        self._settings = Settings(url, namespace, profile, hub, hub_prefix, engine, shards)
        self._core = build_core(self._settings, blocking=False)
        self._owns_engine = self._settings.engine is None
        self._twin: BlockingBackstay | None = None

    @property
    def locks(self) -> Locks:
        """Inspect, list, force-release, clean up."""
        return Locks(self._core)

    @property
    def idempotency(self) -> Idempotency:
        """Run once for a key; inspect, forget."""
        return Idempotency(self._core)

    @property
    def hub(self) -> Channels:
        """Publish and listen."""
        return Channels(self._core)

    def locked(
        self,
        key: str,
        *,
        ttl: Duration | None = None,
        wait: Duration | Unset | None = UNSET,
        renew: bool | None = None,
        max_hold: Duration | None = None,
        reentrant: bool = False,
        durability: str | None = None,
        wire: Wire = "backstay",
        poll: Duration | None = None,
    ) -> Callable[[F], F]:
        """Run a function under a lock named by its arguments: `@stay.locked("user:{user_id}")`. Async or not."""
        replicas(self._core, durability)  # what cannot work is said here, not at the first call
        is_n8n(self._core.engine, wire)
        options: dict[str, Any] = {
            "ttl": ttl,
            "wait": wait,
            "renew": renew,
            "max_hold": max_hold,
            "reentrant": reentrant,
            "durability": durability,
            "wire": wire,
            "poll": poll,
        }

        def decorate(function: F) -> F:
            template = Template(key, function)
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def wrapper(*args: Any, **kwargs: Any) -> Any:
                    name = template.key(args, kwargs)
                    async with self.lock(name, **options):
                        return await function(*args, **kwargs)

                return cast("F", wrapper)

            @functools.wraps(function)
            def blocking(*args: Any, **kwargs: Any) -> Any:
                name = template.key(args, kwargs)
                with self._blocking().lock(name, **options):
                    return function(*args, **kwargs)

            return cast("F", blocking)

        return decorate

    def idempotent(
        self,
        key: str | None = None,
        *,
        fingerprint: Iterable[str] | None = None,
        ttl: Duration | None = None,
        lease: Duration | None = None,
        wait: Duration | None = None,
        on_error: OnError = "forget",
        on_unavailable: OnUnavailable | None = None,
        codec: Codec | None = None,
    ) -> Callable[[F], F]:
        """Run each call of a function once: `@stay.idempotent("charge:{order_id}")`. Async or not.

        Without a key: the function's name and the fingerprint of its arguments. fingerprint: the arguments that must
        be the same whenever the key is. The other options are those of `stay.idempotency.run`.
        """
        options = spec(self._core, "-", "", ttl, lease, wait, on_error, on_unavailable)

        def decorate(function: F) -> F:
            if inspect.iscoroutinefunction(function):
                return awaited(Calls(self._core, function, key, fingerprint, options, codec), function)
            twin = self._blocking()
            return twin.idempotent(
                key,
                fingerprint=fingerprint,
                ttl=ttl,
                lease=lease,
                wait=wait,
                on_error=on_error,
                on_unavailable=on_unavailable,
                codec=codec,
            )(function)

        return decorate

    def _blocking(self) -> BlockingBackstay:
        """The blocking API over this one's engine, for functions that are not async."""
        if self._twin is None:
            from backstay import sync

            settings = self._settings
            self._twin = sync.Backstay(
                settings.url,
                namespace=settings.namespace,
                profile=settings.policy,
                engine=self._core.engine,
                hub=settings.hub,
                hub_prefix=settings.hub_prefix,
                shards=settings.shards,
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
            await shutdown.close(self._core)
            await self._core.dismiss()
            if self._core.owns_hub:
                await self._core.hub.join()
            await asyncio.to_thread(self._core.close_parts)
        if (carrier := self._core.foreign_carrier) is not None:
            await carrier.close()
        if self._owns_engine:
            await self._core.engine.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
