"""Artifacts of jobs, uploaded in parts. An artifact is visible once its last part is stored."""

from __future__ import annotations

from backstay.errors import ConfigError
from backstay.job.run_model import Artifact
from backstay.job.stores.sqlite.changes import Changes
from backstay.job.stores.sqlite.columns import HAS_FILES
from backstay.job.stores.sqlite.records.logs import LOG, find
from backstay.job.stores.sqlite.statements import load

ARTIFACT = load("artifact")


def put(changes: Changes, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> bool:
    """Store one part of an artifact. Each part comes with the digest of the whole artifact, so parts with different
    digests belong to different uploads. The last part of an upload makes it the visible artifact of its name. It also
    deletes the artifact that was visible before and all unfinished uploads of that name. Returns False if the lease is
    not current.
    """
    db, name = changes.db, artifact.name
    job = find(changes, artifact.job, fence)
    if job is None:
        return False
    there = db.execute(ARTIFACT["visible"], (job, name)).fetchone()
    if there is not None and there[1] == artifact.digest:
        return True
    coming: dict[str, tuple[int, int]] = {
        digest: (num, parts) for num, digest, parts in db.execute(ARTIFACT["uploads"], (job, name))
    }
    file, parts = coming.pop(artifact.digest, (0, 0))
    if not 0 <= part <= parts:
        raise ConfigError(f"part {part} of {name!r} arrived before part {parts}: send parts in order")
    if not file:
        db.execute(LOG["set_flag"], (HAS_FILES, job))
        (file,) = db.execute(ARTIFACT["begin"], (job, name, artifact.digest)).fetchone()
    if part == parts:
        db.execute(ARTIFACT["add_part"], (file, part, data))
        db.execute(ARTIFACT["count_part"], (file,))
    if last:
        for num in [num for num, _ in coming.values()] + ([there[0]] if there is not None else []):
            drop(changes, num)
        db.execute(ARTIFACT["publish"], (artifact.size, changes.now, file))
    return True


def drop(changes: Changes, num: int) -> None:
    changes.db.execute(ARTIFACT["drop_parts"], (num,))
    changes.db.execute(ARTIFACT["drop"], (num,))


def list_artifacts(changes: Changes, job: str) -> list[Artifact]:
    num = find(changes, job)
    return [
        Artifact(job=job, name=name, size=size, digest=digest, created=created)
        for name, size, digest, created in changes.db.execute(ARTIFACT["list"], (num,))
    ]


def read(changes: Changes, job: str, name: str, part: int) -> bytes | None:
    found: tuple[bytes] | None = changes.db.execute(ARTIFACT["read"], (find(changes, job), name, part)).fetchone()
    return None if found is None else found[0]
