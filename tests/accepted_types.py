"""Not run, only read by a type checker: what a Holdfast may be made from. What is marked `wrong` must be refused."""

import redis
import redis.asyncio
import redis.asyncio.sentinel
import redis.cluster
import redis.sentinel
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from holdfast import Holdfast, sync

Holdfast("redis://127.0.0.1:6379/0", hub="redis://127.0.0.1:6379/1")
Holdfast(redis.Redis())
Holdfast(redis.asyncio.Redis())
Holdfast(redis.ConnectionPool())
Holdfast(redis.asyncio.ConnectionPool())
Holdfast(redis.cluster.RedisCluster("h"))
Holdfast(redis.asyncio.RedisCluster("h"))
Holdfast(redis.sentinel.Sentinel([]).master_for("x"))
Holdfast(redis.asyncio.sentinel.Sentinel([]).master_for("x"), hub=redis.Redis())
sync.Holdfast(ConnectionPool("x"))
sync.Holdfast(engine=ConnectionPool("x"))
Holdfast(AsyncConnectionPool("x"), hub=ConnectionPool("x"))
Holdfast(engine=redis.Redis())
Holdfast(7)  # wrong
Holdfast(object())  # wrong
sync.Holdfast(hub=7)  # wrong
sync.Holdfast(engine="redis://127.0.0.1:6379/0")  # wrong
