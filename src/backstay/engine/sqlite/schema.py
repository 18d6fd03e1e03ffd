"""The SQLite schema: opened, migrated, refused when it is newer than this code.

Tables are prefixed `backstay_` and the version lives in one of them, so that Backstay may share a database
file with the application it serves.
"""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

from backstay.engine import migrations
from backstay.errors import ConfigError, EngineUnavailable

#: How often a busy database is tried again while it is being opened.
PAUSE = 0.005
#: Pages kept in memory, in KiB: jobs of many kinds touch more of them than SQLite's own 2 MiB hold.
CACHE = 8192
#: The oldest SQLite whose SQL is enough.
OLDEST = (3, 35)


def connect(path: str, *, synchronous: str, timeout: float) -> sqlite3.Connection:
    """A connection of our own, its schema up to date: autocommit, WAL, and no busy handler, since the stock one
    starves others. Processes that open a new file together take turns; the later ones find the work done.
    """
    if sqlite3.sqlite_version_info < OLDEST:
        raise ConfigError(f"SQLite {sqlite3.sqlite_version} is too old: Python must come with 3.35 or newer")
    if path != ":memory:" and not Path(path).absolute().parent.is_dir():
        raise ConfigError(f"cannot create {path}: its folder does not exist")
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
        if _version(db) != len(
            migrations.scripts("sqlite")
        ):  # looking needs no lock: a stalled writer does not keep readers out
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
    for text in migrations.missing("sqlite", _version(db), path):
        for statement in text.split(";"):
            if statement.strip():
                db.execute(statement)
    db.execute("INSERT OR REPLACE INTO backstay_meta VALUES ('schema', ?)", (len(migrations.scripts("sqlite")),))


def is_busy(error: sqlite3.Error) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def translate(error: sqlite3.Error, path: str) -> Exception:
    """A SQLite error as one of ours, with the way out."""
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
