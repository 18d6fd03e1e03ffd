"""Records of the model that do not belong to a job: workers, cron ticks, workflow definitions, tokens."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from backstay.engine.base import Micros
from backstay.job.model import Tick, WorkerRecord
from backstay.job.run_model import Definition, TokenRecord
from support.job_model.transitions import Transitions, verb

DAY: Micros = 86_400_000_000


class Registry(Transitions):
    """The operations on records that are found by their name alone."""

    def __init__(self, prefix: str = "model") -> None:
        super().__init__(prefix)
        self._workers: dict[str, WorkerRecord] = {}
        self._ticks: dict[str, Micros] = {}
        self._definitions: dict[str, list[Definition]] = {}
        self._tokens: dict[str, TokenRecord] = {}
        self._secrets: dict[str, bytes] = {}

    @verb
    def heartbeat(self, worker: WorkerRecord) -> None:
        known = self._workers.get(worker.id)
        registered = known.registered if known else self.now
        self._workers[worker.id] = msgspec.structs.replace(worker, registered=registered, beat=self.now)

    @verb
    def unregister_worker(self, worker: str) -> None:
        self._workers.pop(worker, None)

    @verb
    def workers(self) -> list[WorkerRecord]:
        recent = [worker for worker in self._workers.values() if worker.beat > self.now - DAY]
        return sorted(recent, key=lambda worker: worker.id)

    @verb
    def ticks(self, names: Sequence[str]) -> dict[str, Micros]:
        known = {name: self._ticks[name] for name in names if name in self._ticks}
        self._ticks |= {name: self.now for name in names if name not in known}
        return known

    @verb
    def tick(self, tick: Tick) -> bool:
        if self._ticks.get(tick.name, -1) >= tick.at:
            return False
        self._ticks[tick.name] = tick.at
        self._enqueue(tick.job)
        return True

    @verb
    def put_definition(self, workflow: str, digest: str, doc: bytes) -> Definition:
        versions = self._definitions.setdefault(workflow, [])
        if not versions or versions[-1].digest != digest:
            new = len(versions) + 1
            versions.append(Definition(workflow=workflow, version=new, digest=digest, doc=doc, created=self.now))
        return versions[-1]

    @verb
    def get_definition(self, workflow: str, version: int = 0) -> Definition | None:
        versions = self._definitions.get(workflow, [])
        return next((one for one in reversed(versions) if version in (0, one.version)), None)

    @verb
    def list_definitions(self, *, after: str = "", limit: int = 100) -> list[Definition]:
        names = sorted(name for name in self._definitions if name > after)[:limit]
        return [msgspec.structs.replace(self._definitions[name][-1], doc=b"") for name in names]

    @verb
    def put_token(self, token: TokenRecord) -> None:
        self._tokens[token.id] = msgspec.structs.replace(token, created=token.created or self.now)

    @verb
    def drop_token(self, token: str) -> bool:
        return self._tokens.pop(token, None) is not None

    @verb
    def tokens(self) -> list[TokenRecord]:
        return [self._tokens[id_] for id_ in sorted(self._tokens) if not 0 < self._tokens[id_].expires <= self.now]

    @verb
    def put_secret(self, name: str, value: bytes) -> bytes:
        return self._secrets.setdefault(name, value)
