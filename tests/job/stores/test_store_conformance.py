"""The conformance suite of job stores: on the model, and on every engine, in one process and in three."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import JobSuite, LocalStoreDriver, RemoteStoreDriver
from support.job_model.driver import ModelDriver

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
    pytest.param(("sqlite", "hints on redis"), id="sqlite-hub-redis", marks=REDIS),
    pytest.param(("postgres", "hints on redis"), id="postgres-hub-redis", marks=(POSTGRES, REDIS)),
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
        url = f"sqlite:///{tmp_path_factory.mktemp('job') / 'job.db'}?synchronous=normal"
    else:
        url = request.getfixturevalue(f"backstay_{kind}").url
    with made(url, api, request) as driver:
        yield driver


def made(url, api, request):
    if api == "processes":
        return RemoteStoreDriver(url)
    if api == "hints on redis":
        return LocalStoreDriver(url, hub=request.getfixturevalue("backstay_redis").url)
    return LocalStoreDriver(url, api=api)


class TestJobStores(JobSuite):
    pass
