"""Log lines, outputs and artifacts of jobs. Only the worker that holds a job's lease may write them."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

import msgspec

from backstay.engine.base import Micros, Op
from backstay.engine.redis.encoder import Procedure
from backstay.errors import ConfigError
from backstay.job.model import LogLine
from backstay.job.run_model import Artifact
from backstay.job.stores.redis.calls import group_pairs
from backstay.job.stores.redis.cross_shard import CrossShard

_FILE = Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode
_lines = msgspec.msgpack.Decoder(tuple[Micros, str, str])
_files = msgspec.msgpack.Decoder(tuple[int, str])


class Artifacts(CrossShard):
    """The store operations on logs, outputs and artifacts."""

    # ── logs and outputs ──

    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> Op[bool]:
        head = [job.encode(), str(fence).encode(), str(first).encode()]
        return self._write_if_leased(job, "append_log", [*head, *map(_encode, lines)])

    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> Op[bool]:
        values = [part.encode() for pair in outputs.items() for part in pair]
        return self._write_if_leased(job, "put_outputs", [job.encode(), str(fence).encode(), *values])

    def _write_if_leased(self, job: str, verb: str, parts: list[bytes]) -> Op[bool]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            return shard >= 0 and (yield from self._call(verb, shard, clock, *parts)) == 1

        return self._operation(max(shard, 0), requests)

    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> Op[list[LogLine]]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return []
            arguments = (job.encode(), str(after).encode(), str(limit).encode())
            found: list[LogLine] = []
            for chunk in (yield from self._call("read_log", shard, clock, *arguments)):
                seq, _, line = chunk.partition(b" ")
                found.append(LogLine(int(seq), *_lines.decode(line)))
            return found

        return self._operation(max(shard, 0), requests, reads=True)

    def get_outputs(self, job: str) -> Op[dict[str, str]]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return {}
            found = yield from self._call("get_outputs", shard, clock, job.encode())
            return {name.decode(): value.decode() for name, value in group_pairs(found)}

        return self._operation(max(shard, 0), requests, reads=True)

    # ── artifacts ──

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        shard = self._shard_of(artifact.job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return False
            about = _encode((artifact.size, artifact.digest))
            head = (artifact.job.encode(), str(fence).encode(), artifact.name.encode(), str(part).encode())
            arguments = (*head, b"1" if last else b"0", about, data)
            stored = yield from self._call("put_artifact", shard, clock, *arguments)
            if stored < 0:
                raise ConfigError(
                    f"part {part} of {artifact.name!r} arrived before part {-stored - 1}: send parts in order, from"
                    " part 0"
                )
            return bool(stored)

        return self._operation(max(shard, 0), requests)

    def list_artifacts(self, job: str) -> Op[list[Artifact]]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0:
                return []
            found: list[Artifact] = []
            for name, about in group_pairs((yield from self._call("list_artifacts", shard, clock, job.encode()))):
                if name[:1] == b"=":
                    (created,) = _FILE.unpack_from(about)
                    size, digest = _files.decode(about[_FILE.size :])
                    found.append(Artifact(job=job, name=name[1:].decode(), size=size, digest=digest, created=created))
            return sorted(found, key=lambda artifact: artifact.name)

        return self._operation(max(shard, 0), requests, reads=True)

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        shard = self._shard_of(job)

        def requests(clock: bytes) -> Procedure:
            if shard < 0 or part < 0:
                return None
            arguments = (job.encode(), name.encode(), str(part).encode())
            return (yield from self._call("read_artifact", shard, clock, *arguments))

        return self._operation(max(shard, 0), requests, reads=True)
