"""The conformance suite of idempotency keys on a SQLite file, in one process."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, IdempotencySuite


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, tmp_path_factory):
    path = tmp_path_factory.mktemp("idempotency") / "backstay.db"
    with request.param(f"sqlite:///{path}?synchronous=normal") as driver:
        yield driver


class TestSqlite(IdempotencySuite):
    pass
