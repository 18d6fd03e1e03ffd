"""The registry of workers: the description that each worker sends, and the time of its last heartbeat."""

from __future__ import annotations

import msgspec

from backstay.job.model import WorkerRecord
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.pruner import WORKER_LIFE
from backstay.job.stores.sqlite.statements import load

WORKERS = load("workers")
_decode = msgspec.msgpack.Decoder(WorkerRecord).decode


def heartbeat(changes: Changes, worker: str, doc: bytes) -> None:
    changes.db.execute(WORKERS["heartbeat"], (changes.space, worker, changes.now, changes.now, doc))


def unregister(changes: Changes, worker: str) -> None:
    changes.db.execute(WORKERS["unregister"], (changes.space, worker))


def workers(changes: Changes) -> list[WorkerRecord]:
    rows = changes.db.execute(WORKERS["workers"], (changes.space, changes.now - WORKER_LIFE)).fetchall()
    return [msgspec.structs.replace(_decode(doc), registered=registered, beat=beat) for registered, beat, doc in rows]
