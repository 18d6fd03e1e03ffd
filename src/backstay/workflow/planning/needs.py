"""Load results and outputs of the jobs that a job waited for, for expressions and commands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from backstay.job.flows import send
from backstay.job.model import Job
from backstay.job.store import JOB_STORE
from backstay.job.view import decode_plain
from backstay.runtime.core import Core
from backstay.workflow.expressions.expression import Need, Result, as_text
from backstay.workflow.run import unpack_doc

#: The most chains that are read to find out whether a job upstream failed.
MOST_READS = 1000

_RESULTS: dict[str, Result] = {"completed": "success", "failed": "failure", "cancelled": "cancelled"}


def decode_outputs(raw: bytes | None) -> dict[str, Any]:
    """Decode a job's stored result into outputs by key. A mapping is used as it is; any other value becomes the only
    output, `result`; without a result there are no outputs.
    """
    value: Any = decode_plain(raw) if raw else None
    if isinstance(value, dict):
        return cast("dict[str, Any]", value)
    return {} if value is None else {"result": value}


def as_strings(outputs: Mapping[str, Any]) -> dict[str, str]:
    """Format outputs as text, for HTTP and environment variables. Lists and mappings become JSON."""
    return {str(key): as_text(value) for key, value in outputs.items()}


def merge_needs(parts: Sequence[Need]) -> Need:
    """Merge the results and outputs of all jobs of a matrix into one `Need`. If several jobs have an output of the same
    name, that of the last job is used. The result is failure if any job failed, else cancelled if any was cancelled,
    else skipped if all were skipped, else success.
    """
    outputs: dict[str, Any] = {}
    for part in parts:
        outputs.update(part.outputs)
    results = [part.result for part in parts]
    for worst in ("failure", "cancelled"):
        if worst in results:
            return Need(cast("Result", worst), outputs)
    return Need("skipped" if results and set(results) == {"skipped"} else "success", outputs)


async def load_needs(
    core: Core, run: str, needs: Mapping[str, Sequence[str]], upstream: Mapping[str, bytes | None]
) -> tuple[dict[str, Need], bool]:
    """Return the result and outputs of each needed job, by its key in the definition, and whether any job upstream
    failed. `needs`: the chain ids of each needed job. `upstream`: the results of completed chains, as the claim
    returned them; only chains that are not in it are read from the store.
    """
    lookup = _JobLookup(core, run)
    answer: dict[str, Need] = {}
    failed = False
    for job, chains in needs.items():
        parts: list[Need] = []
        for chain in chains:
            raw = upstream.get(chain)
            if raw is not None:
                parts.append(Need("success", decode_outputs(raw)))
                continue
            last = await lookup.last_job(chain)
            result = await lookup.job_result(last)
            if result == "skipped" and last is not None:
                failed = failed or await lookup.was_skipped_by_failure(last)
            done = last is not None and last.state == "completed"
            parts.append(Need(result, decode_outputs(last.result) if last is not None and done else {}))
        answer[job] = merge_needs(parts)
    return answer, failed or any(need.result == "failure" for need in answer.values())


class _JobLookup:
    """Reads ended jobs of a run from the store, each chain at most once."""

    def __init__(self, core: Core, run: str) -> None:
        self._core = core
        self._run = run
        self._seen: dict[str, Job | None] = {}
        self._soft: frozenset[str] | None = None

    async def last_job(self, chain: str) -> Job | None:
        if chain not in self._seen:
            self._seen[chain] = await send(self._core, self._core.services.get(JOB_STORE).watch(chain, chain=True))
        return self._seen[chain]

    async def job_result(self, job: Job | None) -> Result:
        if job is None:
            return "failure"
        if job.state == "failed" and await self._is_soft(job):
            return "success"
        return _RESULTS.get(job.state, "skipped")

    async def _is_soft(self, job: Job) -> bool:
        if self._soft is None:
            run = await send(self._core, self._core.services.get(JOB_STORE).get_run(self._run))
            known = unpack_doc(run.doc).jobs if run is not None else ()
            self._soft = frozenset(one.id for one in known if one.soft)
        return (job.chain or job.id) in self._soft

    async def was_skipped_by_failure(self, job: Job) -> bool:
        """Whether a job was skipped because a job upstream failed."""
        queue = list(job.after)
        while queue and len(self._seen) < MOST_READS:
            before = await self.last_job(queue.pop())
            if await self.job_result(before) == "failure":
                return True
            if before is not None and before.state == "skipped":
                queue += [chain for chain in before.after if chain not in self._seen]
        return False
