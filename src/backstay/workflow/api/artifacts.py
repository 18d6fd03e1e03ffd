"""Artifacts: files that jobs produce, stored in parts in the engine, or in a shared directory.

The engine always stores the record of an artifact (name, size, digest), and accepts it only from the holder of the
job's lease. If there is a shared directory, the bytes are stored there in files named by their digest: the artifact's
name is never part of a path (no path traversal), and equal contents are stored once. Reads verify the digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import secrets
import stat
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from pathlib import Path, PurePosixPath
from typing import IO

from backstay.errors import ConfigError, CorruptRecord, EngineUnavailable, JobError, PayloadTooLarge
from backstay.job.flows import send
from backstay.job.run_model import Artifact
from backstay.job.store import JOB_STORE
from backstay.runtime.core import Core

#: Bytes of one part of an artifact that is stored in the engine.
PART = 256 * 1024
#: Default limit of bytes per file.
LARGEST = 64 * 1024 * 1024
#: Limits of an artifact's name, in bytes: of the whole name, and of each part of it between slashes. Workers create
#: files with these names, and file systems have such limits.
LONGEST_NAME, LONGEST_PART = 512, 255
DIGEST = re.compile(r"[0-9a-f]{64}")


def validate_artifact_name(name: str) -> str:
    """Return the name if it is a plain relative path like "report/index.html". Raises ConfigError for other
    names, which could lead out of the target directory (path traversal).
    """
    path = PurePosixPath(name)
    if not name or len(name.encode(errors="replace")) > LONGEST_NAME:
        raise ConfigError(f"an artifact's name must have 1 to {LONGEST_NAME} bytes")
    if not name.isprintable() or "\\" in name or ":" in name:
        raise ConfigError(
            f"an artifact's name must not contain control characters, backslashes or colons; got {name[:80]!r}"
        )
    if path.is_absolute() or str(path) != name or name == "." or ".." in path.parts:
        raise ConfigError(
            f"an artifact's name must be a relative path without . and .., as in report.html; got {name!r}"
        )
    if any(len(part.encode(errors="replace")) > LONGEST_PART for part in path.parts):
        raise ConfigError(f"each part of an artifact's name may have at most {LONGEST_PART} bytes")
    return name


class JobArtifacts:
    """Stores and reads artifacts of jobs. directory: where the bytes are stored; None: in the engine."""

    def __init__(self, core: Core, *, directory: Path | str | None = None, limit: int = LARGEST) -> None:
        self._core = core
        self._store = core.services.get(JOB_STORE)
        self._directory = Path(directory) if directory is not None else None
        self._limit = limit

    async def put(self, job: str, fence: int, name: str, file: IO[bytes]) -> Artifact:
        """Store a file as an artifact of a job, replacing an artifact of the same name. Raises JobError when the job's
        lease is lost, PayloadTooLarge, ConfigError.
        """
        validate_artifact_name(name)
        size, digest = await asyncio.to_thread(_hash_file, file, self._limit)
        if size > self._limit:
            raise PayloadTooLarge(type=name, what="artifact", size=size, limit=self._limit, job_id=job)
        artifact = Artifact(job=job, name=name, size=size, digest=digest)
        if self._directory is not None:
            try:
                await asyncio.to_thread(_store_by_digest, file, self._directory, digest)
            except OSError as error:
                raise EngineUnavailable(
                    f"artifact {name!r} was not stored: {self._directory}: {error.strerror}; server and workers of"
                    " different users need a directory whose group may write (chmod 2770)"
                ) from error
            await self._put_part(artifact, fence, 0, b"", last=True)
            return artifact
        again = hashlib.sha256()
        count = max(1, -(-size // PART))
        for part in range(count):
            data = await asyncio.to_thread(file.read, min(PART, size - part * PART))
            again.update(data)
            last = part == count - 1
            if last and again.hexdigest() != digest:
                raise ConfigError(f"{name!r} changed while it was stored; do not write to it until the job has ended")
            await self._put_part(artifact, fence, part, data, last=last)
        return artifact

    async def _put_part(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> None:
        if not await send(self._core, self._store.put_artifact(artifact, fence, part, data, last=last)):
            raise JobError(
                f"artifact {artifact.name!r} was not stored: this attempt lost the lease of its job",
                job_id=artifact.job,
            )

    async def list(self, job: str) -> list[Artifact]:
        """List the artifacts of a job, by name."""
        return await send(self._core, self._store.list_artifacts(job))

    async def find(self, job: str, name: str) -> Artifact | None:
        return next((one for one in await self.list(job) if one.name == name), None)

    async def read(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of an artifact in parts. Raises CorruptRecord at the end if size or digest does not match."""
        digest, size = hashlib.sha256(), 0
        async with aclosing(self._read_parts(artifact)) as parts:
            async for part in parts:
                digest.update(part)
                size += len(part)
                yield part
        if size != artifact.size or digest.hexdigest() != artifact.digest:
            raise CorruptRecord(
                f"artifact {artifact.name!r} of {artifact.job} is not what was stored: {size} of {artifact.size} bytes"
            )

    async def fetch(self, artifact: Artifact, target: Path) -> None:
        """Write an artifact to a path, atomically: the file appears complete and verified, or not at all."""
        beside = target.with_name(f".{secrets.token_hex(8)}")
        try:
            with beside.open("xb") as file:
                async with aclosing(self.read(artifact)) as parts:
                    async for part in parts:
                        await asyncio.to_thread(file.write, part)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)

    async def _read_parts(self, artifact: Artifact) -> AsyncGenerator[bytes, None]:
        part, (job, name) = 0, (artifact.job, artifact.name)
        # No part in the engine: the artifact is empty, or its bytes are in the directory.
        while data := await send(self._core, self._store.read_artifact(job, name, part)):
            yield data
            part += 1
        if part or not artifact.size:
            return
        if self._directory is None:
            raise ConfigError(
                f"artifact {artifact.name!r} is stored in an artifacts directory, but no directory is configured here"
            )
        path = _digest_path(self._directory, artifact.digest)
        try:
            file = await asyncio.to_thread(path.open, "rb")
        except OSError as error:
            raise CorruptRecord(
                f"artifact {artifact.name!r} of {artifact.job} cannot be opened: {error.strerror}"
            ) from error
        with file:
            while data := await asyncio.to_thread(file.read, PART):
                yield data


