"""What jobs leave: outputs by key, and files."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import IO, TYPE_CHECKING, cast

from backstay.errors import ConfigError, JobError
from backstay.job.flows import send
from backstay.job.run_model import Artifact
from backstay.server.http.problem import Refusal, not_found
from backstay.server.http.request import Call, Stream
from backstay.server.schemas.jobs import RunQuery
from backstay.server.schemas.workflows import ArtifactInfo, Artifacts
from backstay.server.workers.claims import stale
from backstay.workflow.api.artifacts import Artifacts as Shelf
from backstay.workflow.api.artifacts import checked_name

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Kept in memory up to this size while it comes in; larger ones go to a file.
IN_MEMORY = 1024 * 1024


def view(artifact: Artifact) -> ArtifactInfo:
    return ArtifactInfo(
        name=artifact.name, size=artifact.size, digest=artifact.digest, created_at=artifact.created // 1000
    )


async def list_artifacts(call: Call, query: RunQuery) -> Artifacts:
    """What a job left: text by key, and files."""
    server = call.server
    job = await server.runbook.find_job(call.path["workflow"], call.path["job"], query.run)
    outputs = await send(server.core, server.store.get_outputs(job.id))
    files = await send(server.core, server.store.list_artifacts(job.id))
    return Artifacts(outputs=outputs, files=[view(one) for one in files])


async def get_artifact(call: Call, query: RunQuery) -> Stream:
    """A file that a job left."""
    server = call.server
    job = await server.runbook.find_job(call.path["workflow"], call.path["job"], query.run)
    name = call.path["name"]
    found = next(
        (one for one in await send(server.core, server.store.list_artifacts(job.id)) if one.name == name), None
    )
    if found is None:
        raise not_found(f"artifact of job {call.path['job'][:100]!r}", name)

    pieces = _shelf(server).read(found)
    try:
        first = await anext(pieces, b"")  # before the answer begins: there may be none
    except ConfigError:
        raise Refusal(
            404, f"{name[:200]!r} lies in a directory; start this server with --artifacts, as its workers"
        ) from None

    # Never shown by a browser as a page of this server's: it is somebody's file.
    headers = {
        b"content-length": b"%d" % found.size,
        b"content-disposition": b"attachment",
        b"content-security-policy": b"sandbox; default-src 'none'",
        b"etag": f'"{found.digest}"'.encode(),
    }
    return Stream(_from(first, pieces), media_type=b"application/octet-stream", headers=headers)


async def put_artifact(call: Call, body: bytes) -> ArtifactInfo:  # noqa: ARG001 - read as it comes
    """Leave a file with a job, by the worker that holds its lease. One of the same name is replaced."""
    server = call.server
    lease = call.path["lease"]
    job, fence, _ = server.claims.parts(lease)
    await server.claims.held(lease)
    name = checked_name(call.path["name"])
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as spool:
        async for piece in call.chunks(server.settings.max_artifact):
            spool.write(piece)
        spool.seek(0)
        try:
            artifact = await _shelf(server).put(job, fence, name, cast("IO[bytes]", spool))
        except JobError:
            raise stale(lease) from None
    artifact = next(
        (one for one in await send(server.core, server.store.list_artifacts(job)) if one.name == name), artifact
    )
    return view(artifact)


def _shelf(server: Server) -> Shelf:
    return Shelf(server.core, directory=server.settings.artifacts or None, limit=server.settings.max_artifact)


async def _from(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece
