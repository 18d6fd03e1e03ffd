"""The conformance suite of job stores: on the model, and on every engine, in one process and in three."""

from __future__ import annotations

import pytest
from store_drivers import HINTS_ON_REDIS, open_driver

from backstay.testing.conformance.job import JobSuite
from support.conformance import POSTGRES, REDIS, every_engine

SETUPS = [
    pytest.param(("model", None), id="model"),
    *every_engine("async", "blocking", "processes"),
    pytest.param(("sqlite", HINTS_ON_REDIS), id="sqlite-hub-redis", marks=REDIS),
    pytest.param(("postgres", HINTS_ON_REDIS), id="postgres-hub-redis", marks=(POSTGRES, REDIS)),
]


@pytest.fixture(scope="module", params=SETUPS)
def store(request):
    with open_driver(*request.param, request) as driver:
        yield driver


class TestJobStores(JobSuite):
    pass
