"""Throw-away servers on free loopback ports, for tests and benchmarks."""

from holdfast.testing.certificates import Certificates
from holdfast.testing.redis_cluster import RedisCluster
from holdfast.testing.redis_sentinel import RedisSentinel
from holdfast.testing.redis_server import RedisServer, ServerMissing, redis_program, say

__all__ = ["Certificates", "RedisCluster", "RedisSentinel", "RedisServer", "ServerMissing", "redis_program", "say"]
