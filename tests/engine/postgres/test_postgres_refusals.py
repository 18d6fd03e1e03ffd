"""A PostgreSQL server that refuses or is missing: the right error, without a delay and without secrets."""

from __future__ import annotations

import psycopg
import pytest

from backstay import ConfigError, EngineRefused, EngineUnavailable, SchemaTooNew, sync
from backstay.engine.base import Ping
from backstay.engine.postgres.address import parse
from backstay.engine.postgres.connection.session import check_version
from backstay.engine.postgres.engine import PostgresEngine
from backstay.engine.postgres.rights import grants
from backstay.testing.servers.ports import reserve_port
from backstay.testing.servers.postgres import PostgresServer
from support.servers import running

pytestmark = pytest.mark.postgres


def ping(url):
    engine = PostgresEngine(parse(url))
    try:
        return engine.apply(Ping())
    finally:
        engine.close_blocking()


@pytest.fixture(scope="module")
def password_server():
    """A server that requires a password from every user except its owner."""
    with running(PostgresServer()) as server:
        rules = server.folder / "data" / "pg_hba.conf"
        rules.write_text("host all backstay all trust\nhost all nobody all reject\nhost all all all scram-sha-256\n")
        with psycopg.connect(server.admin_url, autocommit=True) as admin:
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE ROLE app LOGIN PASSWORD 'hush-hush'")
            admin.execute("CREATE ROLE idler NOLOGIN PASSWORD 'hush-hush'")
            admin.execute("CREATE ROLE nobody LOGIN")
        yield server


@pytest.mark.parametrize(
    ("login", "database"),
    [
        ("app:wr0ng-s3cret", "backstay"),
        ("app", "backstay"),
        ("unknown:wr0ng-s3cret", "backstay"),
        ("idler:hush-hush", "backstay"),
        ("nobody", "backstay"),
        ("backstay:wr0ng-s3cret", "elsewhere"),
    ],
    ids=["wrong password", "no password", "unknown user", "no login", "shut out", "unknown database"],
)
def test_a_refused_login_is_engine_refused_without_secrets(password_server, login, database):
    with pytest.raises(EngineRefused) as caught:
        ping(f"postgresql://{login}@127.0.0.1:{password_server.port}/{database}")
    assert "s3cret" not in f"{caught.value} {caught.value!r} {caught.value.__cause__}"
    assert str(password_server.port) in str(caught.value)


def test_the_right_password_opens_a_session(password_server):
    with psycopg.connect(password_server.url, autocommit=True) as owner:
        owner.execute("GRANT CREATE ON SCHEMA public TO app")
    assert ping(f"postgresql://app:hush-hush@127.0.0.1:{password_server.port}/backstay")


def test_a_missing_server_is_unavailable():
    with pytest.raises(EngineUnavailable):
        ping(f"postgresql://backstay:s3cret@127.0.0.1:{reserve_port()}/backstay")


def test_an_outdated_server_is_refused():
    check_version(140_000, "x")
    with pytest.raises(EngineRefused, match="PostgreSQL 13; Backstay needs 14"):
        check_version(130_012, "x")


def test_a_malformed_url_is_an_error_without_secrets():
    with pytest.raises(ConfigError) as caught:
        parse("postgresql://user:s3cret@host/db?no_such_option=1")
    assert "s3cret" not in f"{caught.value} {caught.value.__cause__}"
    with pytest.raises(ConfigError, match="timeout"):
        parse("postgresql://host/db?timeout=soon")


def test_other_url_parameters_are_passed_to_libpq_unchanged():
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


def test_a_user_without_the_right_to_create_tables_gets_the_command_to_run(database):
    with pytest.raises(EngineRefused, match=r"schema 0, needs \d+.*backstay migrate --sql"):
        ping(database.humble)


def test_a_user_without_the_right_to_create_tables_can_use_existing_ones(database):
    ping(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute("".join(grants(database.name)))
    with sync.Backstay(database.humble) as stay, stay.lock("x", wait=0):
        assert stay.locks.list() != []


def test_a_user_without_rights_on_the_tables_is_refused(database):
    ping(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute(f"GRANT SELECT ON backstay_meta, backstay_state TO {database.name}")
    refused = pytest.raises(EngineRefused, match="permission denied for table backstay_state")
    with sync.Backstay(database.humble) as stay, refused:
        stay.lock("x").acquire(wait=0)


def test_a_newer_schema_is_refused(database):
    ping(database.url)
    with psycopg.connect(database.url, autocommit=True) as owner:
        owner.execute("UPDATE backstay_meta SET value = 99")
    with pytest.raises(SchemaTooNew, match="schema 99"):
        ping(database.url)


def test_a_read_only_server_is_unavailable_for_writes_and_can_be_read(database):
    ping(database.url)
    with sync.Backstay(database.url + "?options=-c%20default_transaction_read_only%3Don") as stay:
        with pytest.raises(EngineUnavailable, match="read-only"):
            stay.lock("x", wait=0).acquire()
        assert stay.locks.inspect("x").count == 0
