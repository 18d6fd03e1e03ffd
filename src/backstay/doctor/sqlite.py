"""A look at a SQLite file and at the disk under it. Opens the file only when it is there, and creates nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

from backstay.doctor.finding import OK, PROBLEM, SKEW_PROBLEM, SKEW_WARNING, WARNING, Finding, above, round_trip
from backstay.engine import migrations
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.engine.sqlite.schema import is_busy

#: File systems on which locks between hosts, or the shared memory of WAL, do not work.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs")
FLEETING = ("tmpfs", "ramfs")
#: Below the first a checkpoint may fail soon, below the second the next write may.
LITTLE_SPACE, NO_SPACE = 100 * 2**20, 10 * 2**20
MOUNTS = Path("/proc/self/mountinfo")

Clock = Callable[[], float]


def where(engine: SqliteEngine) -> str:
    return "memory://" if engine.path == ":memory:" else f"sqlite:///{engine.path}"


def diagnose(engine: SqliteEngine, clock: Clock) -> Iterator[Finding]:
    """Everything worth knowing, in the order in which one would ask."""
    yield Finding(OK, "version", f"SQLite {sqlite3.sqlite_version}")
    if engine.path == ":memory:":
        advice = "fine for tests; use sqlite:///backstay.db or redis:// where processes meet"
        yield Finding(WARNING, "file", "memory:// is seen by one object only, and gone with it", advice)
        return
    path = Path(engine.path).absolute()
    if not path.parent.is_dir():
        yield Finding(PROBLEM, "file", f"the folder {path.parent} does not exist", "create it, or mend the path")
        return
    yield from file_system(path)
    yield from space(path)
    yield from synchronous(engine)
    if not path.exists():
        advice = "the first lock creates it; a mistyped path would, too"
        yield Finding(WARNING, "file", f"{path} does not exist yet", advice)
        return
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):  # in WAL mode not even reading works then
        yield read_only(path, "no right to write to it or to its folder")
        return
    try:
        # Not through Backstay's own door: that one would migrate the file, which is not for a doctor to do.
        db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=engine.timeout, isolation_level=None)
    except sqlite3.Error as error:
        yield Finding(PROBLEM, "file", f"{path} cannot be opened: {error}", "look at the rights of file and folder")
        return
    try:
        yield from contents(db, path, clock)
    except sqlite3.DatabaseError as error:
        advice = "another file, or a damaged one: mend the path, or restore it"
        yield Finding(PROBLEM, "file", f"{path} cannot be read: {error}", advice)
    finally:
        db.close()


def contents(db: sqlite3.Connection, path: Path, clock: Clock) -> Iterator[Finding]:
    """What only an open file can tell."""
    yield from schema(db, path)
    yield from journal(db)
    yield from host_clock(db, clock)
    writable = writing(db, path)
    yield writable
    if writable.level == OK:
        yield round_trip(lambda: db.executescript("BEGIN IMMEDIATE; ROLLBACK"))


def file_system(path: Path) -> Iterator[Finding]:
    kind = mounted_as(path)
    if kind is None:
        return
    if kind in REMOTE:
        advice = "WAL needs a local disk, and one host: use PostgreSQL or Redis between hosts"
        yield Finding(PROBLEM, "file system", f"{path} lies on {kind}, a network file system", advice)
    elif kind in FLEETING:
        advice = "it is gone when the host restarts, and so are all locks: put it on a disk"
        yield Finding(WARNING, "file system", f"{path} lies on {kind}, in memory", advice)
    else:
        yield Finding(OK, "file system", f"local ({kind})")


def mounted_as(path: Path) -> str | None:
    """The kind of file system under a path; None where the kernel does not tell."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    real = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # Of two mounts on one place the later one is seen.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return best[1] if best else None


def space(path: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(path.parent).free
    level = PROBLEM if free < NO_SPACE else WARNING if free < LITTLE_SPACE else OK
    what = f"{free / 2**20:,.0f} MiB are free"
    yield Finding(level, "disk space", what, "make room: a full disk refuses every lock" if level != OK else "")


def synchronous(engine: SqliteEngine) -> Iterator[Finding]:
    what = f"synchronous={engine.synchronous}"
    if engine.synchronous in ("full", "extra"):
        yield Finding(OK, "durability", f"{what}: an answered grant survives a loss of power")
    elif engine.synchronous == "normal":
        advice = "a loss of power may lose the last commits; leave the option out (full) where that matters"
        yield Finding(WARNING, "durability", what, advice)
    else:
        advice = "a loss of power may damage the file: leave the option out (full)"
        yield Finding(PROBLEM, "durability", what, advice)


def schema(db: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    known = len(migrations.scripts("sqlite"))
    have = 0
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'backstay_meta'").fetchone():
        row = db.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchone()
        have = int(row[0]) if row else 0
    if have > known:
        what = f"{path} has schema {have}, this Backstay knows {known}"
        yield Finding(PROBLEM, "schema", what, "upgrade this package: a newer one has used the file")
    elif have < known:
        what = f"{path} has schema {have} of {known}" if have else f"{path} has no tables of Backstay yet"
        yield Finding(OK, "schema", what, "the next lock brings it up to date")
    else:
        yield Finding(OK, "schema", f"version {have}, the newest")


def journal(db: sqlite3.Connection) -> Iterator[Finding]:
    mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    if mode == "wal":
        yield Finding(OK, "journal", "WAL")
    else:
        advice = "Backstay switches to WAL when it opens the file; somebody else may switch back: find out who"
        yield Finding(WARNING, "journal", f"journal_mode is {mode}", advice)


def host_clock(db: sqlite3.Connection, clock: Clock) -> Iterator[Finding]:
    """The latest time in the file against this host's: one clock, so a difference means that it was set back."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'backstay_clock'").fetchone():
        return
    row = db.execute("SELECT now FROM backstay_clock").fetchone()
    ahead = row[0] / 1_000_000 - clock() if row else 0.0
    level = above(ahead, SKEW_WARNING, SKEW_PROBLEM)
    if level == OK:
        yield Finding(OK, "clock", "this host's clock has not gone back")
    else:
        advice = "it was set back, or another host wrote the file: run NTP (chrony), and one host for one file"
        yield Finding(level, "clock", f"the file has seen a time {ahead:.3f} s ahead of this host's clock", advice)


def writing(db: sqlite3.Connection, path: Path) -> Finding:
    """Take the write lock and give it back."""
    try:
        db.executescript("BEGIN IMMEDIATE; ROLLBACK")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            advice = "somebody has stood still in the middle of a transaction: find it, and end or continue it"
            return Finding(PROBLEM, "file", f"{path} stayed locked by another process", advice)
        return read_only(path, str(error))
    return Finding(OK, "file", f"{path} may be written")


def read_only(path: Path, why: str) -> Finding:
    advice = f"give user {os.geteuid()} the right to write there, on a disk that is not mounted read-only"
    return Finding(PROBLEM, "file", f"{path} is read-only for this process: {why}", advice)
