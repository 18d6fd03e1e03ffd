"""Versioned workflow definitions. A document becomes a new version unless it equals the newest one."""

from __future__ import annotations

from backstay.job.run_model import Definition
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.statements import load

DEFINITION = load("definition")


def put(changes: Changes, workflow: str, digest: str, doc: bytes) -> Definition:
    db, space, now = changes.db, changes.space, changes.now
    newest = db.execute(DEFINITION["newest"], (space, workflow)).fetchone()
    version = 1
    if newest is not None:
        if newest[1] == digest:
            return Definition(workflow=workflow, version=newest[0], digest=digest, created=newest[2], doc=newest[3])
        version = newest[0] + 1
        db.execute(DEFINITION["unset_newest"], (newest[4],))
    db.execute(DEFINITION["put"], (space, workflow, version, digest, now, doc))
    return Definition(workflow=workflow, version=version, digest=digest, created=now, doc=doc)


def get(changes: Changes, workflow: str, version: int) -> Definition | None:
    if version:
        row = changes.db.execute(DEFINITION["version"], (changes.space, workflow, version)).fetchone()
    else:
        row = changes.db.execute(DEFINITION["newest"], (changes.space, workflow)).fetchone()
    if row is None:
        return None
    return Definition(workflow=workflow, version=row[0], digest=row[1], created=row[2], doc=row[3])


def list_newest(changes: Changes, after: str, limit: int) -> list[Definition]:
    return [
        Definition(workflow=workflow, version=version, digest=digest, created=created, doc=b"")
        for workflow, version, digest, created in changes.db.execute(DEFINITION["list"], (changes.space, after, limit))
    ]
