"""Detect changed source files, for `--reload` during development."""

from __future__ import annotations

import os
from pathlib import Path

#: Folders whose files are ignored.
EXCLUDED = {"__pycache__", "node_modules", "site-packages"}
#: The largest number of files that are watched. Each check reads the mtime of every file.
MOST_FILES = 20_000


class SourceWatcher:
    """Detects changes of the Python files below a folder by their mtimes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen = self._read_mtimes()

    def find_changes(self) -> list[str]:
        """Return the files that were changed, created or removed since the last call."""
        now = self._read_mtimes()
        before, self._seen = self._seen, now
        return sorted(path for path in before.keys() | now.keys() if before.get(path) != now.get(path))

    def _read_mtimes(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for folder, folders, files in os.walk(self._folder):
            folders[:] = [name for name in folders if name not in EXCLUDED and not name.startswith(".")]
            for name in files:
                if name.endswith(".py") and len(found) < MOST_FILES:
                    path = Path(folder) / name
                    try:
                        found[str(path)] = path.stat().st_mtime_ns
                    except OSError:  # removed since os.walk listed it
                        continue
        return found
