"""Jobs enqueued in the caller's own transaction appear with its commit, never after a rollback, and notify workers."""

from __future__ import annotations

import contextlib
import threading

import pytest
from order_database import is_silent
from psycopg.rows import dict_row

from backstay import ConfigError, JobNotFound
from backstay.testing.waiting import WITHIN


def test_a_commit_enqueues_the_job(database, db):
    handle = database.enqueue(db, 1)
    db.commit()
    assert handle.status() == "pending"
    assert database.orders() == [1]


def test_a_rollback_leaves_no_job_and_no_notification(database, db):
    with database.listening() as notices:
        handle = database.enqueue(db, 1)
        db.rollback()
        assert is_silent(notices)
    with pytest.raises(JobNotFound):
        handle.status()
    assert database.orders() == []


def test_many_jobs_go_into_one_transaction(database, db):
    handles = database.ship.options(connection=db).enqueue_many([(i,) for i in range(50)])
    db.commit()
    assert len({handle.id for handle in handles}) == 50
    assert database.orders() == list(range(50))


def test_other_connections_see_no_job_before_the_commit(database, db):
    handle = database.enqueue(db, 1)
    listed = []
    # Another thread lists the jobs: calls of this thread would count as inside the transaction.
    thread = threading.Thread(target=lambda: listed.append(database.stay.jobs.list()))
    if database.product == "postgres":
        thread.start()
        thread.join(WITHIN)
        assert listed == [[]]
    db.commit()
    assert handle.status() == "pending"


def test_a_transaction_block_commits_and_notifies_workers_once(database, db):
    with database.listening() as notices:
        with database.stay.transaction(db):
            database.enqueue(db, 1)
            database.enqueue(db, 2)
            if database.product == "postgres":  # SQLite allows no other calls inside the block
                assert is_silent(notices)
        assert database.is_announced(notices)
        if database.product == "sqlite":
            assert is_silent(notices)
    assert database.orders() == [1, 2]


def test_a_transaction_block_rolls_back_on_an_exception(database, db):
    with database.listening() as notices:
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.enqueue(db, 1)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert database.orders() == []


def test_a_nested_transaction_block_is_a_savepoint(database, db):
    with database.stay.transaction(db):
        database.enqueue(db, 1)
        with contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.enqueue(db, 2)
            raise ZeroDivisionError
        with database.stay.transaction(db):
            database.enqueue(db, 3)
    assert database.orders() == [1, 3]


def test_jobs_of_a_rolled_back_savepoint_are_not_announced(database, db):
    with database.listening() as notices:
        with database.stay.transaction(db), contextlib.suppress(ZeroDivisionError), database.stay.transaction(db):
            database.enqueue(db, 2)
            raise ZeroDivisionError
        assert is_silent(notices)
    assert database.orders() == []


def test_a_connection_with_its_own_row_factory_is_accepted(database, db):
    db.row_factory = (lambda cursor, row: {"row": row}) if database.product == "sqlite" else dict_row
    with database.stay.transaction(db):
        database.enqueue(db, 1)
    assert database.orders() == [1]
    assert isinstance(db.execute("SELECT 1 AS one").fetchone(), dict)


def test_a_connection_in_autocommit_mode_is_refused(database):
    db = database.connect(**({"isolation_level": None} if database.product == "sqlite" else {"autocommit": True}))
    with pytest.raises(ConfigError, match="autocommit mode"):
        database.enqueue(db, 1)
    with database.stay.transaction(db):  # a block opens a transaction itself
        database.enqueue(db, 2)
    assert database.orders() == [2]
    db.close()


def test_a_refused_job_leaves_the_callers_transaction_unchanged(database, db):
    with database.stay.transaction(db):
        database.enqueue(db, 1)
        with pytest.raises(ConfigError):
            database.enqueue(db, 2, after="0-1a1e347d93f00000f555804b359d")
        database.enqueue(db, 3)
    assert database.orders() == [1, 3]


def test_a_job_can_wait_for_jobs_inside_and_outside_the_transaction(database, db):
    outside = database.ship.enqueue(1)
    with database.stay.transaction(db):
        inside = database.enqueue(db, 2)
        dependent = database.enqueue(db, 3, after=[outside, inside])
    assert dependent.status() == "blocked"
    database.stay.worker(signals=False).run(burst=True)
    assert dependent.status() == "completed"
    with database.stay.transaction(db):
        late = database.enqueue(db, 4, after=dependent)
    assert late.status() == "pending"


def test_a_rollback_removes_the_dependency_on_a_blocker(database, db):
    blocker = database.ship.enqueue(1)
    database.enqueue(db, 2, after=blocker)
    db.rollback()
    database.stay.worker(signals=False).run(burst=True)
    assert blocker.status() == "completed"
    assert database.orders() == [1]


def test_a_unique_key_holds_across_transactions(database, db):
    one = database.enqueue(db, 1, unique="order:{order}")
    again = database.enqueue(db, 1, unique="order:{order}")
    db.commit()
    assert again.deduplicated
    assert again.id == one.id
    assert database.ship.options(unique="order:{order}").enqueue(1).deduplicated
    assert database.orders() == [1]


def test_a_unique_key_that_was_rolled_back_is_free(database, db):
    database.enqueue(db, 1, unique="order:{order}")
    db.rollback()
    assert not database.ship.options(unique="order:{order}").enqueue(1).deduplicated


def test_lanes_that_were_rolled_back_are_created_again(database, db):
    """A store must not cache table contents that a transaction rolled back."""
    database.enqueue(db, 1, queue="rare")
    db.rollback()
    database.ship.options(queue="rare").enqueue(2)
    database.stay.worker(queues=["rare"], signals=False).run(burst=True)
    assert [job.state for job in database.stay.jobs.list()] == ["completed"]
