"""The conformance suite of idempotency keys on a SQLite file, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import IdempotencyCrashSuite, IdempotencySuite, ProcessDriver


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("idempotency") / "backstay.db"
    with ProcessDriver(f"sqlite:///{path}?synchronous=normal") as driver:
        yield driver


class TestSqliteProcesses(IdempotencySuite, IdempotencyCrashSuite):
    pass
