"""The registry of backends: which hub and which stores go with which engine.

An engine of another package registers its own: `register_backend(Backend(engine=MyEngine, …))`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from backstay.assembly import hubs, stores
from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.hub.base import Hub
from backstay.job.api.caller_connection import CallerStore
from backstay.job.store import Store
from backstay.runtime.core import Core, ProcessIdentity
from backstay.telemetry import Telemetry


class OpenHub(Protocol):
    """A function that opens the hub of an engine, for the blocking API if `blocking`, else for the async API."""

    def __call__(self, engine: Engine, identity: ProcessIdentity, telemetry: Telemetry, *, blocking: bool) -> Hub: ...


class OpenJobStore(Protocol):
    """A function that opens the job store of an engine. Only the Redis engine has shards; if `shards` is None, it takes
    their number from BACKSTAY_SHARDS.
    """

    def __call__(self, engine: Engine, namespace: str, prefix: str, shards: int | None) -> Store: ...


@dataclass(frozen=True, kw_only=True)
class Backend:
    """The hub and the stores of an engine class and its subclasses."""

    #: The engine class, or its "module:name", so that registering it does not import it.
    engine: type | str
    #: None: the engine has no hub, so a Backstay on it must be given `hub=`.
    open_hub: OpenHub | None = None
    #: None: the engine supports no jobs.
    open_job_store: OpenJobStore | None = None
    #: None: jobs cannot be enqueued in a SQL transaction of the caller.
    open_caller_store: Callable[[Core], CallerStore] | None = None


_BACKENDS: dict[str, Backend] = {}


def register_backend(backend: Backend) -> None:
    """Register a backend; it replaces an earlier one of the same engine class."""
    kind = backend.engine
    _BACKENDS[kind if isinstance(kind, str) else _name_class(kind)] = backend


def find_backend(engine: Engine) -> Backend:
    """Return the backend of the engine's class or of its nearest base class; for an unknown engine, a Backend without
    hub and stores.
    """
    for kind in type(engine).__mro__:
        backend = _BACKENDS.get(_name_class(kind))
        if backend is not None:
            return backend
    return Backend(engine=type(engine))


def open_hub(engine: Engine, identity: ProcessIdentity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """Open the hub that belongs to an engine; it publishes through that engine. Raises ConfigError if the engine has no
    hub.
    """
    backend = find_backend(engine)
    if backend.open_hub is None:
        raise ConfigError(f"no hub is known for {type(engine).__name__}")
    return backend.open_hub(engine, identity, telemetry, blocking=blocking)


def open_job_store(engine: Engine, prefix: str, shards: int | None = None, *, namespace: str | None = None) -> Store:
    """Open the job store of an engine. Raises ConfigError if the engine has no job store.

    prefix: The prefix of the hub's channels.
    shards: The number of shards that jobs are spread over (Redis).
    namespace: The namespace of the jobs. Default: the engine's.
    """
    backend = find_backend(engine)
    if backend.open_job_store is None:
        raise ConfigError(f"no job store is known for {type(engine).__name__}")
    return backend.open_job_store(engine, engine.namespace if namespace is None else namespace, prefix, shards)


def open_caller_store(core: Core) -> CallerStore | None:
    """Open the store that enqueues jobs in a SQL transaction of the caller, on the caller's own connection. Returns
    None if the engine is not a SQL database.
    """
    backend = find_backend(core.engine)
    return None if backend.open_caller_store is None else backend.open_caller_store(core)


def _name_class(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


register_backend(
    Backend(
        engine="backstay.engine.sqlite.engine:SqliteEngine",
        open_hub=hubs.open_local_hub,
        open_job_store=stores.open_sqlite_job_store,
        open_caller_store=stores.open_sqlite_caller_store,
    )
)
register_backend(
    Backend(
        engine="backstay.engine.postgres.engine:PostgresEngine",
        open_hub=hubs.open_postgres_hub,
        open_job_store=stores.open_postgres_job_store,
        open_caller_store=stores.open_postgres_caller_store,
    )
)
register_backend(
    Backend(
        engine="backstay.engine.redis.engine:RedisEngine",
        open_hub=hubs.open_redis_hub,
        open_job_store=stores.open_redis_job_store,
    )
)
