"""The gate's conformance suite on PostgreSQL, with actors in three processes."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import CrashSuite, GateSuite, ProcessDriver

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module")
def driver(holdfast_postgres):
    with ProcessDriver(holdfast_postgres.url) as driver:
        yield driver


class TestPostgresProcesses(GateSuite, CrashSuite):
    pass
