"""Throw-away servers on free loopback ports, for tests and benchmarks."""

from backstay.testing.certificates import Certificates
from backstay.testing.redis_cluster import RedisCluster
from backstay.testing.redis_sentinel import RedisSentinel
from backstay.testing.redis_server import RedisServer, ServerMissing, redis_program, say

__all__ = ["Certificates", "RedisCluster", "RedisSentinel", "RedisServer", "ServerMissing", "redis_program", "say"]
