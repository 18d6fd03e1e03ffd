"""Settings of a user's pool: computed parameters, and pools and objects that are refused."""

from __future__ import annotations

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from backstay import ConfigError, EngineError, sync
from backstay.engine.postgres.pooled_engine import PooledEngine

pytestmark = pytest.mark.postgres


def test_connection_parameters_are_computed_for_each_connection(pools, backstay_postgres, namespace):
    asked = []

    def conninfo():
        asked.append(1)
        return backstay_postgres.url

    pool = pools(conninfo, size=1, name="web")
    pool.wait()
    stay = sync.Backstay(pool, namespace=namespace)
    before = len(asked)
    with stay, stay.hub.listen("news"):
        assert len(asked) > before
    assert str(stay._core.engine) == "the server of pool 'web'"


@pytest.mark.parametrize("given", [RuntimeError("hunter2"), "postgresql://u:hunter2@["])
def test_failing_connection_parameters_are_an_error_that_does_not_show_them(backstay_postgres, given):
    def conninfo():
        if isinstance(given, Exception):
            raise given
        return given

    pool = ConnectionPool(conninfo, open=False, name="web")
    with pytest.raises(EngineError, match="conninfo or kwargs of pool 'web'") as caught:
        sync.Backstay(pool).engine.connect("hub")
    assert "hunter2" not in str(caught.value)


class Signed(psycopg.Connection):
    @classmethod
    def connect(cls, *args, **kwargs):
        return super().connect(*args, **kwargs)


def test_a_setting_that_cannot_be_used_is_named_in_the_error(backstay_postgres, pools):
    pool = ConnectionPool(backstay_postgres.url, connection_class=Signed, open=False)
    with pytest.raises(ConfigError, match="connection_class Signed"):
        sync.Backstay(pool)
    pool = ConnectionPool("postgresql://u:hunter2@[", open=False)
    with pytest.raises(ConfigError, match="cannot be parsed") as caught:
        sync.Backstay(pool)
    assert "hunter2" not in str(caught.value)
    pool = pools("postgresql://u:hunter2@127.0.0.1:1/db", size=1)
    engine = sync.Backstay(pool).engine
    assert isinstance(engine, PooledEngine)
    assert "hunter2" not in repr(engine.address) + str(engine)


def test_other_postgresql_objects_are_refused_with_what_to_pass(backstay_postgres):
    with psycopg.connect(backstay_postgres.url) as connection, pytest.raises(ConfigError, match="one caller at a time"):
        sync.Backstay(connection)
    sqlalchemy = pytest.importorskip("sqlalchemy")
    engine = sqlalchemy.create_engine(backstay_postgres.url.replace("postgresql://", "postgresql+psycopg://"))
    with pytest.raises(ConfigError, match=r"render_as_string"):
        sync.Backstay(engine)
    url = engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
    with sync.Backstay(url) as stay:
        stay.lock("x").acquire(wait=0).release()
