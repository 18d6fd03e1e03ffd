"""Routes of artifacts: a job's outputs by key, and its files."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import IO, TYPE_CHECKING, cast

from backstay.errors import ConfigError, JobError
from backstay.job.flows import send
from backstay.job.run_model import Artifact
from backstay.server.http.problem import Refusal, not_found
from backstay.server.http.request import Request
from backstay.server.http.response import Stream
from backstay.server.routes.leases import find_lease
from backstay.server.schemas.jobs import RunQuery
from backstay.server.schemas.workflows import ArtifactInfo, Artifacts
from backstay.server.workers.lease_names import stale_lease
from backstay.workflow.api.artifacts import JobArtifacts, validate_artifact_name

if TYPE_CHECKING:
    from backstay.server.app import Server

#: Uploads up to this size are buffered in memory; larger ones in a temporary file.
IN_MEMORY = 1024 * 1024


def artifact_info(artifact: Artifact) -> ArtifactInfo:
    return ArtifactInfo(
        name=artifact.name, size=artifact.size, digest=artifact.digest, created_at=artifact.created // 1000
    )


async def list_artifacts(request: Request, query: RunQuery) -> Artifacts:
    """List a job's artifacts: its outputs by key, and its files."""
    server = request.server
    job = await server.run_lookup.find_job(request.path["workflow"], request.path["job"], query.run)
    outputs = await send(server.core, server.store.get_outputs(job.id))
    files = await send(server.core, server.store.list_artifacts(job.id))
    return Artifacts(outputs=outputs, files=[artifact_info(one) for one in files])


async def get_artifact(request: Request, query: RunQuery) -> Stream:
    """Download a file of a job."""
    server = request.server
    job = await server.run_lookup.find_job(request.path["workflow"], request.path["job"], query.run)
    name = request.path["name"]
    found = next(
        (one for one in await send(server.core, server.store.list_artifacts(job.id)) if one.name == name), None
    )
    if found is None:
        raise not_found(f"artifact of job {request.path['job'][:100]!r}", name)

    pieces = _job_artifacts(server).read(found)
    try:
        first = await anext(pieces, b"")  # read before the response starts, so an error can set the status
    except ConfigError:
        raise Refusal(
            404, f"{name[:200]!r} is stored in a directory; start this server with the --artifacts of its workers"
        ) from None

    # The file is untrusted: a browser must never render it with this server's origin (XSS).
    headers = {
        b"content-length": b"%d" % found.size,
        b"content-disposition": b"attachment",
        b"content-security-policy": b"sandbox; default-src 'none'",
        b"etag": f'"{found.digest}"'.encode(),
    }
    return Stream(_prepend(first, pieces), media_type=b"application/octet-stream", headers=headers)


async def put_artifact(request: Request, body: bytes) -> ArtifactInfo:  # noqa: ARG001 - the handler reads the body itself
    """Upload a file of a job, under the job's current lease. It replaces a file of the same name."""
    server = request.server
    lease = await find_lease(request)
    await server.claims.get_lease(lease)
    job = lease.job
    name = validate_artifact_name(request.path["name"])
    with tempfile.SpooledTemporaryFile(max_size=IN_MEMORY) as spool:
        async for piece in request.chunks(server.settings.max_artifact):
            spool.write(piece)
        size = spool.tell()
        spool.seek(0)
        async with server.artifact_quota.storing(job, name, size):
            try:
                artifact = await _job_artifacts(server).put(job, lease.fence, name, cast("IO[bytes]", spool))
            except JobError:
                raise stale_lease(lease.name) from None
    artifact = next(
        (one for one in await send(server.core, server.store.list_artifacts(job)) if one.name == name), artifact
    )
    return artifact_info(artifact)


def _job_artifacts(server: Server) -> JobArtifacts:
    return JobArtifacts(server.core, directory=server.settings.artifacts or None, limit=server.settings.max_artifact)


async def _prepend(first: bytes, rest: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(rest):
        yield first
        async for piece in rest:
            yield piece
