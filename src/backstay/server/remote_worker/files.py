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
from backstay.server.remote_worker.client import Client, segment
from backstay.workflow.api.artifacts import LARGEST, list_files, validate_artifact_name
from backstay.workflow.command import variables

#: Uploads a file under a name.
Put = Callable[[str, bytes], Awaitable[Any]]


async def upload(directory: Path, put: Put, log_line: Callable[[str], None]) -> None:
    """Upload every file below a directory; `log_line` reports skipped ones. Raises PayloadTooLarge, and what `put`
    raises.
    """
    for name, path in list_files(directory, lambda name, why: log_line(f"{name} is left out: {why}")):
        await put(name, await asyncio.to_thread(_content, name, path))


def _content(name: str, path: Path) -> bytes:
    with open(path, "rb", opener=_open_no_follow) as file:  # the file may have been replaced by a symlink
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise PayloadTooLarge(type=name, what="artifact", size=len(raw), limit=LARGEST)
    return raw


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


async def download(client: Client, job: dict[str, Any], before: Iterable[str], directory: Path) -> None:
    """Download the artifacts of the needed jobs, each job's into its own directory. Raises CorruptRecord."""
    for key in before:
        theirs = f"/api/workflows/{segment(job['workflow_id'])}/jobs/{segment(key)}/artifacts"
        run = f"?run={segment(job['run_id'])}"
        for one in msgspec.json.decode(await client.get(theirs + run))["files"]:
            raw = await client.get(f"{theirs}/{segment(one['name'])}{run}")
            if hashlib.sha256(raw).hexdigest() != one["digest"]:
                raise CorruptRecord(f"artifact {one['name']!r} of {key!r} is not what was stored")
            target = directory / variables.variable_name(key) / validate_artifact_name(one["name"])
            target.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(target.write_bytes, raw)
