"""Job stores on each engine for the property tests, with a clock that the test sets."""

from __future__ import annotations

import pytest

from support.agreement.store_agreement import store_under_test


def namespace_of(request):
    return request.module.__name__.removeprefix("test_").replace("_", "-")


@pytest.fixture(scope="module")
def on_sqlite(request):
    with store_under_test("memory://", namespace_of(request)) as store:
        yield store


@pytest.fixture(scope="module")
def on_redis(request, backstay_redis):
    with store_under_test(backstay_redis.url, namespace_of(request)) as store:
        yield store


@pytest.fixture(scope="module")
def on_postgres(request, backstay_postgres):
    with store_under_test(backstay_postgres.url, namespace_of(request)) as store:
        yield store
