"""The conformance suite of idempotency keys on PostgreSQL, in one process."""

from __future__ import annotations

import pytest

from holdfast.testing.conformance import AsyncDriver, BlockingDriver, IdempotencySuite

pytestmark = pytest.mark.postgres


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request, holdfast_postgres):
    with request.param(holdfast_postgres.url) as driver:
        yield driver


class TestPostgres(IdempotencySuite):
    pass
