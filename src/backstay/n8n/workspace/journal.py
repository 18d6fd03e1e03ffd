"""Atomic commits of several files: all change or none, even if the process is killed.

A commit saves the old contents, writes a journal, writes the new contents to staging files, renames these into place,
and deletes the journal. The next command that finds a journal rolls the interrupted commit back. If another process has
changed one of its files in the meantime, nothing is rolled back, and the error names that file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from backstay.errors import WorkspaceError
from backstay.n8n.workspace.files import PRIVATE, FileChange, read_content, resolve_inside

#: Seconds that a command waits while another command runs in the same workspace. Commands are shorter than that, unless
#: n8n responds slowly.
LOCK_TIMEOUT = 20.0
LOCK_POLL_SECONDS = 0.02

LOCK = "lock"
JOURNAL = "journal.json"
UNDO = "undo"
NEW = ".backstay-new"
_READ_ONLY_ERRNOS = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def exclusive(
    root: Path, *, timeout: float = LOCK_TIMEOUT, read_only: bool = False
) -> Generator[list[str], None, None]:
    """Hold the workspace's exclusive lock, so that commands run one at a time. First roll back a command that was
    interrupted, and yield the paths of the files that this restored.

    `read_only`: in a folder that is not writable, hold a shared lock instead of raising WorkspaceError.
    """
    own = root / PRIVATE
    try:
        own.mkdir(parents=True, exist_ok=True)
        if not (own / ".gitignore").exists():
            (own / ".gitignore").write_text("*\n")
        handle = os.open(own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not read_only or error.errno not in _READ_ONLY_ERRNOS:
            raise WorkspaceError(f"{root} cannot be written: {error.strerror or error}") from error
        with _shared(root, timeout):
            yield []
        return
    try:
        _acquire_flock(handle, root, timeout, fcntl.LOCK_EX)
        yield recover(root)
    finally:
        os.close(handle)


@contextmanager
def _shared(root: Path, timeout: float) -> Generator[None, None, None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # without the lock file no writer can run either
            handle = os.open(root / PRIVATE / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, handle)
            _acquire_flock(handle, root, timeout, fcntl.LOCK_SH)
        if is_pending(root):
            raise WorkspaceError(
                f"a command was interrupted in {root}, but the folder is read-only, so it cannot be rolled back"
            )
        yield


def _acquire_flock(handle: int, root: Path, timeout: float, kind: int) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WorkspaceError(
                    f"another command is running in {root} and did not finish within {timeout:g} s; nothing was changed"
                ) from None
            time.sleep(LOCK_POLL_SECONDS)


def is_pending(root: Path) -> bool:
    """Whether a command was interrupted and not rolled back yet."""
    return (root / PRIVATE / JOURNAL).exists()


def commit(root: Path, changes: Sequence[FileChange]) -> None:
    """Write all changes or none; call it under `exclusive`. Raise WorkspaceError when that fails or when another
    process has changed one of the files; then nothing has changed.
    """
    for change in changes:
        if read_content(resolve_inside(root, change.path), change.path) != change.before:
            raise WorkspaceError(f"{change.path} was changed by another process in the meantime; nothing was changed")
    if not changes:
        return
    own = root / PRIVATE
    try:
        _save_originals(own, changes)
        for change in changes:
            _stage(resolve_inside(root, change.path), change)
        for change in changes:
            place = resolve_inside(root, change.path)
            if change.after is None:
                place.unlink()
            else:
                _staging_path(place).replace(place)
        for folder in {resolve_inside(root, change.path).parent for change in changes}:
            _sync(folder)
    except BaseException as error:
        recover(root)
        if isinstance(error, OSError):
            raise WorkspaceError(f"nothing was changed: {error.strerror or error} ({error.filename})") from error
        raise
    (own / JOURNAL).unlink()
    _remove_leftovers(own)


def recover(root: Path) -> list[str]:
    """Roll back an interrupted commit, if there is one. Return the paths of the files that belong to it."""
    own = root / PRIVATE
    journal = own / JOURNAL
    if not journal.exists():
        _remove_leftovers(own)
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(journal.read_text(encoding="utf-8"))["files"]
        for entry in entries:
            now = _digest(read_content(resolve_inside(root, entry["path"]), entry["path"]))
            if now not in (entry["before"], entry["after"]):
                raise WorkspaceError(
                    f"a command was interrupted, and {entry['path']} was changed since: compare it with"
                    f" {PRIVATE}/{UNDO}/{entry['number']}, then delete {PRIVATE}/{JOURNAL}"
                )
        for entry in entries:
            _restore(root, own, entry)
        journal.unlink()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkspaceError(
            f"a command was interrupted and cannot be rolled back ({error}): inspect {PRIVATE}/{JOURNAL}"
        ) from error
    _remove_leftovers(own)
    return [entry["path"] for entry in entries]


def _save_originals(own: Path, changes: Sequence[FileChange]) -> None:
    """Write the old contents, then the journal that refers to them, with fsync in this order."""
    undo = own / UNDO
    undo.mkdir(exist_ok=True)
    entries: list[dict[str, Any]] = []
    for number, change in enumerate(changes):
        if change.before is not None:
            _write(undo / str(number), change.before)
        entries.append(
            {
                "number": number,
                "path": change.path,
                "before": _digest(change.before),
                "after": _digest(change.after),
            }
        )
    _sync(undo)
    staged = own / f"{JOURNAL}.new"
    _write(staged, json.dumps({"files": entries}, indent=1).encode())
    staged.replace(own / JOURNAL)
    _sync(own)


def _stage(place: Path, change: FileChange) -> None:
    if change.after is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    staged = _staging_path(place)
    _write(staged, change.after)
    if change.before is not None:
        staged.chmod(place.stat().st_mode & 0o7777)


def _restore(root: Path, own: Path, entry: dict[str, Any]) -> None:
    place = resolve_inside(root, entry["path"])
    _staging_path(place).unlink(missing_ok=True)
    if _digest(read_content(place, entry["path"])) == entry["before"]:
        return
    if entry["before"] is None:
        place.unlink(missing_ok=True)
    else:
        staged = _staging_path(place)
        _write(staged, (own / UNDO / str(entry["number"])).read_bytes())
        if place.exists():
            staged.chmod(place.stat().st_mode & 0o7777)
        staged.replace(place)
    _sync(place.parent)


def _staging_path(place: Path) -> Path:
    return place.with_name(f".{place.name}{NEW}")


def _write(place: Path, content: bytes) -> None:
    with place.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(content: bytes | None) -> str | None:
    return None if content is None else hashlib.sha256(content).hexdigest()


def _remove_leftovers(own: Path) -> None:
    """Delete saved contents that no journal refers to."""
    with contextlib.suppress(OSError):
        (own / f"{JOURNAL}.new").unlink(missing_ok=True)
        for left in (own / UNDO).iterdir() if (own / UNDO).is_dir() else ():
            left.unlink()
