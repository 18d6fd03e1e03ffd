"""A database of an older schema is upgraded when it is opened, and keeps its data. A newer schema is refused."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from types import SimpleNamespace

import psycopg
import pytest
from typer.testing import CliRunner

from backstay import BackstayError, LockHeld, SchemaTooNew
from backstay.cli.root import app
from backstay.doctor.examine import examine
from backstay.sync import Backstay
from support.synthetic_migration import BROKEN, JOBS, VERSION, add_migration, real

POSTGRES = pytest.param("postgres", marks=pytest.mark.postgres)


@pytest.fixture(params=["sqlite", POSTGRES])
def older(request, tmp_path):
    """A database with the latest schema of the package itself, one held lock and one pending job."""
    path = tmp_path / "older.db"
    postgres = request.param == "postgres"
    url = request.getfixturevalue("database").url if postgres else f"sqlite:///{path}?synchronous=normal"

    def rows(sql):
        with closing(psycopg.connect(url) if postgres else sqlite3.connect(path)) as db:
            return db.execute(sql).fetchall()

    with Backstay(url) as stay:
        fence = stay.lock("held", ttl=600).acquire(wait=0).fence
        job = define(stay).enqueue(1, 2).id
    version = real(request.param)
    assert rows(VERSION) == [(version,)]
    return SimpleNamespace(url=url, rows=rows, fence=fence, job=job, version=version)


def define(stay):
    @stay.job()
    def add(a: int, b: int) -> int:
        return a + b

    return add


def assert_data_is_kept(older, stay):
    """The lock is held by the same lease, and the job runs."""
    with pytest.raises(LockHeld):
        stay.lock("held").acquire(wait=0)
    stay.locks.force_release("held")
    assert stay.lock("held").acquire(wait=0).fence > older.fence
    define(stay)
    assert stay.jobs.get(older.job).state == "pending"
    stay.worker(signals=False).run(burst=True)
    assert stay.jobs.handle(older.job).result(0) == 3


def test_an_older_schema_is_upgraded_and_its_data_stays_usable(older, monkeypatch):
    add_migration(monkeypatch)
    with Backstay(older.url) as stay:
        assert older.rows(VERSION) == [(older.version + 1,)]
        assert older.rows(JOBS) == [(1,)]
        assert_data_is_kept(older, stay)


def test_a_migration_is_applied_once(older, monkeypatch):
    add_migration(monkeypatch)
    for _ in range(2):
        with Backstay(older.url):
            pass
    assert older.rows(JOBS) == [(1,)]
    assert older.rows(VERSION) == [(older.version + 1,)]


def test_older_code_refuses_a_newer_schema_and_changes_nothing(older, monkeypatch):
    with monkeypatch.context() as newer:
        add_migration(newer)
        with Backstay(older.url):
            pass
    with pytest.raises(SchemaTooNew, match=rf"has schema {older.version + 1}, this Backstay knows {older.version}\b"):
        Backstay(older.url).open()
    assert older.rows(VERSION) == [(older.version + 1,)]
    add_migration(monkeypatch)
    with Backstay(older.url) as stay:
        assert_data_is_kept(older, stay)


def test_a_migration_that_fails_leaves_the_older_schema_and_its_data(older, monkeypatch):
    with monkeypatch.context() as newer:
        add_migration(newer, BROKEN)
        with pytest.raises(BackstayError, match="backstay_no_such_table"):
            Backstay(older.url).open()
    assert older.rows(VERSION) == [(older.version,)]
    with Backstay(older.url) as stay:
        assert_data_is_kept(older, stay)
    add_migration(monkeypatch)
    with Backstay(older.url):
        assert older.rows(VERSION) == [(older.version + 1,)]


def test_the_doctor_names_both_versions_of_an_older_schema_and_does_not_upgrade_it(older, monkeypatch):
    add_migration(monkeypatch)
    (finding,) = [f for f in examine(older.url).findings if f.topic == "schema"]
    assert finding.level == "ok"
    assert f"schema {older.version} of {older.version + 1}" in finding.what
    assert older.rows(VERSION) == [(older.version,)]


def test_the_doctor_reports_a_newer_schema_as_a_problem(older, monkeypatch):
    with monkeypatch.context() as newer:
        add_migration(newer)
        with Backstay(older.url):
            pass
    (finding,) = [f for f in examine(older.url).findings if f.topic == "schema"]
    assert finding.level == "problem"
    assert str(older.version + 1) in finding.what


@pytest.mark.parametrize("older", [POSTGRES], indirect=True)
def test_the_printed_script_upgrades_the_schema_and_keeps_the_data(older, monkeypatch):
    add_migration(monkeypatch)
    script = migrate("--sql", "--since", str(older.version))
    with psycopg.connect(older.url, autocommit=True) as owner:
        owner.execute(script)
    assert older.rows(VERSION) == [(older.version + 1,)]
    assert older.rows(JOBS) == [(1,)]
    with Backstay(older.url) as stay:
        assert_data_is_kept(older, stay)


@pytest.mark.parametrize("older", [POSTGRES], indirect=True)
def test_the_migrate_command_upgrades_the_schema_and_names_both_versions(older, monkeypatch):
    add_migration(monkeypatch)
    assert f"from schema {older.version} to {older.version + 1}" in migrate(older.url)
    assert older.rows(VERSION) == [(older.version + 1,)]
    assert older.rows(JOBS) == [(1,)]
    assert f"up to date: schema {older.version + 1}" in migrate(older.url)
    with Backstay(older.url) as stay:
        assert_data_is_kept(older, stay)


def migrate(*args):
    done = CliRunner().invoke(app, ["migrate", *args], prog_name="backstay")
    assert done.exit_code == 0, done.output
    return done.stdout
