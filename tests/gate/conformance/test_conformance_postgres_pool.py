"""The gate's conformance suite on PostgreSQL through a user's own pool."""

from __future__ import annotations

import pytest
from psycopg_pool import ConnectionPool

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, backstay_postgres):
    with (
        ConnectionPool(backstay_postgres.url, min_size=4, open=True) as pool,
        request.param(pool) as driver,
    ):
        yield driver


class TestPostgresPool(GateSuite):
    pass
