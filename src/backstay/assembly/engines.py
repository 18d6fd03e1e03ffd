"""Open the engine of a URL, or of the user's own client or pool. Each engine is imported only when it is used."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from backstay.engine.base import Engine
from backstay.engine.client_types import client_kind
from backstay.errors import ConfigError

#: URL schemes of Redis and Valkey; `+sentinel`, `+cluster` and `+unix` may follow.
REDIS = ("redis", "rediss", "valkey", "valkeys", "unix")
POSTGRES = ("postgresql", "postgres")


def open_engine(url: str, namespace: str) -> Engine:
    """Open the engine of a URL. Raises ConfigError for an unknown scheme or invalid options."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme in ("memory", "sqlite"):
        from backstay.engine.sqlite.address import parse as parse_sqlite
        from backstay.engine.sqlite.engine import SqliteEngine

        path, synchronous, timeout, file_mode = parse_sqlite(url)
        return SqliteEngine(path, namespace=namespace, synchronous=synchronous, timeout=timeout, file_mode=file_mode)
    if scheme.partition("+")[0] in REDIS:
        from backstay.engine.redis.topology.open import open_redis

        return open_redis(url, namespace)
    if scheme in POSTGRES:
        require_psycopg()
        from backstay.engine.postgres.address import parse as parse_postgres
        from backstay.engine.postgres.engine import PostgresEngine

        return PostgresEngine(parse_postgres(url), namespace=namespace)
    # In a malformed URL, the text before the first colon may be a password: show it only if it looks like a scheme.
    shown = f"scheme {scheme!r}" if scheme.isalpha() and "://" in url else "URL"
    raise ConfigError(
        f"unknown engine {shown}; use sqlite:///backstay.db, memory://, redis://127.0.0.1:6379/0"
        " or postgresql://user@127.0.0.1:5432/database"
    )


def resolve_engine(given: object, namespace: str, *, blocking: bool, what: str = "an engine is") -> Engine:
    """Open the engine of a URL, or of the user's own client or pool, which is never closed. For any other object, raise
    a ConfigError that lists the accepted values; `what` begins its message and names the option.
    """
    if isinstance(given, str):
        return open_engine(given, namespace)
    if client_kind(given, what) == "redis":
        from backstay.engine.redis.client_settings import open_client

        return open_client(given, namespace)
    from backstay.engine.postgres.connection.pool_settings import open_pool

    return open_pool(given, namespace, blocking=blocking)


def require_psycopg() -> None:
    """Raise ConfigError if psycopg is not installed. The message names the pip extra."""
    if find_spec("psycopg") is None:
        raise ConfigError("PostgreSQL needs its driver: pip install 'backstay[postgres]'")


def find_database_file(engine: Engine) -> str | None:
    """Return the path of an engine's database file, ":memory:" for `memory://`; None if the engine is a server."""
    from backstay.engine.sqlite.engine import SqliteEngine

    return engine.path if isinstance(engine, SqliteEngine) else None
