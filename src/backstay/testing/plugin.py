"""pytest fixtures: a throw-away Redis server and PostgreSQL server for the whole test session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Protocol, Self, TypeVar

import pytest

pytest.register_assert_rewrite("backstay.testing.conformance")

from backstay.testing.servers import PostgresServer, RedisServer, ServerMissing  # noqa: E402 - after the registration above


class Startable(Protocol):
    def start(self) -> Self: ...


ServerT = TypeVar("ServerT", bound=Startable)


def start_or_skip(server: ServerT) -> ServerT:
    """Start the server. If its program is not installed, skip the test or, when the variable CI is set, fail it."""
    try:
        return server.start()
    except ServerMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def backstay_redis() -> Iterator[RedisServer]:
    """One Redis server, shared by all tests of the session: use a separate namespace in each test."""
    server = RedisServer()
    try:
        yield start_or_skip(server)
    finally:
        server.stop()


@pytest.fixture(scope="session")
def backstay_postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server, shared by all tests of the session: use a separate namespace in each test."""
    pytest.importorskip("psycopg", reason="PostgreSQL needs backstay[postgres]")
    server = PostgresServer()
    try:
        yield start_or_skip(server)
    finally:
        server.stop()
