"""What runs are made from, and who may use a server."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Micros, Op, StoreOperation, Wake
from backstay.job.run_model import Definition, TokenRecord
from backstay.job.stores.postgres.rows import Part, whole
from backstay.job.stores.postgres.statements import readable, storable
from backstay.job.stores.postgres.verbs import Verbs


class Definitions(Verbs):
    """put_definition, get_definition, list_definitions."""

    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Op[Definition]:
        mine = {"space": self.namespace, "workflow": storable(workflow), "digest": storable(digest), "version": 0}

        def talk(now: Micros | None, _: list[Wake]) -> Part:
            while True:  # until nobody else has stored another one in between
                yield whole(("put_definition", {**mine, "doc": doc, "now": now}))
                (rows,) = yield whole(("get_definition", mine))
                if rows and rows[0][2] == mine["digest"]:
                    return _definition(rows[0])

        return StoreOperation(talk)

    def get_definition(self, workflow: str, version: int = 0) -> Op[Definition | None]:
        values = {"workflow": storable(workflow), "version": version}
        return self.one("get_definition", values, lambda rows: _definition(rows[0]) if rows else None, reads=True)

    def list_definitions(self, *, after: str = "", limit: int = 100) -> Op[list[Definition]]:
        def answer(rows: list[Any]) -> list[Definition]:
            return [
                _definition((workflow, version, digest, b"", created)) for workflow, version, digest, created in rows
            ]

        return self.one("list_definitions", {"after": storable(after), "limit": limit}, answer, reads=True)


class Tokens(Verbs):
    """put_token, drop_token, tokens, put_secret."""

    def put_token(self, token: TokenRecord) -> Op[None]:
        values = {
            "id": storable(token.id),
            "digest": token.digest,
            "role": storable(token.role),
            "name": storable(token.name),
            "owner": storable(token.owner),
            "created": token.created,
            "expires": token.expires,
        }
        return self.one("put_token", values)

    def drop_token(self, token: str) -> Op[bool]:
        return self.one("drop_token", {"id": storable(token)}, bool)

    def tokens(self) -> Op[list[TokenRecord]]:
        def answer(rows: list[Any]) -> list[TokenRecord]:
            return [
                TokenRecord(
                    id=readable(id_),
                    digest=digest,
                    role=readable(role),
                    name=readable(name),
                    owner=readable(owner),
                    created=created,
                    expires=expires,
                )
                for id_, digest, role, name, owner, created, expires in rows
            ]

        return self.one("tokens", {}, answer, reads=True)

    def put_secret(self, name: str, value: bytes) -> Op[bytes]:
        return self.one("put_secret", {"name": storable(name), "value": value}, lambda rows: bytes(rows[0][0]))


def _definition(row: Any) -> Definition:
    workflow, version, digest, doc, created = row
    return Definition(workflow=readable(workflow), version=version, digest=readable(digest), doc=doc, created=created)
