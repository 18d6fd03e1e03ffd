"""Workflow definitions and access tokens, stored in the first shard."""

from __future__ import annotations

from struct import Struct

import msgspec

from backstay.engine.base import Op
from backstay.engine.redis.encoder import Procedure
from backstay.job.run_model import Definition, TokenRecord
from backstay.job.stores.redis.calls import group_pairs
from backstay.job.stores.redis.cross_shard import CrossShard

_NEWEST = Struct(">QQ")
_VERSION = Struct(">QH")
_TOKEN = Struct(">QQ")
_encode = msgspec.msgpack.Encoder().encode
_tokens = msgspec.msgpack.Decoder(TokenRecord)


class Definitions(CrossShard):
    """The store operations on workflow definitions and access tokens."""

    # ── definitions ──

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        def requests(clock: bytes) -> Procedure:
            newest = yield from self._call("put_definition", 0, clock, workflow.encode(), digest.encode(), doc)
            version, created = _NEWEST.unpack_from(newest)
            return Definition(workflow=workflow, version=version, digest=digest, doc=doc, created=created)

        return self._operation(0, requests)

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        def requests(clock: bytes) -> Procedure:
            arguments = (workflow.encode(), str(version).encode())
            found, raw = yield from self._call("get_definition", 0, clock, *arguments)
            if raw is None:
                return None
            created, size = _VERSION.unpack_from(raw)
            stop = _VERSION.size + size
            digest = raw[_VERSION.size : stop].decode()
            return Definition(workflow=workflow, version=found, digest=digest, doc=raw[stop:], created=created)

        return self._operation(0, requests, reads=True)

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        def requests(clock: bytes) -> Procedure:
            found: list[Definition] = []
            arguments = (after.encode(), str(limit).encode())
            for name, newest in group_pairs((yield from self._call("list_definitions", 0, clock, *arguments))):
                version, created = _NEWEST.unpack_from(newest)
                digest = newest[_NEWEST.size :].decode()
                found.append(
                    Definition(workflow=name.decode(), version=version, digest=digest, doc=b"", created=created)
                )
            return found

        return self._operation(0, requests, reads=True)

    # ── tokens ──

    def put_token(self, token: TokenRecord) -> Op[None]:
        def requests(clock: bytes) -> Procedure:
            arguments = (token.id.encode(), str(token.expires).encode(), _encode(token))
            yield from self._call("put_token", 0, clock, *arguments)

        return self._operation(0, requests)

    def drop_token(self, token: str) -> Op[bool]:
        def requests(clock: bytes) -> Procedure:
            return (yield from self._call("drop_token", 0, clock, token.encode())) == 1

        return self._operation(0, requests)

    def tokens(self) -> Op[list[TokenRecord]]:
        def requests(clock: bytes) -> Procedure:
            found: list[TokenRecord] = []
            for raw in (yield from self._call("tokens", 0, clock)):
                created, _ = _TOKEN.unpack_from(raw)
                token = _tokens.decode(raw[_TOKEN.size :])
                found.append(msgspec.structs.replace(token, created=token.created or created))
            return sorted(found, key=lambda token: token.id)

        return self._operation(0, requests, reads=True)

    def put_secret(self, name: str, value: bytes) -> Op[bytes]:
        def requests(clock: bytes) -> Procedure:
            return bytes((yield from self._call("put_secret", 0, clock, name.encode(), value)))

        return self._operation(0, requests)
