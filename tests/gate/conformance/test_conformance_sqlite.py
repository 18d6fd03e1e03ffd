"""The gate's conformance suite on a SQLite file, in one process."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("gate") / "backstay.db"
    with request.param(f"sqlite:///{path}?synchronous=normal") as driver:
        yield driver


class TestSqlite(GateSuite):
    pass
