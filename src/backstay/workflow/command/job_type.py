"""The internal job type `backstay.command`: a command job between its store and its processes.

Only a worker with `allow_commands=True` installs it, and only such a worker takes the queue that these jobs are in.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from backstay.engine.base import steady
from backstay.errors import CommandFailed, ConfigError
from backstay.job.api.context import current_hands
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import store_of
from backstay.job.flows import send
from backstay.job.reserved import COMMAND, COMMANDS
from backstay.job.worker.execution.attempt import Attempt
from backstay.job.worker.execution.log_buffer import Journal
from backstay.job.worker.execution.outcome import Raised
from backstay.runtime.core import Core
from backstay.workflow.api.artifacts import Artifacts, checked_name, files_below
from backstay.workflow.command import variables as environment
from backstay.workflow.command.environment import Surroundings
from backstay.workflow.command.execution import Execution, Stopped
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.expressions.expression import Context, Need, parse
from backstay.workflow.expressions.interpolation import fill
from backstay.workflow.planning.needs import as_strings, merged, needs_of

#: What a worker adds to the grace of a command: its last words have to be stored.
LAST_WORDS = 3.0
NOTE = "workflow.commands"
#: Where a command finds the files of the jobs before, if it names this.
NEEDS_DIR = "BACKSTAY_NEEDS_DIR"


class CommandType(BaseJobType[..., Any]):
    """Not among the program's jobs, nor among those that every worker runs."""

    def _register(self) -> None:
        self.core.internals[self.name] = self


def install(core: Core, surroundings: Surroundings) -> None:
    """Let workers of this Backstay run commands. Raises ConfigError when another has done so in another way."""
    known = core.notes.get(NOTE)
    if known is not None and known != surroundings:
        raise ConfigError("two workers of one Backstay run commands in different ways; make a Backstay for each")
    core.notes[NOTE] = surroundings

    async def command(command: CommandSpec) -> dict[str, str]:
        return await _run(core, surroundings, command)

    CommandType(core, command, {"name": COMMAND, "queue": COMMANDS})


async def _run(core: Core, surroundings: Surroundings, spec: CommandSpec) -> dict[str, str]:
    attempt: Attempt = current_hands()
    job = attempt.job
    if job.queue != COMMANDS:
        raise ConfigError(f"commands run from the queue {COMMANDS!r} alone, and this one came from {job.queue!r}")
    chains = {key: (chain,) for key, chain in spec.needs.items()}
    needs, _ = await needs_of(core, job.run, chains, job.upstream)
    journal = attempt.journal = attempt.journal or Journal(core, store_of(core), asyncio.get_running_loop(), attempt)
    context = Context(needs=by_job(needs), inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
    artifacts = Artifacts(core, directory=surroundings.artifacts or None)

    async def collect(directory: Path, say: Callable[[str], None]) -> None:
        for name, path in files_below(directory, lambda name, why: say(f"{name} is left out: {why}")):
            with open(path, "rb", opener=_unfollowed) as file:  # noqa: ASYNC230 - a link may have taken its place
                await artifacts.put(job.id, job.fence, name, file)

    fetched: Path | None = None
    if mentions(spec, NEEDS_DIR):
        fetched = Path(tempfile.mkdtemp(prefix="backstay-needs-"))
    execution = Execution(
        spec,
        surroundings,
        given=identity(job.id, job.run, job.attempt, job.fence, spec, needs),
        needs={key: as_strings(need.outputs) for key, need in needs.items()},
        sink=journal.keep,
        now=core.engine.now,
        condition=lambda step, failed, outputs: step_runs(step, context, failed=failed, outputs=outputs),
        collect=collect,
        needs_directory=fetched,
    )

    def interrupted() -> None:
        # A worker that is in a hurry offers less than the usual grace.
        grace = max(0.0, min(surroundings.grace, attempt.hard - steady()))
        attempt.hard = steady() + grace + LAST_WORDS
        execution.stop(grace)

    attempt.interrupted, attempt.kill = interrupted, execution.kill
    if attempt.why:  # while the needs were looked at
        raise asyncio.CancelledError
    try:
        if fetched is not None:
            await _fetch(core, artifacts, spec, fetched)
        outputs = await execution.run()
    except Stopped:
        raise asyncio.CancelledError from None
    except CommandFailed as error:
        raise Raised(CommandFailed.__name__, str(error), error.output) from None
    finally:
        attempt.interrupted = attempt.kill = None
        if fetched is not None:
            shutil.rmtree(fetched, ignore_errors=True)
    known = replace(context, outputs=outputs, steps="success")
    outputs |= {name: fill(text, known) for name, text in spec.outputs.items()}
    attempt.outputs = outputs
    return outputs


def _unfollowed(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def mentions(spec: CommandSpec, word: str) -> bool:
    """Whether a text of the job names something that is made only for those who want it."""
    texts = (*spec.env.values(), *(text for step in spec.steps for text in (step.run, *step.env.values())))
    return any(word in text for text in texts)


async def _fetch(core: Core, artifacts: Artifacts, spec: CommandSpec, directory: Path) -> None:
    """Files of the jobs before, each job's in a directory of its own."""
    for key, chain in spec.needs.items():
        last = await send(core, store_of(core).watch(chain, chain=True))
        for artifact in await artifacts.list(last.id) if last is not None else ():
            target = directory / environment.variable(key) / checked_name(artifact.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            await artifacts.fetch(artifact, target)


def identity(
    job_id: str, run_id: str, attempt: int, fence: int, spec: CommandSpec, needs: Mapping[str, Need]
) -> dict[str, str]:
    """What tells a command who it is, and how those before it ended."""
    variables = {f"BACKSTAY_RESULT_{environment.variable(key)}": need.result for key, need in needs.items()}
    return variables | {
        "BACKSTAY_RUN_ID": run_id,
        "BACKSTAY_WORKFLOW": spec.workflow,
        "BACKSTAY_JOB": spec.key,
        "BACKSTAY_JOB_ID": job_id,
        "BACKSTAY_ATTEMPT": str(attempt),
        "BACKSTAY_FENCE": str(fence),
    }


def step_runs(step: Step, context: Context, *, failed: bool, outputs: Mapping[str, str]) -> bool:
    """Whether a step's condition holds, which may speak of its own variables. Raises BadExpression."""
    if not step.condition.strip():
        return not failed
    inside = replace(
        context, env={**context.env, **step.env}, outputs=outputs, steps="failure" if failed else "success"
    )
    return parse(step.condition).holds(inside)


def by_job(needs: Mapping[str, Need]) -> dict[str, Need]:
    """As expressions speak of them: a matrix is one job."""
    parts: dict[str, list[Need]] = {}
    for key, need in needs.items():
        parts.setdefault(key.partition(" (")[0], []).append(need)
    return {job: merged(all_of) for job, all_of in parts.items()}
