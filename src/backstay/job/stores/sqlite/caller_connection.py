"""Enqueue jobs on the caller's own sqlite3 connection, inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from backstay.engine.sqlite import caller_transactions
from backstay.engine.sqlite.caller_transactions import use_plain_rows
from backstay.engine.sqlite.schema import is_busy, translate
from backstay.errors import ConfigError
from backstay.job.api.after_commit import find_block_announcements
from backstay.job.api.caller_connection import TransactionControl, autocommit_error
from backstay.job.ids import shard_of
from backstay.job.model import Enqueued, NewJob
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core

if TYPE_CHECKING:
    from backstay.engine.sqlite.engine import SqliteEngine


class SqliteCallerStore:
    """Enqueues jobs on a caller's sqlite3 connection to the engine's file."""

    package = "sqlite3"

    def __init__(self, core: Core) -> None:
        self._core = core

    async def enqueue(self, driver: Any, jobs: Sequence[NewJob]) -> list[Enqueued]:
        engine = cast("SqliteEngine", self._core.engine)
        op = self._core.services.get(JOB_STORE).enqueue(shard_of(jobs[0].id), jobs)
        try:
            check_same_file(driver, engine.path)
            ensure_transaction(driver)
            return engine.apply_on(driver, op)
        except sqlite3.OperationalError as error:
            raise explain(error, engine.path) from error

    async def announce(self, driver: Any, types: list[str]) -> bool:
        return False

    def control(self, driver: Any) -> TransactionControl | None:
        return SqliteControl(self._core, driver) if isinstance(driver, sqlite3.Connection) else None


class SqliteControl(TransactionControl):
    """Begins and ends a transaction block on a sqlite3 connection. Inside an open transaction the block is a savepoint.
    Otherwise it begins with BEGIN IMMEDIATE, which takes the write lock at once, so that a write after a read never
    fails with SQLITE_BUSY_SNAPSHOT.
    """

    def __init__(self, core: Core, driver: sqlite3.Connection) -> None:
        self._core = core
        self._driver = driver
        #: Whether the connection has autocommit=False. Then sqlite3 always keeps a transaction open, also outside
        #: blocks, and the outermost block commits it.
        self._keeps_one = getattr(driver, "autocommit", None) is False

    async def begin(self) -> None:
        driver = self._driver
        path = cast("SqliteEngine", self._core.engine).path
        check_same_file(driver, path)
        self.outermost = not driver.in_transaction or (
            self._keeps_one and find_block_announcements(self._core, driver) is None
        )
        try:
            if not self.outermost:
                driver.execute("SAVEPOINT backstay_block")
            elif not driver.in_transaction:
                driver.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError as error:
            raise translate(error, path) from error
        caller_transactions.enter(driver, self._core.engine)

    async def end(self, error: BaseException | None) -> None:
        driver = self._driver
        before = use_plain_rows(driver)
        try:
            if self.outermost:
                caller_transactions.leave()
                if error is None:
                    try:
                        driver.commit()
                    except BaseException:
                        driver.rollback()
                        raise
                else:
                    driver.rollback()
            elif driver.in_transaction:  # unless the caller ended the transaction inside the block
                if error is not None:
                    driver.execute("ROLLBACK TO backstay_block")
                driver.execute("RELEASE backstay_block")
        finally:
            driver.row_factory, driver.text_factory = before


def check_same_file(driver: sqlite3.Connection, path: str) -> None:
    """Raise ConfigError unless the connection is to the engine's database file."""
    if path == ":memory:":
        raise ConfigError(
            "jobs on memory:// are not in a file that connection= can share: use sqlite:///app.db for both"
        )
    before = use_plain_rows(driver)
    try:
        file = next((row[2] for row in driver.execute("PRAGMA database_list") if row[1] == "main"), "")
    finally:
        driver.row_factory, driver.text_factory = before
    if not file or not Path(path).exists() or not Path(file).samefile(path):
        raise ConfigError(
            f"connection= is to {file or 'memory'!r}, but this Backstay stores its jobs in {path!r}: a transaction"
            " spans one file; connect to that one"
        )


def ensure_transaction(driver: sqlite3.Connection) -> None:
    """Begin a transaction unless one is open. The caller ends it."""
    if driver.in_transaction:
        return
    if driver.isolation_level is None or getattr(driver, "autocommit", None) is True:
        raise autocommit_error("open a transaction first, as in BEGIN IMMEDIATE, or use stay.transaction(conn)")
    try:
        driver.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise translate(error, "the file of this connection") from error


def explain(error: sqlite3.OperationalError, path: str) -> Exception:
    """Return a Backstay error that explains an error of the caller's connection. SQLITE_BUSY means that the transaction
    began with a read and that another connection has written since. It does not occur after BEGIN IMMEDIATE.
    """
    if "no such table: backstay_" in str(error):
        return ConfigError("this file has no Backstay tables: open the Backstay first, or run `backstay migrate`")
    if is_busy(error):
        return ConfigError(
            "another connection wrote to the file after this transaction's first read: begin it with BEGIN IMMEDIATE"
        )
    return translate(error, path)
