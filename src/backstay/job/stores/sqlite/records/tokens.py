"""Access tokens of the server, stored as hashes only, and the namespace's own secrets."""

from __future__ import annotations

from backstay.job.run_model import TokenRecord
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.statements import load

TOKEN = load("token")


def put(changes: Changes, token: TokenRecord) -> None:
    changes.db.execute(
        TOKEN["put"],
        (
            changes.space,
            token.id,
            token.digest,
            token.role,
            token.name,
            token.owner,
            token.created or changes.now,
            token.expires,
        ),
    )


def drop(changes: Changes, token: str) -> bool:
    return changes.db.execute(TOKEN["drop"], (changes.space, token)).rowcount > 0


def tokens(changes: Changes) -> list[TokenRecord]:
    return [
        TokenRecord(id=id_, digest=digest, role=role, name=name, owner=owner, created=created, expires=expires)
        for id_, digest, role, name, owner, created, expires in changes.db.execute(
            TOKEN["tokens"], (changes.space, changes.now)
        )
    ]


def put_secret(changes: Changes, name: str, value: bytes) -> bytes:
    changes.db.execute(TOKEN["put_secret"], (changes.space, name, value))
    (stored,) = changes.db.execute(TOKEN["secret"], (changes.space, name)).fetchone()
    return bytes(stored)
