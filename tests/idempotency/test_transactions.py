"""Idempotency in the caller's transaction: the effect and the record are committed together or not at all."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import psycopg
import pytest
from effects_database import TABLES
from killed_transaction import KEY, charge

from backstay import ConfigError, FingerprintMismatch, InProgress
from backstay.testing.waiting import eventually

KILLED = Path(__file__).with_name("killed_transaction.py")


def write_and_fail(db, fail):
    """Write an effect, then call `fail`."""
    db.execute("INSERT INTO charge VALUES (5)")
    fail()


def test_effect_and_record_are_committed_together(stay, store):
    db = store.connect()
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    db.close()


def test_effect_and_record_are_rolled_back_together(stay, store):
    db = store.connect()
    with stay.idempotency.transaction(db, KEY) as entry:
        db.execute("INSERT INTO charge VALUES (5)")
        entry.result = "charged"
    db.rollback()
    assert store.count() == (0, 0)
    with stay.idempotency.transaction(db, KEY) as entry:
        assert not entry.replayed
    db.rollback()
    db.close()


def test_a_failed_body_leaves_nothing_even_if_its_exception_is_caught(stay, store):
    db = store.connect()
    db.execute("INSERT INTO charge VALUES (1)")  # the caller's own statement before the block
    with pytest.raises(ZeroDivisionError), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, lambda: 1 / 0)
    db.commit()
    assert store.count() == (1, 0)
    db.close()


def test_a_statement_that_fails_inside_leaves_the_transaction_usable(stay, store):
    db = store.connect()
    with pytest.raises((psycopg.Error, sqlite3.Error)), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, lambda: db.execute("INSERT INTO nowhere VALUES (5)"))
    assert charge(stay, db) == {"charged": 5}
    assert store.count() == (1, 1)
    db.close()


def test_a_second_transaction_waits_for_the_first_and_replays(stay, store):
    first, outcomes = store.connect(), []

    def second():
        db = store.connect()
        outcomes.append(charge(stay, db))
        db.close()

    with stay.idempotency.transaction(first, KEY, fingerprint={"amount": 5}) as entry:
        first.execute("INSERT INTO charge VALUES (5)")
        thread = threading.Thread(target=second)
        thread.start()
        entry.result = {"charged": 5}
    thread.join(0.3)
    assert thread.is_alive()
    assert not outcomes
    first.commit()
    thread.join()
    assert outcomes == [{"charged": 5}]
    assert store.count() == (1, 1)
    first.close()


def test_a_second_transaction_runs_when_the_first_is_rolled_back(stay, store):
    first = store.connect()

    def second():
        db = store.connect()
        charge(stay, db)
        db.close()

    with stay.idempotency.transaction(first, KEY, fingerprint={"amount": 5}) as entry:
        entry.result = "never"
    thread = threading.Thread(target=second)
    thread.start()
    first.rollback()
    thread.join()
    assert store.count() == (1, 1)
    first.close()


def test_an_outcome_past_its_ttl_runs_again(stay, store):
    db = store.connect()

    def attempt():
        with stay.idempotency.transaction(db, KEY, ttl=0.2) as entry:
            entry.replayed or setattr(entry, "result", "x")
        db.commit()
        return entry.replayed

    assert not attempt()
    assert attempt()
    assert eventually(lambda: not attempt())
    db.close()


def test_another_fingerprint_and_a_nested_use_of_the_key_are_refused(stay, store):
    db = store.connect()
    with stay.idempotency.transaction(db, KEY, fingerprint=1) as entry:
        with pytest.raises(InProgress, match="this very transaction"), stay.idempotency.transaction(db, KEY):
            pytest.fail("not reached")
        entry.result = "x"
    db.commit()
    with pytest.raises(FingerprintMismatch), stay.idempotency.transaction(db, KEY, fingerprint=2):
        pytest.fail("not reached")
    db.execute("INSERT INTO charge VALUES (1)")  # the caller's transaction is still usable
    db.commit()
    assert store.count() == (1, 1)
    db.close()


def test_an_outcome_that_cannot_be_stored_is_refused_and_rolled_back(stay, store):
    db = store.connect()
    with pytest.raises(ConfigError, match="plain data"), stay.idempotency.transaction(db, KEY) as entry:
        write_and_fail(db, lambda: setattr(entry, "result", object()))
    db.commit()
    assert store.count() == (0, 0)
    db.close()


def test_setting_a_result_on_a_replay_is_refused(stay, store):
    db = store.connect()
    charge(stay, db)
    with (
        pytest.raises(ConfigError, match="ran before"),
        stay.idempotency.transaction(db, KEY) as entry,
    ):
        entry.result = "again"
    db.rollback()
    db.close()


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_a_transaction_that_ends_inside_its_block_raises(stay, store, end):
    db = store.connect()
    with pytest.raises(ConfigError, match="inside its block"), stay.idempotency.transaction(db, KEY):
        write_and_fail(db, getattr(db, end))
    db.rollback()
    assert store.count() == ((1, 1) if end == "commit" else (0, 0))
    if end == "commit":  # the outcome of the body is unknown, so it does not run again
        with pytest.raises(InProgress, match="committed inside its block"), stay.idempotency.transaction(db, KEY):
            pytest.fail("not reached")
    db.rollback()
    db.close()


def run_and_kill(store, before):
    command = [sys.executable, str(KILLED), store.product, str(store.address), str(before)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.slow
def test_a_kill_at_any_statement_leaves_both_effect_and_record_or_neither(store):
    statements = int(run_and_kill(store, 0).stdout)
    assert statements >= 6
    for before in range(1, statements + 1):
        for table in TABLES:
            store.prepare(f"DELETE FROM {table}")  # noqa: S608 - fixed names
        killed = run_and_kill(store, before)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert store.count() == ((1, 1) if before == statements else (0, 0)), before
        again = run_and_kill(store, 0)
        assert again.returncode == 0, again.stderr
        assert store.count() == (1, 1), before
