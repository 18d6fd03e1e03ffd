"""The conformance suite of idempotency keys on PostgreSQL, with actors in three processes."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import IdempotencyCrashSuite, IdempotencySuite, ProcessDriver

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def driver(backstay_postgres):
    with ProcessDriver(backstay_postgres.url) as driver:
        yield driver


class TestPostgresProcesses(IdempotencySuite, IdempotencyCrashSuite):
    pass
