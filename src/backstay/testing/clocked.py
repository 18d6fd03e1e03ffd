"""Engines with a clock that the test controls."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from backstay.engine.base import Engine, Micros
from backstay.testing.waiting import WITHIN


def open_clocked(url: str, namespace: str, clock: Callable[[], Micros]) -> Engine:
    """Open the engine of a URL with `clock` instead of the server's clock.

    If the URL sets no timeout, the timeout is `WITHIN` instead of the usual five seconds: on a busy machine, a request
    that ends thousands of jobs takes longer than five seconds.
    """
    if not url.startswith("memory:") and "timeout" not in parse_qs(urlsplit(url).query):
        url += f"{'&' if '?' in url else '?'}timeout={WITHIN:g}"
    if url.startswith(("memory:", "sqlite:")):
        from backstay.engine.sqlite.address import parse as parse_sqlite
        from backstay.engine.sqlite.engine import SqliteEngine

        path, synchronous, timeout, _ = parse_sqlite(url)
        return SqliteEngine(path, namespace=namespace, synchronous=synchronous, timeout=timeout, clock=clock)
    if url.startswith("postgres"):
        from backstay.engine.postgres.address import parse as parse_postgres
        from backstay.engine.postgres.engine import PostgresEngine

        return PostgresEngine(parse_postgres(url), namespace=namespace, clock=clock)
    from backstay.engine.redis.topology.open import open_redis

    return open_redis(url, namespace, clock)
