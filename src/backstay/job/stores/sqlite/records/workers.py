"""The registry of workers: who they are, as they told, and when they were last heard of."""

from __future__ import annotations

import msgspec

from backstay.job.model import Worker
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.pruner import WORKER_LIFE
from backstay.job.stores.sqlite.statements import load

WORKERS = load("workers")
_decode = msgspec.msgpack.Decoder(Worker).decode


def beat(changes: Changes, worker: str, doc: bytes) -> None:
    changes.db.execute(WORKERS["beat"], (changes.space, worker, changes.now, changes.now, doc))


def leave(changes: Changes, worker: str) -> None:
    changes.db.execute(WORKERS["leave"], (changes.space, worker))


def workers(changes: Changes) -> list[Worker]:
    rows = changes.db.execute(WORKERS["workers"], (changes.space, changes.now - WORKER_LIFE)).fetchall()
    return [msgspec.structs.replace(_decode(doc), registered=registered, beat=heard) for registered, heard, doc in rows]
