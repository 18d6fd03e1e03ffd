"""Check a SQLite file and its disk. Opens the file only if it exists, and creates nothing."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from backstay.doctor.finding import (
    OK,
    PROBLEM,
    SKEW_PROBLEM,
    SKEW_WARNING,
    WARNING,
    Finding,
    check_round_trip,
    rate_excess,
)
from backstay.engine import migrations
from backstay.engine.sqlite.engine import SqliteEngine
from backstay.engine.sqlite.schema import is_busy

#: Network file systems, on which locks between hosts or the shared memory of WAL do not work.
REMOTE = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.sshfs", "fuse.glusterfs")
VOLATILE = ("tmpfs", "ramfs")
#: Free bytes on the disk. Below LITTLE_SPACE, a WAL checkpoint may soon fail; below NO_SPACE, the next write may.
LITTLE_SPACE, NO_SPACE = 100 * 2**20, 10 * 2**20
MOUNTS = Path("/proc/self/mountinfo")

Clock = Callable[[], float]


def where(engine: SqliteEngine) -> str:
    return "memory://" if engine.path == ":memory:" else f"sqlite:///{engine.path}"


def diagnose(engine: SqliteEngine, clock: Clock) -> Iterator[Finding]:
    """Run all checks."""
    yield Finding(OK, "version", f"SQLite {sqlite3.sqlite_version}")
    if engine.path == ":memory:":
        advice = "fine for tests; use sqlite:///backstay.db or redis:// to coordinate processes"
        yield Finding(WARNING, "file", "memory:// belongs to one Backstay object and ends with it", advice)
        return
    path = Path(engine.path).absolute()
    if not path.parent.is_dir():
        yield Finding(PROBLEM, "file", f"the folder {path.parent} does not exist", "create it, or correct the path")
        return
    yield from check_file_system(path)
    yield from check_disk_space(path)
    yield from check_synchronous(engine)
    if not path.exists():
        advice = "the first use creates it; check the path for typing errors"
        yield Finding(WARNING, "file", f"{path} does not exist yet", advice)
        return
    yield from check_mode(path, engine.file_mode)
    # Without write permission on the file and its folder, SQLite in WAL mode cannot even read the file.
    if not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
        yield describe_read_only(path, "no permission to write to it or to its folder")
        return
    try:
        # Do not open the file through the engine, which would migrate it: a check must change nothing.
        db = sqlite3.connect(f"{path.as_uri()}?mode=rw", uri=True, timeout=engine.timeout, isolation_level=None)
    except sqlite3.Error as error:
        yield Finding(
            PROBLEM, "file", f"{path} cannot be opened: {error}", "check the permissions of the file and its folder"
        )
        return
    try:
        yield from check_contents(db, path, clock)
    except sqlite3.DatabaseError as error:
        advice = "it is another kind of file, or damaged: correct the path, or restore the file"
        yield Finding(PROBLEM, "file", f"{path} cannot be read: {error}", advice)
    finally:
        db.close()


def check_contents(db: sqlite3.Connection, path: Path, clock: Clock) -> Iterator[Finding]:
    """Run the checks that need an open database."""
    yield from check_schema(db, path)
    yield from check_journal(db)
    yield from check_clock(db, clock)
    writable = check_write(db, path)
    yield writable
    if writable.level == OK:
        yield check_round_trip(lambda: db.executescript("BEGIN IMMEDIATE; ROLLBACK"))


def check_file_system(path: Path) -> Iterator[Finding]:
    kind = find_file_system(path)
    if kind is None:
        return
    if kind in REMOTE:
        advice = "WAL needs a local disk and a single host: use PostgreSQL or Redis between hosts"
        yield Finding(PROBLEM, "file system", f"{path} is on {kind}, a network file system", advice)
    elif kind in VOLATILE:
        advice = "a restart of the host deletes it and all locks: move it to a disk"
        yield Finding(WARNING, "file system", f"{path} is on {kind}, in memory", advice)
    else:
        yield Finding(OK, "file system", f"local ({kind})")


def find_file_system(path: Path) -> str | None:
    """Return the type of the file system that contains a path; None if this host has no mount table in /proc."""
    try:
        lines = MOUNTS.read_text().splitlines()
    except OSError:
        return None
    real = path.resolve()
    best: tuple[int, str] | None = None
    for line in lines:
        before, _, after = line.partition(" - ")
        point = Path(before.split()[4].encode().decode("unicode_escape"))
        # If two file systems are mounted at one point, the later one is in use.
        if real.is_relative_to(point) and (best is None or len(point.parts) >= best[0]):
            best = (len(point.parts), after.split()[0])
    return best[1] if best else None


def check_disk_space(path: Path) -> Iterator[Finding]:
    free = shutil.disk_usage(path.parent).free
    level = PROBLEM if free < NO_SPACE else WARNING if free < LITTLE_SPACE else OK
    what = f"{free / 2**20:,.0f} MiB are free"
    yield Finding(level, "disk space", what, "free some space: on a full disk every lock fails" if level != OK else "")


def check_mode(path: Path, file_mode: int) -> Iterator[Finding]:
    """Compare the modes of the database and of the files beside it with the configured one. An older Backstay or
    another program may have created them with the umask's mode.
    """
    files = [path, *(path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-shm", "-queue"))]
    modes = {file: stat.S_IMODE(file.stat().st_mode) for file in files if file.exists()}
    wide = [file for file, mode in modes.items() if mode & 0o666 & ~file_mode]
    if not wide:
        yield Finding(OK, "file mode", f"{modes[path]:03o}")
        return
    what = ", ".join(f"{file.name} has mode {modes[file]:03o}" for file in wide)
    advice = (
        f"other users can read tokens and payloads, or stall writers: chmod {file_mode:o} {path}*, or allow it with"
        " ?file_mode="
    )
    yield Finding(WARNING, "file mode", what, advice)


def check_synchronous(engine: SqliteEngine) -> Iterator[Finding]:
    what = f"synchronous={engine.synchronous}"
    if engine.synchronous in ("full", "extra"):
        yield Finding(OK, "durability", f"{what}: a confirmed grant survives a power loss")
    elif engine.synchronous == "normal":
        advice = "a power loss may lose the last commits; omit the option (full) where that matters"
        yield Finding(WARNING, "durability", what, advice)
    else:
        advice = "a power loss may corrupt the file: omit the option (full)"
        yield Finding(PROBLEM, "durability", what, advice)


def check_schema(db: sqlite3.Connection, path: Path) -> Iterator[Finding]:
    known = len(migrations.scripts("sqlite"))
    have = 0
    if db.execute("SELECT 1 FROM sqlite_master WHERE name = 'backstay_meta'").fetchone():
        row = db.execute("SELECT value FROM backstay_meta WHERE key = 'schema'").fetchone()
        have = int(row[0]) if row else 0
    if have > known:
        what = f"{path} has schema {have}, this Backstay supports {known}"
        yield Finding(PROBLEM, "schema", what, "upgrade this package: a newer version has used the file")
    elif have < known:
        what = f"{path} has schema {have} of {known}" if have else f"{path} has no tables of Backstay yet"
        yield Finding(OK, "schema", what, "the next use upgrades it")
    else:
        yield Finding(OK, "schema", f"version {have}, the newest")


def check_journal(db: sqlite3.Connection) -> Iterator[Finding]:
    mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    if mode == "wal":
        yield Finding(OK, "journal", "WAL")
    else:
        advice = "Backstay switches to WAL when it opens the file; find the program that switches it back"
        yield Finding(WARNING, "journal", f"journal_mode is {mode}", advice)


def check_clock(db: sqlite3.Connection, clock: Clock) -> Iterator[Finding]:
    """Compare the latest time that the file contains with this host's clock. If the file's time is later, the clock was
    set back.
    """
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'backstay_clock'").fetchone():
        return
    row = db.execute("SELECT now FROM backstay_clock").fetchone()
    ahead = row[0] / 1_000_000 - clock() if row else 0.0
    level = rate_excess(ahead, SKEW_WARNING, SKEW_PROBLEM)
    if level == OK:
        yield Finding(OK, "clock", "this host's clock was not set back")
    else:
        advice = "it was set back, or another host wrote the file: run NTP (chrony), and use one host per file"
        yield Finding(level, "clock", f"the file contains a time {ahead:.3f} s ahead of this host's clock", advice)


def check_write(db: sqlite3.Connection, path: Path) -> Finding:
    """Acquire SQLite's write lock and release it, to check that this process can write."""
    try:
        db.executescript("BEGIN IMMEDIATE; ROLLBACK")
    except sqlite3.OperationalError as error:
        if is_busy(error):
            advice = "another process is stuck in a write transaction: find it, and end or continue it"
            return Finding(PROBLEM, "file", f"{path} stayed locked by another process", advice)
        return describe_read_only(path, str(error))
    return Finding(OK, "file", f"{path} is writable")


def describe_read_only(path: Path, why: str) -> Finding:
    advice = f"give user {os.geteuid()} write permission, on a disk that is not mounted read-only"
    return Finding(PROBLEM, "file", f"{path} is read-only for this process: {why}", advice)
