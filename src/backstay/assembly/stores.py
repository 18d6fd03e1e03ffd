"""Open the job stores of each engine. Concrete stores are imported only when they are opened."""

from __future__ import annotations

from backstay.assembly.settings import read_shards
from backstay.engine.base import Engine
from backstay.errors import ConfigError
from backstay.job.api.caller_connection import CallerStore
from backstay.job.store import Store
from backstay.runtime.core import Core


def open_sqlite_job_store(engine: Engine, namespace: str, prefix: str, shards: int | None) -> Store:
    from backstay.job.stores.sqlite.store import SqliteStore

    _refuse_shards(shards)
    return SqliteStore(namespace, prefix)


def open_sqlite_caller_store(core: Core) -> CallerStore:
    from backstay.job.stores.sqlite.caller_connection import SqliteCallerStore

    return SqliteCallerStore(core)


def open_postgres_job_store(engine: Engine, namespace: str, prefix: str, shards: int | None) -> Store:
    from backstay.job.stores.postgres.store import PostgresStore

    _refuse_shards(shards)
    return PostgresStore(namespace, prefix)


def open_postgres_caller_store(core: Core) -> CallerStore:
    from backstay.job.stores.postgres.caller_connection import PostgresCallerStore

    return PostgresCallerStore(core)


def open_redis_job_store(engine: Engine, namespace: str, prefix: str, shards: int | None) -> Store:
    from backstay.job.stores.redis.store import RedisStore

    shards = read_shards() if shards is None else shards
    # No announcements on a Cluster or with several shards: the counter of an announcement may be on another node, and
    # an announcement does not name a shard.
    return RedisStore(namespace, prefix, shards, announces=shards == 1 and not engine.is_clustered)


def _refuse_shards(shards: int | None) -> None:
    if shards not in (None, 1):
        raise ConfigError(f"shards={shards} is for Redis; SQLite and PostgreSQL do not shard jobs")
