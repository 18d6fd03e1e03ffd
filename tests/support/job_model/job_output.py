"""Data that jobs of the model store: log lines, outputs and artifacts."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay.engine.base import Micros
from backstay.errors import ConfigError
from backstay.job.model import LogLine
from backstay.job.run_model import Artifact
from support.job_model.row import File, Row
from support.job_model.transitions import Transitions, verb


class JobOutput(Transitions):
    """The operations on logs, outputs and artifacts."""

    @verb
    def append_log(self, job: str, fence: int, lines: Sequence[tuple[Micros, str, str]], first: int) -> bool:
        row = self._writer(job, fence)
        if row is None:
            return False
        for seq, line in enumerate(lines, first):
            row.log.setdefault(seq, LogLine(seq, *line))
        return True

    @verb
    def read_log(self, job: str, after: int = 0, limit: int = 1000) -> list[LogLine]:
        log = self._rows[job].log if job in self._rows else {}
        return [log[seq] for seq in sorted(log) if seq > after][:limit]

    @verb
    def put_outputs(self, job: str, fence: int, outputs: dict[str, str]) -> bool:
        row = self._writer(job, fence)
        if row is None:
            return False
        row.outputs |= outputs
        return True

    @verb
    def get_outputs(self, job: str) -> dict[str, str]:
        return dict(self._rows[job].outputs) if job in self._rows else {}

    @verb
    def put_artifact(self, artifact: Artifact, fence: int, part: int, data: bytes, *, last: bool) -> bool:
        row = self._writer(artifact.job, fence)
        if row is None:
            return False
        whole = row.files.get(artifact.name)
        if whole and whole.artifact.digest == artifact.digest:
            return True
        upload = artifact.name, artifact.digest
        parts = row.uploads.setdefault(upload, [])
        if part > len(parts):
            raise ConfigError(f"part {part} of {artifact.name} comes before part {len(parts)}; send them in order")
        if part == len(parts):
            parts.append(data)
        if last:
            row.files[artifact.name] = File(msgspec.structs.replace(artifact, created=self.now), parts)
            row.uploads = {key: parts for key, parts in row.uploads.items() if key[0] != artifact.name}
        return True

    def _writer(self, job: str, fence: int) -> Row | None:
        return self._leased(job, fence) if fence else self._rows.get(job)

    @verb
    def list_artifacts(self, job: str) -> list[Artifact]:
        files = self._rows[job].files if job in self._rows else {}
        return [files[name].artifact for name in sorted(files)]

    @verb
    def read_artifact(self, job: str, name: str, part: int) -> bytes | None:
        file = self._rows[job].files.get(name) if job in self._rows else None
        return file.parts[part] if file and 0 <= part < len(file.parts) else None
