"""The registry of backends: which hub and which stores go with which engine."""

from __future__ import annotations

import subprocess
import sys

import pytest

from backstay import sync
from backstay.assembly.backends import Backend, find_backend, open_hub, open_job_store, register_backend
from backstay.assembly.engines import open_engine
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.engine.redis.topology.cluster import ClusterEngine
from backstay.engine.redis.topology.sentinel import SentinelEngine
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.errors import ConfigError
from backstay.job.ids import Ids
from backstay.job.model import NewJob
from backstay.job.stores.redis.store import RedisStore
from backstay.job.stores.sqlite.store import SqliteStore
from backstay.runtime.core import ProcessIdentity
from backstay.telemetry import Telemetry


class OwnSqlite(SqliteEngine):
    """A subclass without a backend of its own."""


class Unregistered:
    """An engine that no backend is registered for."""

    namespace = "test"


def test_a_subclass_of_an_engine_uses_its_backend():
    assert find_backend(OwnSqlite(":memory:")) is find_backend(SqliteEngine(":memory:"))
    plain = find_backend(RedisEngine(parse("redis://127.0.0.1:1")))
    for kind, url in (
        (ClusterEngine, "redis+cluster://127.0.0.1:1"),
        (SentinelEngine, "redis+sentinel://127.0.0.1:1/main"),
    ):
        engine = open_engine(url, "test")
        assert type(engine) is kind
        assert find_backend(engine) is plain


def test_a_psycopg_pool_uses_the_postgresql_backend():
    pytest.importorskip("psycopg_pool")
    from backstay.engine.postgres.engine import PostgresEngine
    from backstay.engine.postgres.pooled_engine import PooledEngine

    pooled = PooledEngine.__new__(PooledEngine)
    assert find_backend(pooled) is find_backend(PostgresEngine.__new__(PostgresEngine))


def test_an_unknown_engine_is_refused():
    with pytest.raises(ConfigError, match="no hub is known for Unregistered"):
        open_hub(Unregistered(), ProcessIdentity("test"), Telemetry(), blocking=True)
    with pytest.raises(ConfigError, match="no job store is known for Unregistered"):
        open_job_store(Unregistered(), "test")


def test_an_engine_of_another_package_registers_its_own_backend(monkeypatch):
    monkeypatch.setattr("backstay.assembly.backends._BACKENDS", {})
    hub = object()
    register_backend(Backend(engine=Unregistered, open_hub=lambda *_, **__: hub))
    assert open_hub(Unregistered(), ProcessIdentity("test"), Telemetry(), blocking=True) is hub
    with pytest.raises(ConfigError, match="no job store is known for Unregistered"):
        open_job_store(Unregistered(), "test")


def test_a_store_is_opened_in_another_namespace_of_the_same_engine():
    with sync.Backstay("memory://") as stay:
        own, other = stay.internals.job_store, open_job_store(stay.engine, "prefix", namespace="other")
        assert isinstance(other, SqliteStore)
        job = NewJob(id=Ids().new(0), type="resize")
        stay.engine.apply(other.enqueue(0, [job]))
        assert [one.id for one in stay.engine.apply(other.list_jobs())] == [job.id]
        assert stay.engine.apply(own.list_jobs()) == []


def test_jobs_are_sharded_on_redis_alone():
    engine = RedisEngine(parse("redis://127.0.0.1:1"))
    store = open_job_store(engine, "prefix", 4)
    assert isinstance(store, RedisStore)
    assert store.shards == 4
    assert not store.announces
    assert open_job_store(engine, "prefix", 1).announces
    with pytest.raises(ConfigError, match="shards=4 is for Redis"):
        open_job_store(SqliteEngine(":memory:"), "prefix", 4)


def test_a_backstay_on_redis_imports_no_other_store_or_driver():
    probe = (
        "import sys; from backstay import Backstay; stay = Backstay('redis://127.0.0.1:1');"
        " stay.internals.job_store; print(*sorted(sys.modules))"
    )
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True).stdout.split()
    assert "backstay.job.stores.redis.store" in found
    others = ("psycopg", "sqlite3", "backstay.engine.sqlite", "backstay.engine.postgres", "backstay.job.stores.sqlite")
    assert [name for name in found if name.startswith(others)] == []


def test_the_job_store_of_a_backstay_is_opened_once():
    with sync.Backstay("memory://") as stay:
        assert stay.internals.job_store is stay.internals.job_store
