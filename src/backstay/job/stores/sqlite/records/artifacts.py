"""Files that jobs leave: they come in parts, and are there for others with the last one."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.run_model import Artifact
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import HAS_FILES
from backstay.job.stores.sqlite.records.logs import LOG, find
from backstay.job.stores.sqlite.statements import load

ARTIFACT = load("artifact")


def put(changes: Changes, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> bool:
    """Another digest is another file: it begins anew, and takes the place of the one that is there with its end."""
    db, name = changes.db, artifact.name
    job = find(changes, artifact.job, fence)
    if job is None:
        return False
    there = db.execute(ARTIFACT["there"], (job, name)).fetchone()
    if there is not None and there[1] == artifact.digest:
        return True
    coming: dict[str, tuple[int, int]] = {
        digest: (num, parts) for num, digest, parts in db.execute(ARTIFACT["coming"], (job, name))
    }
    file, parts = coming.pop(artifact.digest, (0, 0))
    if not 0 <= part <= parts:
        raise ConfigError(f"part {part} of {name!r} comes before part {parts}: send them in order")
    if not file:
        db.execute(LOG["flag"], (HAS_FILES, job))
        (file,) = db.execute(ARTIFACT["begin"], (job, name, artifact.digest)).fetchone()
    if part == parts:
        db.execute(ARTIFACT["part"], (file, part, data))
        db.execute(ARTIFACT["came"], (file,))
    if last:
        for num in [num for num, _ in coming.values()] + ([there[0]] if there is not None else []):
            drop(changes, num)
        db.execute(ARTIFACT["whole"], (artifact.size, changes.now, file))
    return True


def drop(changes: Changes, num: int) -> None:
    changes.db.execute(ARTIFACT["drop_parts"], (num,))
    changes.db.execute(ARTIFACT["drop"], (num,))


def of_job(changes: Changes, job: str) -> list[Artifact]:
    num = find(changes, job)
    return [
        Artifact(job=job, name=name, size=size, digest=digest, created=created)
        for name, size, digest, created in changes.db.execute(ARTIFACT["list"], (num,))
    ]


def read(changes: Changes, job: str, name: str, part: int) -> bytes | None:
    found: tuple[bytes] | None = changes.db.execute(ARTIFACT["read"], (find(changes, job), name, part)).fetchone()
    return None if found is None else found[0]
