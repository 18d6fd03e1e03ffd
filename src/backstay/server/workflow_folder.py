"""Stores the workflow files of a directory, at start and whenever a file changes. An invalid file is not stored: its
errors are logged with line numbers, and the workflow's newest stored version stays current.
"""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

from backstay.errors import BadDefinition, ConfigError
from backstay.runtime.core import Core
from backstay.runtime.loop import Loop
from backstay.workflow import flows
from backstay.workflow.document.nodes import LARGEST
from backstay.workflow.document.yaml import read

log = logging.getLogger("backstay.server")

SUFFIXES = (".yml", ".yaml", ".json")
#: Seconds between scans.
SCAN_SECONDS = 1.0
#: Recorded instead of mtime and size for a file that cannot be read.
UNKNOWN = (-1, -1)


class WorkflowFolder:
    """Stores the workflows of changed files at each `scan()`. Files whose names begin with a dot are ignored."""

    def __init__(self, core: Core, path: str | Path) -> None:
        self._core = core
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigError(f"there is no workflow directory {str(path)!r}; create it, or leave out --workflows")
        self._seen: dict[Path, tuple[int, int]] = {}

    def loop(self) -> Loop:
        return Loop(self.scan, name="workflows", every=SCAN_SECONDS, telemetry=self._core.telemetry)

    async def scan(self) -> None:
        """Store the workflows of all files that changed since the last scan. `loop()` calls it every second."""
        found: dict[Path, tuple[int, int]] = {}
        for file in sorted(self.path.iterdir()):
            if file.suffix not in SUFFIXES or file.name.startswith("."):
                continue
            try:
                status = file.stat()
            except OSError as error:  # for example a dangling symlink
                if isinstance(error, FileNotFoundError) and not file.is_symlink():
                    continue  # deleted since the directory was listed
                found[file] = UNKNOWN
                if self._seen.get(file) != UNKNOWN:
                    log.error("%s cannot be read: %s", file, error.strerror)  # noqa: TRY400 - a traceback adds nothing
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            found[file] = (status.st_mtime_ns, status.st_size)
            if self._seen.get(file) != found[file]:
                await self._store(file, status.st_size)
        self._seen = found

    async def _store(self, file: Path, size: int) -> None:
        if size > LARGEST:
            log.error("%s has %d bytes; a workflow may have at most %d; nothing was stored", file, size, LARGEST)
            return
        try:
            raw = await asyncio.to_thread(file.read_bytes)
            workflow = await asyncio.to_thread(read, raw, name=file.stem, source=str(file))
        except BadDefinition as error:
            log.error("%s", error)  # noqa: TRY400 - the message has line numbers
            return
        except OSError as error:
            log.error("%s cannot be read: %s", file, error.strerror)  # noqa: TRY400 - a traceback adds nothing
            return
        stored = await flows.put(self._core, workflow)
        log.info("stored workflow %s, version %d, from %s", stored.workflow, stored.version, file)
