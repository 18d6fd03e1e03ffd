"""The conformance suite of workflow runs: on the model, and on every engine, in one process and in three."""

from __future__ import annotations

import pytest
from store_drivers import open_driver

from backstay.testing.conformance.run import RunSuite
from support.conformance import every_engine

#: Some tests have thousands of jobs.
pytestmark = pytest.mark.timeout(600)
SETUPS = [pytest.param(("model", None), id="model"), *every_engine("async", "blocking", "processes")]


@pytest.fixture(scope="module", params=SETUPS)
def store(request):
    with open_driver(*request.param, request) as driver:
        yield driver


class TestRuns(RunSuite):
    pass
