"""The gate's conformance suite on a SQLite file, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import CrashSuite, GateSuite, ProcessDriver


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "backstay.db"
    with ProcessDriver(f"sqlite:///{path}?synchronous=normal") as driver:
        yield driver


class TestSqliteProcesses(GateSuite, CrashSuite):
    pass
