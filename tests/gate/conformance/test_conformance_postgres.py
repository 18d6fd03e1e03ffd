"""The gate's conformance suite on PostgreSQL, in one process."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, GateSuite

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, backstay_postgres):
    with request.param(backstay_postgres.url) as driver:
        yield driver


class TestPostgres(GateSuite):
    pass
