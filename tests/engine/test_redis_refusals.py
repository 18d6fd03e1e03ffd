"""What a server refuses is told apart from what is damaged."""

from __future__ import annotations

import pytest
import redis

from backstay import CorruptRecord, EngineRefused, sync
from backstay.testing.servers import RedisServer

pytestmark = pytest.mark.redis


def test_a_full_server_refuses_and_nothing_is_called_corrupt():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Backstay(server.url) as stay:
        raw.config_set("maxmemory", 1)
        with pytest.raises(EngineRefused, match="OOM"):
            stay.lock("x").acquire(wait=0)
        raw.config_set("maxmemory", 0)
        stay.lock("x").acquire(wait=0).release()


def test_a_record_that_makes_a_script_stumble_is_called_corrupt():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Backstay(server.url) as stay:
        raw.set("backstay:gate:{x}", b"\x95\x01\xa1a\xa1b\xa1c\x91\x90")
        with pytest.raises(CorruptRecord):
            stay.lock("x").acquire(wait=0)
