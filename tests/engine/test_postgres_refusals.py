"""A PostgreSQL server that says no, or nothing: the right error, at once, and never a secret in it."""

from __future__ import annotations

import psycopg
import pytest

from backstay import ConfigError, EngineRefused, EngineUnavailable, SchemaTooNew, sync
from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.session import check
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.rights import grants
from backstay.testing.plugin import started_or_skip
from backstay.testing.ports import lasting_port
from backstay.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres


def reach(url):
    engine = PostgresEngine(parse(url))
    try:
        return engine.apply(Ping())
    finally:
        engine.close_blocking()


@pytest.fixture(scope="module")
def guarded():
    """A server that asks everybody but its owner for a password."""
    server = PostgresServer()
    try:
        started_or_skip(server)
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("host all backstay all trust\nhost all nobody all reject\nhost all all all scram-sha-256\n")
        with psycopg.connect(server.admin_url, autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE ROLE clerk LOGIN PASSWORD 'hush-hush'")
            admin.execute("CREATE ROLE idler NOLOGIN PASSWORD 'hush-hush'")
            admin.execute("CREATE ROLE nobody LOGIN")
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("who", "database"),
    [
        ("clerk:wr0ng-s3cret", "backstay"),
        ("clerk", "backstay"),
        ("stranger:wr0ng-s3cret", "backstay"),
        ("idler:hush-hush", "backstay"),
        ("nobody", "backstay"),
        ("backstay:wr0ng-s3cret", "elsewhere"),
    ],
    ids=["wrong password", "no password", "unknown user", "no login", "shut out", "unknown database"],
)
def test_who_is_not_let_in_is_refused_and_no_secret_is_told(guarded, who, database):
    with pytest.raises(EngineRefused) as caught:
        reach(f"postgresql://{who}@127.0.0.1:{guarded.port}/{database}")
    assert "s3cret" not in f"{caught.value} {caught.value!r} {caught.value.__cause__}"
    assert str(guarded.port) in str(caught.value)


def test_the_right_password_opens(guarded):
    with psycopg.connect(guarded.url, autocommit=True) as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO clerk")
    assert reach(f"postgresql://clerk:hush-hush@127.0.0.1:{guarded.port}/backstay")


def test_a_server_that_is_not_there_is_unavailable():
    with pytest.raises(EngineUnavailable):
        reach(f"postgresql://backstay:s3cret@127.0.0.1:{lasting_port()}/backstay")


def test_a_server_that_is_too_old_is_refused():
    check(140_000, "x")
    with pytest.raises(EngineRefused, match="PostgreSQL 13; Backstay needs 14"):
        check(130_012, "x")


def test_a_url_that_cannot_be_read_tells_no_secret():
    with pytest.raises(ConfigError) as caught:
        parse("postgresql://user:s3cret@host/db?no_such_option=1")
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"
    with pytest.raises(ConfigError, match="timeout"):
        parse("postgresql://host/db?timeout=soon")


def test_what_is_not_ours_in_a_url_reaches_libpq_as_it_stands():
    address = parse("postgresql://u:p%2B+#1@host:1/db?timeout=2.5&options=-c%20geqo%3Doff&application_name=a+b")
    assert address.timeout == 2.5
    assert address.parameters == {
        "user": "u",
        "password": "p++#1",
        "host": "host",
        "port": "1",
        "dbname": "db",
        "options": "-c geqo=off",
        "application_name": "a+b",
    }
    assert str(address) == "postgresql://host:1/db"


def test_a_user_who_may_not_create_tables_is_told_what_to_run(database):
    with pytest.raises(EngineRefused, match=r"schema 0, needs \d+.*backstay migrate --sql"):
        reach(database.humble)


def test_a_user_who_may_not_create_tables_works_once_they_are_there(database):
    reach(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute("".join(grants(database.name)))
    with sync.Backstay(database.humble) as stay, stay.lock("x", wait=0):
        assert stay.locks.list() != []


def test_a_user_without_rights_on_the_tables_is_refused(database):
    reach(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(f"GRANT SELECT ON backstay_meta, backstay_state TO {database.name}")
    refused = pytest.raises(EngineRefused, match="permission denied for table backstay_state")
    with sync.Backstay(database.humble) as stay, refused:
        stay.lock("x").acquire(wait=0)


def test_a_newer_schema_is_refused(database):
    reach(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute("UPDATE backstay_meta SET value = 99")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        reach(database.url)


def test_a_read_only_server_is_unavailable_and_can_be_looked_at(database):
    reach(database.url)
    with sync.Backstay(database.url + "?options=-c%20default_transaction_read_only%3Don") as stay:
        with pytest.raises(EngineUnavailable, match="read-only"):
            stay.lock("x", wait=0).acquire()
        assert stay.locks.inspect("x").count == 0
