"""The document of a run: its inputs, and the keys, names and dependencies of its initial jobs. Stored in `Run.doc`."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import DECODE_ERRORS
from backstay.errors import CorruptRecord


class RunJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job that the run was started with. Jobs added later have no such entry; their key is in `Meta.key`."""

    #: Unique in the run, as in "build" or "test (3.11)".
    key: str
    #: The id of the job's chain (the job and the jobs that continue it). It is the id of the chain's first job.
    id: str
    #: Display name.
    name: str = ""
    #: The job's id in the workflow definition: "test" for the job with the key "test (3.11)".
    job: str = ""
    #: Keys of the jobs that this job waits for.
    needs: tuple[str, ...] = ()
    type: str = ""
    #: The script, for a command job.
    command: str = ""
    labels: tuple[str, ...] = ()
    #: The text of the job's condition (`if`); "" means `success()`.
    condition: str = ""
    soft: bool = False
    retries: int = 0
    matrix: dict[str, Any] = {}
    #: True if an internal job comes first in this job's chain: it evaluates the condition or expands the map.
    decided: bool = False


class RunDoc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document of a run, encoded as msgpack."""

    workflow: str
    inputs: dict[str, Any] = {}
    jobs: tuple[RunJob, ...] = ()
    #: What started the run: "manual", "api", "cron", …
    trigger: str = "manual"
    #: `on` and `title` of the definition.
    on: tuple[str, ...] = ()
    title: str = ""

    def find(self, key: str) -> RunJob | None:
        return next((job for job in self.jobs if job.key == key), None)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunDoc).decode


def pack_doc(doc: RunDoc) -> bytes:
    return _encode(doc)


def pack_job(job: RunJob) -> bytes:
    """Encode one job as it stands in the document."""
    return _encode(job)


def unpack_doc(raw: bytes) -> RunDoc:
    """Decode the document of a run; empty bytes give an empty document. Raises CorruptRecord."""
    if not raw:
        return RunDoc(workflow="")
    try:
        return _decode(raw)
    except DECODE_ERRORS as error:
        raise CorruptRecord(f"the document of a run cannot be decoded: {error}") from error
