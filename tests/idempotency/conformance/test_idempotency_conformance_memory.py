"""The conformance suite of idempotency keys on an engine in memory."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, IdempotencySuite


@pytest.fixture(scope="module", params=[AsyncDriver, BlockingDriver], ids=["async", "blocking"])
def driver(request):
    with request.param("memory://") as driver:
        yield driver


class TestMemory(IdempotencySuite):
    pass
