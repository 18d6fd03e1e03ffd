"""A directory of workflows: each file is stored when the server starts and whenever it changes. A file that cannot be
read is told of, with its lines, and what was stored before goes on counting.
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
#: How often it is looked at.
LOOK = 1.0
#: In the place of time and size: a file of which nobody knows either.
UNKNOWN = (-1, -1)


class Folder:
    """One `look()` stores what has changed. Names that begin with a dot are left alone."""

    def __init__(self, core: Core, path: str | Path) -> None:
        self._core = core
        self.path = Path(path)
        if not self.path.is_dir():
            raise ConfigError(f"there is no directory {str(path)!r} with workflows; make it, or leave out --workflows")
        self._seen: dict[Path, tuple[int, int]] = {}

    def loop(self) -> Loop:
        return Loop(self.look, name="workflows", every=LOOK, telemetry=self._core.telemetry)

    async def look(self) -> None:
        """The tick of a `Loop`."""
        found: dict[Path, tuple[int, int]] = {}
        for file in sorted(self.path.iterdir()):
            if file.suffix not in SUFFIXES or file.name.startswith("."):
                continue
            try:
                status = file.stat()
            except OSError as error:  # a link that leads nowhere, perhaps
                if isinstance(error, FileNotFoundError) and not file.is_symlink():
                    continue  # deleted just now
                found[file] = UNKNOWN
                if self._seen.get(file) != UNKNOWN:
                    log.error("%s cannot be read: %s", file, error.strerror)  # noqa: TRY400 - it says all
                continue
            if not stat.S_ISREG(status.st_mode):
                continue
            found[file] = (status.st_mtime_ns, status.st_size)
            if self._seen.get(file) != found[file]:
                await self._store(file, status.st_size)
        self._seen = found

    async def _store(self, file: Path, size: int) -> None:
        if size > LARGEST:
            log.error("%s has %d bytes, and a workflow has at most %d; nothing was stored", file, size, LARGEST)
            return
        try:
            raw = await asyncio.to_thread(file.read_bytes)
            workflow = await asyncio.to_thread(read, raw, name=file.stem, source=str(file))
        except BadDefinition as error:
            log.error("%s", error)  # noqa: TRY400 - its own lines say where
            return
        except OSError as error:
            log.error("%s cannot be read: %s", file, error.strerror)  # noqa: TRY400 - the same
            return
        kept = await flows.put(self._core, workflow)
        log.info("workflow %s, version %d, from %s", kept.workflow, kept.version, file)
