"""The internal job type `backstay.command`: its handler connects a claimed job to an `Execution`.

Only workers with `allow_commands=True` install it, and only they claim from the queue of command jobs.
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
from backstay.job.api.context import current_attempt
from backstay.job.api.definition import BaseJobType
from backstay.job.api.registry import INTERNAL_JOB_TYPES
from backstay.job.flows import send
from backstay.job.reserved import COMMAND, COMMANDS
from backstay.job.store import JOB_STORE
from backstay.job.worker.execution.attempt import Attempt
from backstay.job.worker.execution.log_buffer import LogBuffer
from backstay.job.worker.execution.outcome import HandlerError
from backstay.runtime.core import Core
from backstay.runtime.services import Service
from backstay.workflow.api.artifacts import JobArtifacts, list_files, validate_artifact_name
from backstay.workflow.command import variables
from backstay.workflow.command.environment import CommandEnvironment
from backstay.workflow.command.execution import Execution, Stopped
from backstay.workflow.command.render import render_outputs
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.expressions.expression import Context, Need, parse
from backstay.workflow.planning.needs import as_strings, load_needs, merge_needs

#: Seconds that the worker waits for a stopped command after its grace period, so that its last output is stored.
LOG_FLUSH_GRACE = 3.0
#: The options with which the workers of a Backstay run commands. The first worker that runs commands sets them; further
#: workers of the same Backstay must have equal ones.
COMMAND_ENVIRONMENT: Service[CommandEnvironment] = Service("environment of commands")
#: Variable with the directory of the needed jobs' artifacts, which are fetched only if the command mentions it.
NEEDS_DIR = "BACKSTAY_NEEDS_DIR"


class CommandType(BaseJobType[..., Any]):
    """The job type of commands. It is registered among the internal job types, not among those that the program
    defines.
    """

    def _register(self) -> None:
        self.core.services.get(INTERNAL_JOB_TYPES)[self.name] = self


def install(core: Core, environment: CommandEnvironment) -> None:
    """Register the job type for workers of this Backstay. Raises ConfigError if another worker of the same Backstay
    registered a different environment.
    """
    known = core.services.find(COMMAND_ENVIRONMENT)
    if known is not None and known != environment:
        raise ConfigError("two workers of one Backstay have different command options; create a Backstay for each")
    core.services.set(COMMAND_ENVIRONMENT, environment)

    async def command(command: CommandSpec) -> dict[str, str]:
        return await _run_command(core, environment, command)

    CommandType(core, command, {"name": COMMAND, "queue": COMMANDS})


async def _run_command(core: Core, environment: CommandEnvironment, spec: CommandSpec) -> dict[str, str]:
    attempt: Attempt = current_attempt()
    job = attempt.job
    if job.queue != COMMANDS:
        raise ConfigError(f"commands run only from the queue {COMMANDS!r}, but this job is from {job.queue!r}")
    chains = {key: (chain,) for key, chain in spec.needs.items()}
    needs, _ = await load_needs(core, job.run, chains, job.upstream)
    log_buffer = attempt.log_buffer = attempt.log_buffer or LogBuffer(
        core, core.services.get(JOB_STORE), asyncio.get_running_loop(), attempt
    )
    context = Context(needs=group_by_job(needs), inputs=spec.inputs, matrix=spec.matrix, env=spec.env)
    artifacts = JobArtifacts(core, directory=environment.artifacts or None)

    async def collect(directory: Path, log_line: Callable[[str], None]) -> None:
        for name, path in list_files(directory, lambda name, why: log_line(f"{name} was not stored: {why}")):
            with open(path, "rb", opener=_open_no_follow) as file:  # noqa: ASYNC230 - fast; it refuses a symlink that replaced the file
                await artifacts.put(job.id, job.fence, name, file)

    needs_directory: Path | None = None
    if mentions(spec, NEEDS_DIR):
        needs_directory = Path(tempfile.mkdtemp(prefix="backstay-needs-"))
    execution = Execution(
        spec,
        environment,
        given=build_identity(job.id, job.run, job.attempt, job.fence, spec, needs),
        needs={key: as_strings(need.outputs) for key, need in needs.items()},
        sink=log_buffer.write_all,
        now=core.engine.now,
        condition=lambda step, failed, outputs: should_run_step(step, context, failed=failed, outputs=outputs),
        collect=collect,
        needs_directory=needs_directory,
    )

    def stop_execution() -> None:
        # If the worker must stop soon, the command has less than its usual grace period.
        grace = max(0.0, min(environment.grace, attempt.abandon_at - steady()))
        attempt.abandon_at = steady() + grace + LOG_FLUSH_GRACE
        execution.stop(grace)

    attempt.on_interrupt, attempt.kill = stop_execution, execution.kill
    if attempt.why:  # interrupted while the needs were loaded, before `on_interrupt` was set
        raise asyncio.CancelledError
    try:
        if needs_directory is not None:
            await _fetch_artifacts(core, artifacts, spec, needs_directory)
        outputs = await execution.run()
    except Stopped:
        raise asyncio.CancelledError from None
    except CommandFailed as error:
        raise HandlerError(CommandFailed.__name__, str(error), error.output) from None
    finally:
        attempt.on_interrupt = attempt.kill = None
        if needs_directory is not None:
            shutil.rmtree(needs_directory, ignore_errors=True)
    known = replace(context, outputs=outputs, steps="success")
    outputs |= render_outputs(spec, known)
    attempt.outputs = outputs
    return outputs


def _open_no_follow(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW)


def mentions(spec: CommandSpec, word: str) -> bool:
    """Whether a script of the command, or the value of one of its variables, contains `word`."""
    texts = (*spec.env.values(), *(text for step in spec.steps for text in (step.run, *step.env.values())))
    return any(word in text for text in texts)


async def _fetch_artifacts(core: Core, artifacts: JobArtifacts, spec: CommandSpec, directory: Path) -> None:
    """Fetch the artifacts of the needed jobs, one subdirectory per job."""
    for key, chain in spec.needs.items():
        last = await send(core, core.services.get(JOB_STORE).watch(chain, chain=True))
        for artifact in await artifacts.list(last.id) if last is not None else ():
            target = directory / variables.variable_name(key) / validate_artifact_name(artifact.name)
            target.parent.mkdir(parents=True, exist_ok=True)
            await artifacts.fetch(artifact, target)


def build_identity(
    job_id: str, run_id: str, attempt: int, fence: int, spec: CommandSpec, needs: Mapping[str, Need]
) -> dict[str, str]:
    """Build the variables with the ids of the job, its run and its attempt, and with the results of the needed jobs."""
    results = {f"BACKSTAY_RESULT_{variables.variable_name(key)}": need.result for key, need in needs.items()}
    return results | {
        "BACKSTAY_RUN_ID": run_id,
        "BACKSTAY_WORKFLOW": spec.workflow,
        "BACKSTAY_JOB": spec.key,
        "BACKSTAY_JOB_ID": job_id,
        "BACKSTAY_ATTEMPT": str(attempt),
        "BACKSTAY_FENCE": str(fence),
    }


def should_run_step(step: Step, context: Context, *, failed: bool, outputs: Mapping[str, str]) -> bool:
    """Evaluate a step's condition, which may also refer to the step's own variables. Raises BadExpression."""
    if not step.condition.strip():
        return not failed
    inside = replace(
        context, env={**context.env, **step.env}, outputs=outputs, steps="failure" if failed else "success"
    )
    return parse(step.condition).holds(inside)


def group_by_job(needs: Mapping[str, Need]) -> dict[str, Need]:
    """Merge the needed jobs of one matrix, such as "test (3.11)" and "test (3.12)", into one entry "test": expressions
    refer to the matrix as one job.
    """
    parts: dict[str, list[Need]] = {}
    for key, need in needs.items():
        parts.setdefault(key.partition(" (")[0], []).append(need)
    return {job: merge_needs(all_of) for job, all_of in parts.items()}
