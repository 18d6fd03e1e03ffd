"""What a Redis store keeps beside jobs and runs: definitions and tokens (in the first shard), and files of jobs."""

from __future__ import annotations

from struct import Struct

import msgspec

from backstay.engine.base import Op
from backstay.engine.redis.encoder import Talk
from backstay.errors import ConfigError
from backstay.job.run_model import Artifact, Definition, TokenRecord
from backstay.job.stores.redis.calls import flat
from backstay.job.stores.redis.queries import Looking

_NEWEST = Struct(">QQ")
_VERSION = Struct(">QH")
_TOKEN = Struct(">QQ")
_FILE = Struct(">Q")
_encode = msgspec.msgpack.Encoder().encode
_tokens = msgspec.msgpack.Decoder(TokenRecord)
_files = msgspec.msgpack.Decoder(tuple[int, str])


class Kept(Looking):
    """The verbs of what runs are made from, and of what a server keeps."""

    # ── definitions ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        def talk(clock: bytes) -> Talk:
            newest = yield from self._call("put_definition", 0, clock, workflow.encode(), digest.encode(), doc)
            version, created = _NEWEST.unpack_from(newest)
            return Definition(workflow=workflow, version=version, digest=digest, doc=doc, created=created)

        return self._within(0, talk)

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        def talk(clock: bytes) -> Talk:
            words = (workflow.encode(), str(version).encode())
            found, raw = yield from self._call("get_definition", 0, clock, *words)
            if raw is None:
                return None
            created, size = _VERSION.unpack_from(raw)
            stop = _VERSION.size + size
            digest = raw[_VERSION.size : stop].decode()
            return Definition(workflow=workflow, version=found, digest=digest, doc=raw[stop:], created=created)

        return self._within(0, talk, reads=True)

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        def talk(clock: bytes) -> Talk:
            found: list[Definition] = []
            words = (after.encode(), str(limit).encode())
            for name, newest in flat((yield from self._call("list_definitions", 0, clock, *words))):
                version, created = _NEWEST.unpack_from(newest)
                digest = newest[_NEWEST.size :].decode()
                found.append(
                    Definition(workflow=name.decode(), version=version, digest=digest, doc=b"", created=created)
                )
            return found

        return self._within(0, talk, reads=True)

    # ── files ──

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        shard = self._shard_of(artifact.job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return False
            about = _encode((artifact.size, artifact.digest))
            head = (artifact.job.encode(), str(fence).encode(), artifact.name.encode(), str(part).encode())
            words = (*head, b"1" if last else b"0", about, data)
            said = yield from self._call("put_artifact", shard, clock, *words)
            if said < 0:
                raise ConfigError(
                    f"part {part} of {artifact.name!r} cannot be stored: {-said - 1} parts of it are there, and they"
                    " come in order; begin again with part 0"
                )
            return bool(said)

        return self._within(max(shard, 0), talk)

    def list_artifacts(self, job: str) -> Op[list[Artifact]]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0:
                return []
            found: list[Artifact] = []
            for name, about in flat((yield from self._call("list_artifacts", shard, clock, job.encode()))):
                if name[:1] == b"=":
                    (created,) = _FILE.unpack_from(about)
                    size, digest = _files.decode(about[_FILE.size :])
                    found.append(Artifact(job=job, name=name[1:].decode(), size=size, digest=digest, created=created))
            return sorted(found, key=lambda artifact: artifact.name)

        return self._within(max(shard, 0), talk, reads=True)

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        shard = self._shard_of(job)

        def talk(clock: bytes) -> Talk:
            if shard < 0 or part < 0:
                return None
            words = (job.encode(), name.encode(), str(part).encode())
            return (yield from self._call("read_artifact", shard, clock, *words))

        return self._within(max(shard, 0), talk, reads=True)

    # ── tokens ──

    def put_token(self, token: TokenRecord) -> Op[None]:
        def talk(clock: bytes) -> Talk:
            words = (token.id.encode(), str(token.expires).encode(), _encode(token))
            yield from self._call("put_token", 0, clock, *words)

        return self._within(0, talk)

    def drop_token(self, token: str) -> Op[bool]:
        def talk(clock: bytes) -> Talk:
            return (yield from self._call("drop_token", 0, clock, token.encode())) == 1

        return self._within(0, talk)

    def tokens(self) -> Op[list[TokenRecord]]:
        def talk(clock: bytes) -> Talk:
            found: list[TokenRecord] = []
            for raw in (yield from self._call("tokens", 0, clock)):
                created, _ = _TOKEN.unpack_from(raw)
                token = _tokens.decode(raw[_TOKEN.size :])
                found.append(msgspec.structs.replace(token, created=token.created or created))
            return sorted(found, key=lambda token: token.id)

        return self._within(0, talk, reads=True)
