"""A refusal of the server and a corrupt record raise different errors."""

from __future__ import annotations

import pytest
import redis

from backstay import CorruptRecord, EngineRefused, sync
from backstay.testing.servers import RedisServer

pytestmark = pytest.mark.redis


def test_a_server_out_of_memory_raises_engine_refused_not_corrupt_record():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Backstay(server.url) as stay:
        raw.config_set("maxmemory", 1)
        with pytest.raises(EngineRefused, match="OOM"):
            stay.lock("x").acquire(wait=0)
        raw.config_set("maxmemory", 0)
        stay.lock("x").acquire(wait=0).release()


def test_a_record_that_makes_a_script_fail_raises_corrupt_record():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Backstay(server.url) as stay:
        raw.set("backstay:gate:{x}", b"\x95\x01\xa1a\xa1b\xa1c\x91\x90")
        with pytest.raises(CorruptRecord):
            stay.lock("x").acquire(wait=0)
