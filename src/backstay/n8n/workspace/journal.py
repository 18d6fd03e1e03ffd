"""Writes several files as one: all of them change, or none, also when we are killed in between.

The old contents are set aside, a journal says what is under way, the new contents are written beside their places and
renamed into them, the journal goes. Who finds a journal undoes what it tells of: its command never said that it was
done. A file that somebody else has changed meanwhile is left alone, and named.
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
from backstay.n8n.workspace.files import PRIVATE, Change, content_of, inside

#: How long to wait for another command. Only one that talks to a slow n8n takes nearly as long.
PATIENCE = 20.0
LOOK_AGAIN = 0.02

LOCK = "lock"
JOURNAL = "journal.json"
UNDO = "undo"
NEW = ".backstay-new"
_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


@contextmanager
def alone(root: Path, *, patience: float = PATIENCE, looks: bool = False) -> Generator[list[str], None, None]:
    """One command at a time in a workspace. Yields what an interrupted one had begun and is undone now.

    Who only `looks` may do so where nothing can be written.
    """
    own = root / PRIVATE
    try:
        own.mkdir(parents=True, exist_ok=True)
        if not (own / ".gitignore").exists():
            (own / ".gitignore").write_text("*\n")
        handle = os.open(own / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    except OSError as error:
        if not looks or error.errno not in _READ_ONLY:
            raise WorkspaceError(f"{root} cannot be written: {error.strerror or error}") from error
        with _beside_others(root, patience):
            yield []
        return
    try:
        _wait(handle, root, patience, fcntl.LOCK_EX)
        yield recover(root)
    finally:
        os.close(handle)


@contextmanager
def _beside_others(root: Path, patience: float) -> Generator[None, None, None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # whoever may write could not begin without it either
            handle = os.open(root / PRIVATE / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            stack.callback(os.close, handle)
            _wait(handle, root, patience, fcntl.LOCK_SH)
        if is_pending(root):
            raise WorkspaceError(
                f"a command was interrupted in {root}, and it cannot be undone, because nothing can be written here"
            )
        yield


def _wait(handle: int, root: Path, patience: float, kind: int) -> None:
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise WorkspaceError(
                    f"another command works in {root}, and {patience:g} s were not enough; nothing was changed"
                ) from None
            time.sleep(LOOK_AGAIN)


def is_pending(root: Path) -> bool:
    """Whether a command was interrupted here and is not undone yet."""
    return (root / PRIVATE / JOURNAL).exists()


def commit(root: Path, changes: Sequence[Change]) -> None:
    """Only under `alone`. Raises WorkspaceError, and nothing is changed then."""
    for change in changes:
        if content_of(inside(root, change.path), change.path) != change.before:
            raise WorkspaceError(f"{change.path} was changed by somebody else meanwhile; nothing was changed")
    if not changes:
        return
    own = root / PRIVATE
    try:
        _set_aside(own, changes)
        for change in changes:
            _stage(inside(root, change.path), change)
        for change in changes:
            place = inside(root, change.path)
            if change.after is None:
                place.unlink()
            else:
                _beside(place).replace(place)
        for folder in {inside(root, change.path).parent for change in changes}:
            _sync(folder)
    except BaseException as error:
        recover(root)
        if isinstance(error, OSError):
            raise WorkspaceError(f"nothing was changed: {error.strerror or error} ({error.filename})") from error
        raise
    (own / JOURNAL).unlink()
    _tidy(own)


def recover(root: Path) -> list[str]:
    """Undo what an interrupted command had begun. Returns the files that it was about."""
    own = root / PRIVATE
    journal = own / JOURNAL
    if not journal.exists():
        _tidy(own)
        return []
    try:
        entries: list[dict[str, Any]] = json.loads(journal.read_text(encoding="utf-8"))["files"]
        for entry in entries:
            now = _digest(content_of(inside(root, entry["path"]), entry["path"]))
            if now not in (entry["before"], entry["after"]):
                raise WorkspaceError(
                    f"a command was interrupted here, and {entry['path']} was changed since: compare it with"
                    f" {PRIVATE}/{UNDO}/{entry['number']}, then delete {PRIVATE}/{JOURNAL}"
                )
        for entry in entries:
            _restore(root, own, entry)
        journal.unlink()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise WorkspaceError(
            f"a command was interrupted here and cannot be undone ({error}): look into {PRIVATE}/{JOURNAL}"
        ) from error
    _tidy(own)
    return [entry["path"] for entry in entries]


def _set_aside(own: Path, changes: Sequence[Change]) -> None:
    """The old contents, then the journal that speaks of them: in this order on the disk, too."""
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
    fresh = own / f"{JOURNAL}.new"
    _write(fresh, json.dumps({"files": entries}, indent=1).encode())
    fresh.replace(own / JOURNAL)
    _sync(own)


def _stage(place: Path, change: Change) -> None:
    if change.after is None:
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = _beside(place)
    _write(fresh, change.after)
    if change.before is not None:
        fresh.chmod(place.stat().st_mode & 0o7777)


def _restore(root: Path, own: Path, entry: dict[str, Any]) -> None:
    place = inside(root, entry["path"])
    _beside(place).unlink(missing_ok=True)
    if _digest(content_of(place, entry["path"])) == entry["before"]:
        return
    if entry["before"] is None:
        place.unlink(missing_ok=True)
    else:
        fresh = _beside(place)
        _write(fresh, (own / UNDO / str(entry["number"])).read_bytes())
        if place.exists():
            fresh.chmod(place.stat().st_mode & 0o7777)
        fresh.replace(place)
    _sync(place.parent)


def _beside(place: Path) -> Path:
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


def _tidy(own: Path) -> None:
    """What was set aside is not needed without a journal."""
    with contextlib.suppress(OSError):
        (own / f"{JOURNAL}.new").unlink(missing_ok=True)
        for left in (own / UNDO).iterdir() if (own / UNDO).is_dir() else ():
            left.unlink()
