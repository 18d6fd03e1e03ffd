"""Detect changed source files, for `--reload` during development."""

from __future__ import annotations

import os
from pathlib import Path

#: Folders that are not part of the program.
LEFT_OUT = {"__pycache__", "node_modules", "site-packages"}
#: The most files that are checked; each check reads the mtime of every file.
MOST = 20_000


class Sources:
    """The Python files below a folder, with the mtimes of the last check."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._look()

    def changed(self) -> list[str]:
        """Files that were changed, created or removed since the last call."""
        now = self._look()
        before, self._seen = self._seen, now
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))

    def _look(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in LEFT_OUT and not name.startswith(".")]
            for name in files:
                if name.endswith(".py") and len(found) < MOST:
                    path = Path(folder) / name
                    try:
                        found[str(path)] = path.stat().st_mtime_ns
                    except OSError:  # removed meanwhile
                        continue
        return found
