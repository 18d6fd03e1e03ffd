"""Input for a type checker, never run: the objects from which a Backstay can be created. The checker must report an
error in each line marked `wrong`.
"""

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from backstay import Backstay, sync

Backstay("redis://127.0.0.1:6379/0", hub="redis://127.0.0.1:6379/1")
Backstay(redis.Redis())
Backstay(redis.asyncio.Redis())
Backstay(redis.ConnectionPool())
Backstay(redis.asyncio.ConnectionPool())
Backstay(redis.cluster.RedisCluster("h"))
Backstay(redis.asyncio.RedisCluster("h"))
Backstay(redis.sentinel.Sentinel([]).master_for("x"))
Backstay(redis.asyncio.sentinel.Sentinel([]).master_for("x"), hub=redis.Redis())
sync.Backstay(ConnectionPool("x"))
sync.Backstay(engine=ConnectionPool("x"))
Backstay(AsyncConnectionPool("x"), hub=ConnectionPool("x"))
Backstay(engine=redis.Redis())
Backstay(7)  # wrong
Backstay(object())  # wrong
sync.Backstay(hub=7)  # wrong
sync.Backstay(engine="redis://127.0.0.1:6379/0")  # wrong
