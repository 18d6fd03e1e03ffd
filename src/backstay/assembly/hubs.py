"""Open the hub of each engine. Concrete hubs are imported only when they are opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from backstay.assembly.engines import resolve_engine
from backstay.engine.base import Engine, WakesAfterCommit
from backstay.errors import ConfigError
from backstay.hub.base import Hub
from backstay.runtime.core import ProcessIdentity
from backstay.telemetry import Telemetry

if TYPE_CHECKING:
    from backstay.engine.postgres.engine import PostgresEngine
    from backstay.engine.redis.engine import RedisEngine
    from backstay.engine.sqlite.engine import SqliteEngine


def open_local_hub(engine: Engine, identity: ProcessIdentity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """Open SQLite's hub: in-process delivery, and polling of the file for other processes on this host."""
    from backstay.hub.local import LocalHub

    observe = make_observer(telemetry, "hub")
    return LocalHub(cast("SqliteEngine", engine), inbox=identity.inbox, runner=engine, observe=observe)


def open_redis_hub(engine: Engine, identity: ProcessIdentity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """Open Redis's hub, over Pub/Sub."""
    from backstay.hub.redis import RedisHub
    from backstay.hub.redis_subscription import AsyncConnector, ThreadConnector

    server = cast("RedisEngine", engine)
    server.watch(make_observer(telemetry, "link"))
    connector = ThreadConnector(server) if blocking else AsyncConnector(server)
    return RedisHub(connector, runner=engine, observe=make_observer(telemetry, "hub"))


def open_postgres_hub(engine: Engine, identity: ProcessIdentity, telemetry: Telemetry, *, blocking: bool) -> Hub:
    """Open PostgreSQL's hub, over LISTEN and NOTIFY."""
    from backstay.hub.postgres import PostgresHub

    observe = make_observer(telemetry, "hub")
    return PostgresHub(cast("PostgresEngine", engine), inbox=identity.inbox, runner=engine, observe=observe)


def resolve_hub_engine(given: object, engine: Engine, *, blocking: bool) -> Engine:
    """Open the engine whose hub is used instead of `engine`'s own, from the option `hub=`: a URL, or the user's own
    client or pool. Raises ConfigError if `engine` is Redis, whose scripts always publish through Redis itself.
    """
    if not isinstance(engine, WakesAfterCommit):
        raise ConfigError(
            f"{type(engine).__name__} notifies waiters itself: omit hub= and BACKSTAY_HUB, or use SQLite or PostgreSQL"
            " as the engine"
        )
    return resolve_engine(given, engine.namespace, blocking=blocking, what="hub= is a Hub,")


def make_observer(telemetry: Telemetry, prefix: str) -> Callable[..., None]:
    """Return a callback that a hub or a Redis connection calls with each of its events. The callback passes the event
    on to `telemetry` under the name `<prefix>.<event>`.
    """

    def observe(event: str, **facts: Any) -> None:
        telemetry.emit(f"{prefix}.{event}", **facts)

    return observe
