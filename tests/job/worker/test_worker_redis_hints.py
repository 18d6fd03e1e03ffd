"""Hints to workers on every engine, and over Redis with jobs in SQLite or PostgreSQL, also while that Redis is down."""

from __future__ import annotations

import pytest

from backstay.testing.conformance.job import Fleet, LostHubSuite, WakingSuite
from backstay.testing.servers import RedisServer
from support.app import POSTGRES, REDIS, url_of

SQL = ["sqlite", POSTGRES]


class TestWithTheEnginesOwnHub(WakingSuite):
    @pytest.fixture(params=[*SQL, REDIS])
    def fleet(self, request):
        return Fleet(url_of(request.param, request))


@pytest.mark.redis
class TestWithHintsOnRedis(WakingSuite):
    @pytest.fixture(params=SQL)
    def fleet(self, request):
        return Fleet(url_of(request.param, request), hub=request.getfixturevalue("backstay_redis").url)


@pytest.mark.redis
class TestWithoutRedis(LostHubSuite):
    @pytest.fixture(params=SQL)
    def fleet(self, request):
        with RedisServer() as server:
            yield Fleet(url_of(request.param, request), hub_server=server)
