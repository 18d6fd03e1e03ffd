"""Workers as they tell of themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from backstay.engine.base import Op
from backstay.job.model import WorkerRecord
from backstay.job.stores.postgres.verbs import Verbs

_encode = msgspec.msgpack.Encoder().encode
_worker = msgspec.msgpack.Decoder(WorkerRecord)


class Workers(Verbs):
    """heartbeat, unregister_worker, workers."""

    def heartbeat(self, worker: WorkerRecord) -> Op[None]:
        return self.one("heartbeat", {"id": worker.id, "doc": _encode(worker)})

    def unregister_worker(self, worker: str) -> Op[None]:
        return self.one("unregister_worker", {"id": worker})

    def workers(self) -> Op[list[WorkerRecord]]:
        def answer(rows: list[Any]) -> list[WorkerRecord]:
            return [
                msgspec.structs.replace(_worker.decode(doc), registered=registered, beat=beat)
                for doc, registered, beat in rows
            ]

        return self.one("workers", {}, answer, reads=True)