def _hash_file(file: IO[bytes], limit: int) -> tuple[int, str]:
    """Return the file's size in bytes and its SHA-256, and rewind the file. Reading stops as soon as the size exceeds
    `limit`; then both values are those of the part that was read.
    """
    digest, size = hashlib.sha256(), 0
    while size <= limit and (data := file.read(PART)):
        digest.update(data)
        size += len(data)
    file.seek(0)
    return size, digest.hexdigest()


def _digest_path(directory: Path, digest: str) -> Path:
    if not DIGEST.fullmatch(digest):
        raise CorruptRecord(f"{digest[:80]!r} is not a digest of an artifact")
    return directory / digest[:2] / digest


def _store_by_digest(file: IO[bytes], directory: Path, digest: str) -> None:
    """Store a file under its digest, atomically. Concurrent writers of the same digest write the same bytes."""
    place = _digest_path(directory, digest)
    if place.exists():
        return
    group = _make_directory(place.parent, directory)
    beside = place.with_name(f".{secrets.token_hex(8)}")
    again = hashlib.sha256()
    try:
        with open(beside, "xb", opener=_open_private) as target:
            if group:
                os.fchmod(target.fileno(), 0o660)
            while data := file.read(PART):
                again.update(data)
                target.write(data)
            target.flush()
            os.fsync(target.fileno())
        if again.hexdigest() != digest:
            raise ConfigError("a file changed while it was stored; do not write to it until the job has ended")
        beside.replace(place)
    finally:
        with suppress(OSError):
            beside.unlink(missing_ok=True)


def _make_directory(folder: Path, directory: Path) -> bool:
    """Create the artifacts directory and a folder in it, for this user only. If the directory exists and its group may
    write to it, as for a server and workers of different users, the group gets access to what is created in it. Returns
    whether it does.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    group = bool(directory.stat().st_mode & stat.S_IWGRP)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        if group:
            folder.chmod(stat.S_IMODE(folder.stat().st_mode) | 0o770)  # the folder may have inherited the setgid bit
    return group


def _open_private(path: str, flags: int) -> int:
    """Open a new file that only this user can read."""
    return os.open(path, flags, 0o600)


def list_files(directory: Path, refuse: Callable[[str, str], None]) -> list[tuple[str, Path]]:
    """List all files below a directory with their names, sorted. A symbolic link is left out,
    because it may lead out of the directory, and so are special files and invalid names: for each of them,
    `refuse(name, reason)` is called.
    """
    found: list[tuple[str, Path]] = []
    for folder, folders, files in os.walk(directory, followlinks=False):
        here = Path(folder)
        for entry in sorted((*folders, *files)):
            path = here / entry
            name = path.relative_to(directory).as_posix()
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                refuse(name, "it is neither a regular file nor a directory")
            elif path.is_file():
                try:
                    found.append((validate_artifact_name(name), path))
                except ConfigError as error:
                    refuse(name, str(error))
    return sorted(found)
