"""What a run remembers beside its jobs: its inputs, and which job is which. Kept in the run's `doc`."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import UNREADABLE
from backstay.errors import CorruptRecord


class RunJob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A job of a run when it was started. What runs add later is known by `Meta.key`."""

    #: "build", "test (3.11)"; no two in a run.
    key: str
    #: Its chain: the id of its first job.
    id: str
    #: What people call it.
    name: str = ""
    #: Its id in the definition: "test" for "test (3.11)".
    job: str = ""
    #: Keys of those it waits for.
    needs: tuple[str, ...] = ()
    type: str = ""
    #: What it runs, for a command.
    command: str = ""
    labels: tuple[str, ...] = ()
    #: The text of its condition; "": after success.
    condition: str = ""
    soft: bool = False
    retries: int = 0
    matrix: dict[str, Any] = {}
    #: The first job of its chain is one of Backstay's own, which decides about it.
    decided: bool = False


class RunDoc(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Travels and is stored as msgpack."""

    workflow: str
    inputs: dict[str, Any] = {}
    jobs: tuple[RunJob, ...] = ()
    #: What started it: "manual", "api", "cron", …
    trigger: str = "manual"
    #: What the definition says of that, and what people call the workflow.
    on: tuple[str, ...] = ()
    title: str = ""

    def find(self, key: str) -> RunJob | None:
        return next((job for job in self.jobs if job.key == key), None)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RunDoc).decode


def pack_doc(doc: RunDoc) -> bytes:
    return _encode(doc)


def unpack_doc(raw: bytes) -> RunDoc:
    """Raises CorruptRecord."""
    if not raw:
        return RunDoc(workflow="")
    try:
        return _decode(raw)
    except UNREADABLE as error:
        raise CorruptRecord(f"what a run remembers cannot be read: {error}") from error
