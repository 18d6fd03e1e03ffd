"""The conformance suite of limits on every engine, in one process and in three."""

from __future__ import annotations

import pytest

from backstay.testing.conformance import AsyncDriver, BlockingDriver, LimitSuite, ProcessDriver
from support.conformance import engine_url, every_engine


@pytest.fixture(scope="module", params=every_engine(AsyncDriver, BlockingDriver, ProcessDriver))
def driver(request):
    engine, make = request.param
    with make(engine_url(engine, request)) as driver:
        yield driver


class TestLimits(LimitSuite):
    pass
