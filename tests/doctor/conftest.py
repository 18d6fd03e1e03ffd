"""A doctor for which no round trip is slow, and Redis servers for one test."""

from __future__ import annotations

import pytest

from backstay.doctor import finding
from backstay.testing.plugin import start_or_skip
from backstay.testing.servers import RedisServer


@pytest.fixture(autouse=True)
def ignore_slow_round_trips(monkeypatch):
    """Round trips of a busy test machine do not count as slow."""
    monkeypatch.setattr(finding, "SLOW_TRIP", 60.0)


@pytest.fixture
def start():
    """Start Redis servers that only this test uses."""
    servers = []

    def start(*options, **kinds):
        server = RedisServer(options=options, **kinds)
        servers.append(server)
        return start_or_skip(server)

    yield start
    for server in servers:
        server.stop()
