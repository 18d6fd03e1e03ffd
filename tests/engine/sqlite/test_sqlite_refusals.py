"""A file that cannot be written now is an outage: nothing was written, and a retry is safe."""

from __future__ import annotations

import sqlite3

import pytest

from backstay import ConfigError, EngineUnavailable, sync
from backstay.engine.sqlite.schema import translate
from backstay.engine.sqlite.writer import SqliteWriter
from backstay.policy import Policy
from backstay.testing.waiting import eventually


def error_with(code):
    error = sqlite3.OperationalError("the library's words")
    error.sqlite_errorcode = code
    return error


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (sqlite3.SQLITE_FULL, EngineUnavailable),
        (sqlite3.SQLITE_READONLY, EngineUnavailable),
        (sqlite3.SQLITE_READONLY_DBMOVED, EngineUnavailable),
        (sqlite3.SQLITE_IOERR_WRITE, EngineUnavailable),
        (sqlite3.SQLITE_IOERR_FSYNC, EngineUnavailable),
        (sqlite3.SQLITE_CANTOPEN, EngineUnavailable),
        (sqlite3.SQLITE_NOMEM, EngineUnavailable),
        (sqlite3.SQLITE_BUSY, EngineUnavailable),
        (sqlite3.SQLITE_NOTADB, ConfigError),
    ],
)
def test_an_error_of_the_disk_is_an_outage(code, kind):
    assert type(translate(error_with(code), "x.db")) is kind


def test_a_release_that_met_a_full_disk_is_sent_again(tmp_path, monkeypatch):
    with sync.Backstay(f"sqlite:///{tmp_path}/x.db", profile=Policy(lock_retries=0)) as stay:
        transaction = SqliteWriter._transaction

        def full(self, ops):
            raise error_with(sqlite3.SQLITE_FULL)

        with stay.lock("x", ttl=600):
            monkeypatch.setattr(SqliteWriter, "_transaction", full)
        assert stay.telemetry.counts["lock.release_deferred"] == 1
        monkeypatch.setattr(SqliteWriter, "_transaction", transaction)
        assert eventually(lambda: not stay.locks.inspect("x").held)
