"""A register: the resource that a lock protects in tests. Competing processes write to it while they hold the lock.

It is one small file per lock name, changed under `flock`. Every write carries the lease's fence, and the register
rejects a fence that is lower than the last accepted one, as a store that uses fences should.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Entry:
    """The last accepted write, and the number of accepted writes."""

    fence: int = 0
    owner: str = ""
    count: int = 0


class Register:
    """A register guarded by fences. `write` returns whether the write was accepted; `read` returns the last entry."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / (hashlib.sha256(name.encode()).hexdigest()[:16] + ".register")

    def read(self) -> Entry:
        return self._with_file(None)[0]

    def write(self, fence: int, owner: str) -> bool:
        return self._with_file((fence, owner))[1]

    def _with_file(self, wish: tuple[int, str] | None) -> tuple[Entry, bool]:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            raw = os.pread(fd, 4096, 0)
            entry = Entry(*json.loads(raw)) if raw else Entry()
            if wish is None or wish[0] < entry.fence:
                return entry, False
            new = json.dumps([wish[0], wish[1], entry.count + 1]).ljust(max(len(raw), 128)).encode()
            os.pwrite(fd, new, 0)
            return entry, True
        finally:
            os.close(fd)
