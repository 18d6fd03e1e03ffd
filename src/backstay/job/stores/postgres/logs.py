"""What jobs leave behind: logs and outputs."""

from __future__ import annotations

from collections.abc import Sequence

from backstay.engine.base import Micros, Op
from backstay.job.model import LogLine
from backstay.job.stores.postgres.statements import Bytes, Numbers, Texts, readable, storable
from backstay.job.stores.postgres.verbs import Verbs


class Logs(Verbs):
    """append_log, read_log, put_outputs, get_outputs."""

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        ats, streams, datas = zip(*lines, strict=True) if lines else ((), (), ())
        values = {
            "job": job,
            "fence": fence,
            "seqs": Numbers(range(first, first + len(lines))),
            "ats": Numbers(ats),
            "streams": Texts(streams),
            "datas": Bytes([data.encode() for data in datas]),
        }
        return self.one("append_log", values, lambda rows: rows[0][0])

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]:
        values = {"job": job, "after": after, "limit": limit}
        return self.one(
            "read_log",
            values,
            lambda rows: [LogLine(seq, at, stream, data.decode()) for seq, at, stream, data in rows],
            reads=True,
        )

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        values = {
            "job": job,
            "fence": fence,
            "keys": Texts([storable(key) for key in outputs]),
            "vals": Bytes([v.encode() for v in outputs.values()]),
        }
        return self.one("put_outputs", values, lambda rows: rows[0][0])

    def get_outputs(self, job: str) -> Op[dict[str, str]]:
        return self.one(
            "get_outputs", {"job": job}, lambda rows: {readable(key): value.decode() for key, value in rows}, reads=True
        )
