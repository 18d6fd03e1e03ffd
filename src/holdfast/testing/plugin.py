"""pytest fixtures: a Redis of one's own for the whole test run, and engine URLs to parametrise over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TypeVar

import pytest

pytest.register_assert_rewrite("holdfast.testing.conformance")

from holdfast.testing.servers import RedisCluster, RedisSentinel, RedisServer, ServerMissing  # noqa: E402 - after the registration above

Started = TypeVar("Started", RedisServer, RedisSentinel, RedisCluster)


def redis_or_skip(server: Started) -> Started:
    """Start it. A missing program skips on a laptop, with the reason, and fails in CI."""
    try:
        return server.start()
    except ServerMissing as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def holdfast_redis() -> Iterator[RedisServer]:
    """One Redis server, shared by the whole run: use a namespace of your own."""
    server = RedisServer()
    try:
        yield redis_or_skip(server)
    finally:
        server.stop()
