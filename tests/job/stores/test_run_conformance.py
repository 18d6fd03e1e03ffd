"""The conformance suite of workflow runs: on the model, and on every engine, in one process and in three."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import LocalStoreDriver, RemoteStoreDriver
from backstay.testing.conformance.run import RunSuite
from support.job_model.driver import ModelDriver

#: Some claims are about thousands of jobs.
pytestmark = pytest.mark.timeout(600)
REDIS, POSTGRES = pytest.mark.redis, pytest.mark.postgres
SET_UPS = [
    pytest.param(("model", None), id="model"),
    pytest.param(("memory", "async"), id="memory-async"),
    pytest.param(("memory", "blocking"), id="memory-blocking"),
    pytest.param(("sqlite", "async"), id="sqlite-async"),
    pytest.param(("sqlite", "blocking"), id="sqlite-blocking"),
    pytest.param(("sqlite", "processes"), id="sqlite-processes"),
    pytest.param(("redis", "async"), id="redis-async", marks=REDIS),
    pytest.param(("redis", "blocking"), id="redis-blocking", marks=REDIS),
    pytest.param(("redis", "processes"), id="redis-processes", marks=REDIS),
    pytest.param(("postgres", "async"), id="postgres-async", marks=POSTGRES),
    pytest.param(("postgres", "blocking"), id="postgres-blocking", marks=POSTGRES),
    pytest.param(("postgres", "processes"), id="postgres-processes", marks=POSTGRES),
]


@pytest.fixture(scope="module", params=SET_UPS)
def store(request, tmp_path_factory):
    kind, api = request.param
    if kind == "model":
        with ModelDriver() as driver:
            yield driver
        return
    if kind == "memory":
        url = "memory://"
    elif kind == "sqlite":
        url = f"sqlite:///{tmp_path_factory.mktemp('run') / 'run.db'}?synchronous=normal"
    else:
        url = request.getfixturevalue(f"backstay_{kind}").url
    with RemoteStoreDriver(url) if api == "processes" else LocalStoreDriver(url, api=api) as driver:
        yield driver


class TestRuns(RunSuite):
    pass
