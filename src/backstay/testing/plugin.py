"""pytest fixtures: a Redis and a PostgreSQL of one's own for the whole test run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, Self, TypeVar

import pytest

pytest.register_assert_rewrite("backstay.testing.conformance")

from backstay.testing.servers import RedisServer, ServerMissing  # noqa: E402 - after the registration above

if TYPE_CHECKING:
    from backstay.testing.postgres import PostgresServer


class Startable(Protocol):
    def start(self) -> Self: ...


ServerT = TypeVar("ServerT", bound=Startable)


def started_or_skip(server: ServerT) -> ServerT:
    """Start it. A missing program skips on a laptop, with the reason, and fails in CI."""
    try:
        return server.start()
    except ServerMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def backstay_redis() -> Iterator[RedisServer]:
    """One Redis server, shared by the whole run: use a namespace of your own."""
    server = RedisServer()
    try:
        yield started_or_skip(server)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def backstay_postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server, shared by the whole run: use a namespace of your own."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs backstay[postgres]")
    from backstay.testing.postgres import PostgresServer

    server = PostgresServer()
    try:
        yield started_or_skip(server)
    finally:
        server.stop()
