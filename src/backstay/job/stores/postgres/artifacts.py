"""Artifacts of jobs, stored in parts; an artifact is visible once its last part is stored."""

from __future__ import annotations

from typing import Any

from backstay.engine.base import Op
from backstay.errors import ConfigError
from backstay.job.run_model import Artifact
from backstay.job.stores.postgres.ending import Ends
from backstay.job.stores.postgres.rows import Part, ask, inside
from backstay.job.stores.postgres.statements import readable, storable
from backstay.job.stores.postgres.verbs import Verbs


class Artifacts(Verbs):
    """put_artifact, list_artifacts, read_artifact."""

    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> Op[bool]:
        def work(ends: Ends) -> Part:
            mine: dict[str, Any] = {
                "space": self.namespace,
                "job": storable(artifact.job),
                "name": storable(artifact.name),
                "digest": storable(artifact.digest),
                "size": artifact.size,
                "now": ends.now,
            }
            rows = yield from ask("artifact_may", {**mine, "fence": fence})
            if not rows:
                return False
            _, held = yield inside(("artifact_begin", mine), ("artifact_hold", mine))
            ((parts, whole),) = held
            if whole:
                return True
            if part > parts:
                raise ConfigError(f"part {part} of {artifact.name!r} comes before part {parts}: send them in order")
            statements: list[tuple[str, dict[str, Any]]] = []
            if part == parts:
                statements.append(("artifact_part", {**mine, "part": part, "data": data}))
            if last:
                statements.append(("artifact_end", mine))
            if statements:
                yield inside(*statements)
            return True

        return self.act(work)

    def list_artifacts(self, job: str) -> Op[list[Artifact]]:
        def answer(rows: list[Any]) -> list[Artifact]:
            return [
                Artifact(job=job, name=readable(name), size=size, digest=readable(digest), created=created)
                for _, name, size, digest, created in rows
            ]

        return self.one("list_artifacts", {"job": storable(job)}, answer, reads=True)

    def read_artifact(self, job: str, name: str, part: int) -> Op[bytes | None]:
        values = {"job": storable(job), "name": storable(name), "part": part}
        return self.one("read_artifact", values, lambda rows: rows[0][0] if rows else None, reads=True)
