"""Throw-away servers on free loopback ports, for tests and benchmarks."""

from backstay.testing.servers.certificates import Certificates
from backstay.testing.servers.cluster import RedisCluster
from backstay.testing.servers.postgres import PostgresServer
from backstay.testing.servers.redis import RedisServer, ServerMissing, redis_program, say
from backstay.testing.servers.sentinel import RedisSentinel

__all__ = [
    "Certificates",
    "PostgresServer",
    "RedisCluster",
    "RedisSentinel",
    "RedisServer",
    "ServerMissing",
    "redis_program",
    "say",
]
