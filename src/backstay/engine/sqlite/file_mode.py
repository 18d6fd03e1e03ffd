"""Create the files of a SQLite database with a mode of their own, whatever the umask: the database holds tokens and
payloads, and a user who can lock its files can stall all writers.

SQLite gives `-wal` and `-shm` the mode of the database file. Backstay does the same for `-queue`.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from backstay.errors import EngineUnavailable

#: The mode of a new file: only its user may read and write it.
PRIVATE = 0o600


def create_database(path: str, mode: int) -> None:
    """Create an empty database file with this mode. An existing file keeps its mode. If the file cannot be created,
    nothing happens: SQLite reports the cause when it opens the file.

    The file is created under another name and then linked to its own. If it were opened under its own name, another
    thread could have it open through SQLite already, and closing a descriptor releases all POSIX locks that the process
    has on the file: other processes would take it for unused and delete its `-wal`.
    """
    with suppress(OSError):
        target = Path(os.path.realpath(path))
        if target.exists():
            return
        fd, unlinked = tempfile.mkstemp(prefix=f"{target.name}-", dir=target.parent)
        try:
            try:
                os.fchmod(fd, mode)  # the umask may have removed bits
            finally:
                os.close(fd)
            os.link(unlinked, target)
        finally:
            Path(unlinked).unlink()


def open_beside(database: str, suffix: str) -> int:
    """Open a file beside the database, and create it with the mode and the owner of the database file. Returns its
    descriptor. Raises EngineUnavailable.
    """
    path = f"{database}{suffix}"
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        found = Path(database).stat()
        try:
            fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, found.st_mode & 0o666)
        except FileExistsError:
            return os.open(path, flags | os.O_CREAT, found.st_mode & 0o666)
        os.fchmod(fd, found.st_mode & 0o666)
        if os.geteuid() == 0:  # as SQLite does: the user to whom the database belongs must be able to open it
            os.fchown(fd, found.st_uid, found.st_gid)
    except PermissionError as error:
        raise EngineUnavailable(
            f"{path}: permission denied for user {os.geteuid()}; it needs the owner, group and mode of {database}"
            " (for users of one group: ?file_mode=660)"
        ) from error
    except OSError as error:
        raise EngineUnavailable(f"{path} cannot be opened: {error.strerror}") from error
    return fd


def parse_mode(text: str) -> int | None:
    """Parse an octal file mode, as in "660"; None if it is invalid. The user's own bits must be read and write."""
    try:
        mode = int(text, 8)
    except ValueError:
        return None
    return mode if mode & ~0o666 == 0 and mode & PRIVATE == PRIVATE else None
