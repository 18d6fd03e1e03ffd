"""Open the driver that runs a conformance suite on one job store."""

from __future__ import annotations

from backstay.testing.conformance.job import LocalStoreDriver, RemoteStoreDriver
from support.conformance import engine_url
from support.job_model.driver import ModelDriver

#: An API whose jobs are in one engine and whose hub is Redis.
HINTS_ON_REDIS = "hints on redis"


def open_driver(engine, api, request):
    if engine == "model":
        return ModelDriver()
    url = engine_url(engine, request)
    if api == "processes":
        return RemoteStoreDriver(url)
    if api == HINTS_ON_REDIS:
        return LocalStoreDriver(url, hub=request.getfixturevalue("backstay_redis").url)
    return LocalStoreDriver(url, api=api)
