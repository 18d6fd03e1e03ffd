"""What the jobs that one waited for came to, as expressions and commands see them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.model import Job
from backstay.job.view import plain
from backstay.runtime.core import Core
from backstay.workflow.expressions.expression import Need, Result, as_text
from backstay.workflow.run import unpack_doc

#: Jobs that are looked at, at most, to find out whether one before them failed.
MOST_LOOKS = 1000

_RESULTS: dict[str, Result] = {"completed": "success", "failed": "failure", "cancelled": "cancelled"}


def outputs_of(raw: bytes | None) -> dict[str, Any]:
    """Outputs by key: a result that is a mapping is its outputs; anything else is called `result`."""
    value: Any = plain(raw) if raw else None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {} if value is None else {"result": value}


def as_strings(outputs: Mapping[str, Any]) -> dict[str, str]:
    """The same as text: what travels over HTTP and into environments. What has parts is JSON."""
    return {str(key): as_text(value) for key, value in outputs.items()}


def merged(parts: Sequence[Need]) -> Need:
    """A matrix as one need: the outputs of the later ones win; its result is the worst of theirs."""
    outputs: dict[str, Any] = {}
    for part in parts:
        outputs.update(part.outputs)
    results = [part.result for part in parts]
    for worst in ("failure", "cancelled"):
        if worst in results:
            return Need(cast("Result", worst), outputs)
    return Need("skipped" if results and set(results) == {"skipped"} else "success", outputs)


async def needs_of(
    core: Core, run: str, needs: Mapping[str, Sequence[str]], upstream: Mapping[str, bytes | None]
) -> tuple[dict[str, Need], bool]:
    """By job of the definition; and whether one before it failed, however far away. Only those that did not complete
    are looked at in the store.
    """
    look = _Look(core, run)
    answer: dict[str, Need] = {}
    failed = False
    for job, chains in needs.items():
        parts: list[Need] = []
        for chain in chains:
            raw = upstream.get(chain)
            if raw is not None:
                parts.append(Need("success", outputs_of(raw)))
                continue
            last = await look.last(chain)
            result = await look.result(last)
            if result == "skipped" and last is not None:
                failed = failed or await look.failed_before(last)
            done = last is not None and last.state == "completed"
            parts.append(Need(result, outputs_of(last.result) if last is not None and done else {}))
        answer[job] = merged(parts)
    return answer, failed or any(need.result == "failure" for need in answer.values())


class _Look:
    """At jobs of a run that have ended, each once."""

    def __init__(self, core: Core, run: str) -> None:
        self._core = core
        self._run = run
        self._seen: dict[str, Job | None] = {}
        self._soft: frozenset[str] | None = None

    async def last(self, chain: str) -> Job | None:
        if chain not in self._seen:
            self._seen[chain] = await send(self._core, store_of(self._core).watch(chain, chain=True))
        return self._seen[chain]

    async def result(self, job: Job | None) -> Result:
        if job is None:
            return "failure"
        if job.state == "failed" and await self._is_soft(job):
            return "success"
        return _RESULTS.get(job.state, "skipped")

    async def _is_soft(self, job: Job) -> bool:
        if self._soft is None:
            run = await send(self._core, store_of(self._core).get_run(self._run))
            known = unpack_doc(run.doc).jobs if run is not None else ()
            self._soft = frozenset(one.id for one in known if one.soft)
        return (job.chain or job.id) in self._soft

    async def failed_before(self, job: Job) -> bool:
        """Whether a job was skipped because one before it failed."""
        queue = list(job.after)
        while queue and len(self._seen) < MOST_LOOKS:
            before = await self.last(queue.pop())
            if await self.result(before) == "failure":
                return True
            if before is not None and before.state == "skipped":
                queue += [chain for chain in before.after if chain not in self._seen]
        return False
