"""What a server refuses is told apart from what is damaged."""

from __future__ import annotations

import pytest
import redis

from holdfast import CorruptRecord, EngineRefused, sync
from holdfast.testing.servers import RedisServer

pytestmark = pytest.mark.redis


def test_a_full_server_refuses_and_nothing_is_called_corrupt():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Holdfast(server.url) as hf:
        raw.config_set("maxmemory", 1)
        with pytest.raises(EngineRefused, match="OOM"):
            hf.lock("x").acquire(wait=0)
        raw.config_set("maxmemory", 0)
        hf.lock("x").acquire(wait=0).release()


def test_a_record_that_makes_a_script_stumble_is_called_corrupt():
    with RedisServer() as server, redis.Redis(port=server.port) as raw, sync.Holdfast(server.url) as hf:
        raw.set("holdfast:gate:{x}", b"\x95\x01\xa1a\xa1b\xa1c\x91\x90")
        with pytest.raises(CorruptRecord):
            hf.lock("x").acquire(wait=0)
