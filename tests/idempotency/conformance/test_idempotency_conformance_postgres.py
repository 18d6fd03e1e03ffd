"""The conformance suite of idempotency keys on PostgreSQL, in one process."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, IdempotencySuite

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, backstay_postgres):
    with request.param(backstay_postgres.url) as driver:
        yield driver


class TestPostgres(IdempotencySuite):
    pass
