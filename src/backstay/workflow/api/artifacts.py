"""Files that jobs leave: streamed in parts to the engine, or to a directory that all who need them share.

The engine always keeps the record (name, size, digest), under the lease of the job that left the file. With a
directory, the bytes lie there under their digest: no name is ever part of a path, and the same bytes are stored once.
Whoever reads gets what was left or an error: digests are verified.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from backstay.errors import ConfigError, CorruptRecord, JobError, PayloadTooLarge
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.run_model import Artifact
from backstay.runtime.core import Core

#: Files travel in parts of this size.
PART = 256 * 1024
#: One file at most, unless said otherwise.
LARGEST = 64 * 1024 * 1024
#: Bytes and parts of a name, as file systems have it.
LONGEST_NAME, LONGEST_PART = 512, 255
DIGEST = re.compile(r"[0-9a-f]{64}")


def checked_name(name: str) -> str:
    """A relative path of plain parts, as in "report/index.html". Raises ConfigError for what could lead elsewhere."""
    path = PurePosixPath(name)
    if not name or len(name.encode(errors="replace")) > LONGEST_NAME:
        raise ConfigError(f"an artifact's name has 1 to {LONGEST_NAME} bytes")
    if not name.isprintable() or "\\" in name or ":" in name:
        raise ConfigError(f"an artifact's name has no control characters, backslashes or colons; got {name[:80]!r}")
    if path.is_absolute() or str(path) != name or name == "." or ".." in path.parts:
        raise ConfigError(f"an artifact's name is a relative path without . and .., as in report.html; got {name!r}")
    if any(len(part.encode(errors="replace")) > LONGEST_PART for part in path.parts):
        raise ConfigError(f"the parts of an artifact's name have at most {LONGEST_PART} bytes")
    return name


class Artifacts:
    """The files of all jobs. directory: where their bytes lie, instead of in the engine."""

    def __init__(self, core: Core, *, directory: Path | str | None = None, limit: int = LARGEST) -> None:
        self._core = core
        self._store = store_of(core)
        self._directory = Path(directory) if directory is not None else None
        self._limit = limit

    async def put(self, job: str, fence: int, name: str, file: IO[bytes]) -> Artifact:
        """Leave a file with a job; one of the same name is replaced. Raises JobError when the lease is gone,
        PayloadTooLarge, ConfigError.
        """
        checked_name(name)
        size, digest = await asyncio.to_thread(_measure, file, self._limit)
        if size > self._limit:
            raise PayloadTooLarge(type=name, what="artifact", size=size, limit=self._limit, job_id=job)
        artifact = Artifact(job=job, name=name, size=size, digest=digest)
        if self._directory is not None:
            await asyncio.to_thread(_shelve, file, self._directory, digest)
            await self._send(artifact, fence, 0, b"", last=True)
            return artifact
        again = hashlib.sha256()
        count = max(1, -(-size // PART))
        for part in range(count):
            data = await asyncio.to_thread(file.read, min(PART, size - part * PART))
            again.update(data)
            last = part == count - 1
            if last and again.hexdigest() != digest:
                raise ConfigError(f"{name!r} changed while it was stored; leave it alone until the job has ended")
            await self._send(artifact, fence, part, data, last=last)
        return artifact

    async def _send(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> None:
        if not await send(self._core, self._store.put_artifact(artifact, fence, part, data, last=last)):
            raise JobError(f"{artifact.name!r} was not stored: its job is somebody else's by now", job_id=artifact.job)

    async def list(self, job: str) -> list[Artifact]:
        """What a job left, by name."""
        return await send(self._core, self._store.list_artifacts(job))

    async def find(self, job: str, name: str) -> Artifact | None:
        return next((one for one in await self.list(job) if one.name == name), None)

    async def read(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """The bytes of a file, in parts. Raises CorruptRecord, at its end, when they are not what was left."""
        digest, size = hashlib.sha256(), 0
        async with aclosing(self._parts(artifact)) as parts:
            async for part in parts:
                digest.update(part)
                size += len(part)
                yield part
        if size != artifact.size or digest.hexdigest() != artifact.digest:
            raise CorruptRecord(
                f"artifact {artifact.name!r} of {artifact.job} is not what was stored: {size} of {artifact.size} bytes"
            )

    async def fetch(self, artifact: Artifact, target: Path) -> None:
        """Write a file to a path. It appears there whole and verified, or not at all."""
        beside = target.with_name(f".{secrets.token_hex(8)}")
        try:
            with beside.open("xb") as file:
                async with aclosing(self.read(artifact)) as parts:
                    async for part in parts:
                        await asyncio.to_thread(file.write, part)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    async def _parts(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        part, (job, name) = 0, (artifact.job, artifact.name)
        # An empty part: there is nothing in it, or its bytes lie elsewhere.
        while data := await send(self._core, self._store.read_artifact(job, name, part)):
            yield data
            part += 1
        if part or not artifact.size:
            return
        if self._directory is None:
            raise ConfigError(f"{artifact.name!r} lies in a directory of artifacts, and none is named here")
        path = _place(self._directory, artifact.digest)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError as error:
            raise CorruptRecord(f"artifact {artifact.name!r} of {artifact.job} is gone: {error.strerror}") from error
        with file:
            while data := await asyncio.to_thread(file.read, PART):
                yield data


def _measure(file: IO[bytes], limit: int) -> tuple[int, str]:
    """Size and digest; not further than the limit. The file stands at its beginning afterwards."""
    digest, size = hashlib.sha256(), 0
    while size <= limit and (data := file.read(PART)):
        digest.update(data)
        size += len(data)
    file.seek(0)
    return size, digest.hexdigest()


def _place(directory: Path, digest: str) -> Path:
    if not DIGEST.fullmatch(digest):
        raise CorruptRecord(f"{digest[:80]!r} is no digest of an artifact")
    return directory / digest[:2] / digest


def _shelve(file: IO[bytes], directory: Path, digest: str) -> None:
    """Put a file under its digest. It appears there whole; whoever else has put it there has put the same."""
    place = _place(directory, digest)
    if place.exists():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = place.with_name(f".{secrets.token_hex(8)}")
    again = hashlib.sha256()
    try:
        with beside.open("xb") as target:
            while data := file.read(PART):
                again.update(data)
                target.write(data)
            target.flush()
            os.fsync(target.fileno())
        if again.hexdigest() != digest:
            raise ConfigError("a file changed while it was stored; leave it alone until the job has ended")
        beside.replace(place)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def files_below(directory: Path, refuse: Callable[[str, str], None]) -> list[tuple[str, Path]]:
    """Every file below a directory with its name, in order. What is neither file nor directory is refused: a link may
    lead anywhere.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(directory, followlinks=False):
        here = Path(folder)
        for entry in sorted((*folders, *files)):
            path = here / entry
            name = path.relative_to(directory).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                refuse(name, "it is neither a file nor a directory")
            elif path.is_file():
                try:
                    found.append((checked_name(name), path))
                except ConfigError as error:
                    refuse(name, str(error))
    return sorted(found)
