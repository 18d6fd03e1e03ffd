"""Files of commands over HTTP: what a job leaves is sent, and what those before it left is fetched."""

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
from backstay.workflow.api.artifacts import LARGEST, checked_name, files_below
from backstay.workflow.command import variables

#: Sends a file under its name.
Put = Callable[[str, bytes], Awaitable[Any]]


async def leave(directory: Path, put: Put, say: Callable[[str], None]) -> None:
    """Every file below a directory. Raises PayloadTooLarge, and what `put` raises."""
    for name, path in files_below(directory, lambda name, why: say(f"{name} is left out: {why}")):
        await put(name, await asyncio.to_thread(_content, name, path))


def _content(name: str, path: Path) -> bytes:
    with open(path, "rb", opener=_unfollowed) as file:  # a link may have taken its place
        raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise PayloadTooLarge(type=name, what="artifact", size=len(raw), limit=LARGEST)
    return raw


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


async def fetch(client: Client, job: dict[str, Any], before: Iterable[str], directory: Path) -> None:
    """Files of the jobs before, each job's in a directory of its own. Raises CorruptRecord."""
    for key in before:
        theirs = f"/api/workflows/{segment(job['workflow_id'])}/jobs/{segment(key)}/artifacts"
        run = f"?run={segment(job['run_id'])}"
        for one in msgspec.json.decode(await client.get(theirs + run))["files"]:
            raw = await client.get(f"{theirs}/{segment(one['name'])}{run}")
            if hashlib.sha256(raw).hexdigest() != one["digest"]:
                raise CorruptRecord(f"artifact {one['name']!r} of {key!r} is not what was stored")
            target = directory / variables.variable(key) / checked_name(one["name"])
            target.parent.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(target.write_bytes, raw)
