"""Artifacts of command jobs over HTTP: uploads a job's files, and downloads those of the jobs that it needs."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from backstay.errors import CorruptRecord, PayloadTooLarge
from backstay.server.remote_worker.client import ServerClient, encode_segment
from backstay.workflow.api.artifacts import LARGEST, list_files, validate_artifact_name
from backstay.workflow.command import variables

#: A function that uploads one file: `put(name, content)`.
Put = Callable[[str, bytes], Awaitable[Any]]


async def upload(directory: Path, put: Put, log_line: Callable[[str], None]) -> None:
    """Upload every file below a directory, and write a line to the job's log for each file that is skipped. Raises
    PayloadTooLarge, and what `put` raises.
    """
    for name, path in list_files(directory, lambda name, why: log_line(f"skipping {name}: {why}")):
        await put(name, await asyncio.to_thread(_read_content, name, path))


def _read_content(name: str, path: Path) -> bytes:
    with open(path, "rb", opener=_open_no_follow) as file:  # a symlink may have replaced it
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise PayloadTooLarge(type=name, what="artifact", size=len(raw), limit=LARGEST)
    return raw


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


async def download(client: ServerClient, job: dict[str, Any], before: Iterable[str], directory: Path) -> None:
    """Download the artifacts of other jobs of the same run for `job`. `before`: the names of these jobs. The files of
    each go to a subdirectory of `directory`. Raises CorruptRecord when a file does not match its hash.
    """
    for key in before:
        theirs = f"/api/workflows/{encode_segment(job['workflow_id'])}/jobs/{encode_segment(key)}/artifacts"
        run = f"?run={encode_segment(job['run_id'])}"
        for one in msgspec.json.decode(await client.get(theirs + run))["files"]:
            raw = await client.get(f"{theirs}/{encode_segment(one['name'])}{run}")
            if hashlib.sha256(raw).hexdigest() != one["digest"]:
                raise CorruptRecord(f"artifact {one['name']!r} of {key!r} is damaged: its SHA-256 does not match")
            target = directory / variables.variable_name(key) / validate_artifact_name(one["name"])
            target.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(target.write_bytes, raw)
