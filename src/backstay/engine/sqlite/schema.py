"""Open a SQLite file and migrate its schema; reject a schema that is newer than this code.

Tables are prefixed `backstay_`, and one of them holds the version, so Backstay can share a file with the application.
"""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path

from backstay.engine import migrations
from backstay.engine.sqlite.file_mode import PRIVATE, create_database
from backstay.errors import ConfigError, EngineUnavailable

#: Seconds between two attempts to open a busy database.
PAUSE = 0.005
#: Page cache in KiB: jobs of many kinds touch more pages than SQLite's default of 2 MiB holds.
CACHE = 8192
#: The oldest supported SQLite.
OLDEST = (3, 35)


def connect(path: str, *, synchronous: str, timeout: float, file_mode: int = PRIVATE) -> sqlite3.Connection:
    """Open a connection and bring the schema up to date. A new file gets the mode `file_mode`. The connection uses
    autocommit and WAL, but not SQLite's busy handler, which starves other processes. Processes that open a new file at
    the same time create the schema only once.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: Python must come with 3.35 or newer")
    if path != ":memory:":
        try:
            has_folder = Path(path).parent.is_dir()
        except PermissionError as error:
            raise EngineUnavailable(f"{path}: permission denied for user {os.geteuid()}") from error
        if not has_folder:
            raise ConfigError(f"cannot create {path}: its folder does not exist")
        create_database(path, file_mode)
    deadline = time.monotonic() + timeout
    while True:
        try:
            return _open(path, synchronous)
        except sqlite3.DatabaseError as error:
            if not is_busy(error) or time.monotonic() > deadline:
                raise translate(error, path) from error
            time.sleep(PAUSE)


def _open(path: str, synchronous: str) -> sqlite3.Connection:
    db = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False, cached_statements=256)
    try:
        db.execute(f"PRAGMA synchronous = {synchronous}")
        db.execute("PRAGMA foreign_keys = ON")
        db.execute(f"PRAGMA cache_size = -{CACHE}")
        if path != ":memory:" and db.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
            db.execute("PRAGMA journal_mode = WAL")
        # The version is read without the write lock, so that a stalled writer does not block processes that open the
        # file.
        if _version(db) != len(migrations.scripts("sqlite")):
            db.execute("BEGIN IMMEDIATE")
            try:
                _upgrade(db, path)
                db.execute("COMMIT")
            except BaseException:
                db.execute("ROLLBACK")
                raise
    except BaseException:
        db.close()
        raise
    return db


def _version(db: sqlite3.Connection) -> int:
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'backstay_meta'").fetchone():
        return 0
    row = db.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchone()
    return int(row[0]) if row else 0


def _upgrade(db: sqlite3.Connection, path: str) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS backstay_meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID")
    for text in migrations.list_missing("sqlite", _version(db), path):
        for statement in text.split(";"):
            if statement.strip():
                db.execute(statement)
    db.execute("INSERT OR REPLACE INTO backstay_meta VALUES ('schema', ?)", (len(migrations.scripts("sqlite")),))


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error, path: str) -> Exception:
    """Return the Backstay error for a SQLite error. Its message says what is wrong with the file or the disk."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code == sqlite3.SQLITE_NOTADB:
        return ConfigError(f"{path} is not a SQLite database")
    if code == sqlite3.SQLITE_FULL:
        return EngineUnavailable(f"the disk under {path} is full; nothing was written")
    if code == sqlite3.SQLITE_READONLY:
        return EngineUnavailable(f"{path} is read-only for this process; nothing was written")
    if is_busy(error):
        return EngineUnavailable(f"{path} stayed locked by another process; nothing was written")
    return EngineUnavailable(f"{path}: {error}; nothing was written")
