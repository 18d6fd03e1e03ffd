"""Running a command job: its steps one after another, each a script in a shell, all in one process group.

A step that fails ends the job, except that later steps may ask for it (`if: failure()`, `if: always()`) or it may say
that its failure does not matter. Whatever ends the job, nothing of its processes is left behind.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from backstay.engine.base import Micros
from backstay.errors import CommandFailed, ConfigError, PayloadTooLarge
from backstay.workflow.command import variables
from backstay.workflow.command.environment import Surroundings
from backstay.workflow.command.masking import Secrets
from backstay.workflow.command.outputs import LARGEST_FILE, Outputs
from backstay.workflow.command.process_group import ProcessGroup, ended
from backstay.workflow.command.pump import Pump, Sink
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.command.streams import Streams
from backstay.workflow.expressions.expression import as_text

#: Shells by name. Each stops at the first command that fails, and at a variable that is not set.
SHELLS: dict[str, tuple[str, ...]] = {
    "bash": ("bash", "--noprofile", "--norc", "-euo", "pipefail"),
    "sh": ("sh", "-eu"),
    "python": (sys.executable,),
}
#: An exit code above this is how a shell tells of a signal.
SIGNALLED = 128
#: Where a command leaves its outputs.
OUTPUT = "BACKSTAY_OUTPUT"


class Stopped(Exception):
    """The job is to end, and its processes have ended."""


#: What is done with the files that a command left in a directory, and says what happened to them.
Collect = Callable[[Path, Callable[[str], None]], Awaitable[None]]
#: Whether a step is run: from its `if`, whether one before it failed, and the outputs so far.
Condition = Callable[[Step, bool, Mapping[str, str]], bool]


def plain_condition(step: Step, failed: bool, _: Mapping[str, str]) -> bool:
    """The conditions that speak of the steps before alone."""
    match step.condition.strip().removeprefix("${{").removesuffix("}}").strip():
        case "" | "success()":
            return not failed
        case "failure()":
            return failed
        case "always()":
            return True
        case other:
            raise ConfigError(f"{other!r} is not known as the condition of a step")


class Execution:
    """One attempt at a command job. It runs once; `stop` and `kill` may be called at any time, on its loop."""

    def __init__(
        self,
        spec: CommandSpec,
        surroundings: Surroundings,
        *,
        given: Mapping[str, str],
        needs: Mapping[str, Mapping[str, str]],
        sink: Sink,
        now: Callable[[], Micros],
        condition: Condition = plain_condition,
        collect: Collect | None = None,
        needs_directory: Path | None = None,
    ) -> None:
        self._spec = spec
        self._surroundings = surroundings
        self._given = given
        self._needs = needs
        self._condition = condition
        self._collect = collect
        self._needs_directory = needs_directory
        self._secrets = Secrets(surroundings.secrets)
        self._outputs = Outputs()
        self._group = ProcessGroup(surroundings.grace)
        self._pump = Pump(Streams(self._secrets, self._outputs), sink, now)
        self._stopping = asyncio.Event()
        self._directory = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    def stop(self, grace: float | None = None) -> None:
        """Ask everything to end: SIGTERM, the grace, SIGKILL. `run` raises Stopped when that is done."""
        if grace is not None:
            self._group.grace = min(grace, self._group.grace)
        self._stopping.set()

    def kill(self) -> None:
        """End everything now. What was written last may be lost."""
        self._stopping.set()
        self._group.kill()
        self._pump.discard()

    async def run(self) -> dict[str, str]:
        """All steps; answers the outputs. Raises CommandFailed, ConfigError, Stopped."""
        self._directory = Path(tempfile.mkdtemp(prefix="backstay-"))
        try:
            try:
                failure = await self._steps()
                await self._end_leftovers()
                failure = await self._keep_files(failure)
            finally:
                # Also when this task is cancelled: processes end first, then what they wrote is kept.
                await self._group.end()
                await self._pump.close()
        except ConfigError as error:
            raise ConfigError(self._secrets.hide(str(error))) from None
        finally:
            self._group.kill()
            self._pump.discard()
            for process in self._processes:
                process.poll()
            shutil.rmtree(self._directory, ignore_errors=True)
        if failure is not None:
            raise failure
        return {key: self._secrets.hide(value) for key, value in self._outputs.values.items()}

    # ── steps ──

    async def _steps(self) -> CommandFailed | None:
        """Answers the first failure that counts."""
        environ = self._environment()
        failure: CommandFailed | None = None
        steps = self._spec.steps
        for number, step in enumerate(steps, 1):
            name = self._name(number, step)
            if not self._condition(step, failure is not None, self._outputs.values):
                if step.condition:
                    self._pump.say(f"{name}: skipped, its condition does not hold")
                continue
            if len(steps) > 1 or step.name:
                self._pump.say(f"{name}")
            try:
                await self._step(number, name, step, environ)
            except CommandFailed as error:
                self._pump.say(str(error) + (" (the job goes on)" if step.continue_on_error else ""))
                if not step.continue_on_error and failure is None:
                    failure = error
        return failure

    def _name(self, number: int, step: Step) -> str:
        count = len(self._spec.steps)
        place = f"step {number} of {count}" if count > 1 else ""
        title = self._secrets.hide(step.name)
        return f"{place} ({title})" if place and title else place or title

    def _environment(self) -> dict[str, str]:
        """What all steps share."""
        spec = self._spec
        inputs = {name: as_text(value) for name, value in spec.inputs.items()}
        told, complete = variables.inputs_and_needs(inputs, self._needs)
        if not complete:
            self._pump.say("the outputs of the jobs before are too large for variables: read $BACKSTAY_NEEDS_FILE")
        for folder in ("temp", "artifacts"):
            (self._directory / folder).mkdir()
        document = self._directory / "needs.json"
        document.write_text(variables.needs_document(self._needs), encoding="utf-8", errors="surrogateescape")
        variables.check_env(spec.env, f"job {spec.key or 'command'}")
        return {
            **self._surroundings.environment,
            **told,
            "BACKSTAY_NEEDS_FILE": str(document),
            "BACKSTAY_TEMP": str(self._directory / "temp"),
            "BACKSTAY_ARTIFACTS": str(self._directory / "artifacts"),
            **({"BACKSTAY_NEEDS_DIR": str(self._needs_directory)} if self._needs_directory is not None else {}),
            "CI": "true",
            **self._given,
            **spec.env,
        }

    async def _step(self, number: int, name: str, step: Step, environ: Mapping[str, str]) -> None:
        """One script to its end. Raises CommandFailed, Stopped."""
        if self._stopping.is_set():
            raise Stopped
        variables.check_env(step.env, name or "the command")
        file = self._directory / f"outputs-{number}"
        file.touch(mode=0o600)
        process = self._start(number, name, step, {**environ, **step.env, OUTPUT: str(file)})
        code = await self._wait(process, step.timeout)
        self._pump.drain()
        if code is None:
            raise self._failed(name, f"it ran longer than its timeout of {step.timeout:g} s, and was ended")
        self._read(file)
        problems, self._outputs.problems = self._outputs.problems, []
        if code:
            raise self._failed(name, how(code), code)
        if problems:
            raise self._failed(name, f"its outputs cannot be read: {'; '.join(problems)}")

    def _start(self, number: int, name: str, step: Step, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        directory = Path(self._surroundings.directory, self._spec.working_directory, step.working_directory)
        arguments = self._shell(number, step)
        try:
            process = self._group.start(
                arguments, env=environ, cwd=str(directory), stdout=self._pump.stdout, stderr=self._pump.stderr
            )
        except OSError as error:
            if not directory.is_dir():
                raise self._failed(name, f"there is no directory {str(directory)!r} to run it in") from None
            raise self._failed(name, f"{arguments[0]} cannot be started: {error.strerror}") from None
        self._processes.append(process)
        return process

    def _shell(self, number: int, step: Step) -> list[str]:
        shell = step.shell or self._spec.shell or ("bash" if shutil.which("bash") else "sh")
        script = self._directory / f"step-{number}{'.py' if shell == 'python' else ''}"
        script.write_text(step.run, encoding="utf-8", errors="surrogateescape")
        if shell in SHELLS:
            program, *options = SHELLS[shell]
            # By its path: the job's own PATH is for what the script runs.
            return [shutil.which(program) or program, *options, str(script)]
        try:
            words = shlex.split(shell)
        except ValueError as error:
            raise ConfigError(f"the shell {shell!r} cannot be read: {error}") from None
        if not any("{0}" in word for word in words):
            raise ConfigError(f"the shell {shell!r} is none of {', '.join(SHELLS)}, and has no {{0}} for the script")
        return [word.replace("{0}", str(script)) for word in words]

    async def _wait(self, process: subprocess.Popen[bytes], timeout: float) -> int | None:
        """Its exit code; None: its time was over. Raises Stopped. In the last two cases nothing runs any more."""
        end = asyncio.ensure_future(ended(process))
        stop = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait({end, stop}, timeout=timeout or None, return_when=asyncio.FIRST_COMPLETED)
            if end.done() and not stop.done():
                return end.result()
            await self._group.end()
            await asyncio.wait({end}, timeout=1)
            if stop.done():
                raise Stopped
            return None
        finally:
            end.cancel()
            stop.cancel()
            await asyncio.wait({end, stop})

    def _read(self, file: Path) -> None:
        """What the step left in its file, which may be anything by now."""
        where = OUTPUT
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._outputs.wrong(where, f"its file cannot be read: {error.strerror}")
            return
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                self._outputs.wrong(where, "it is no longer a file")
                return
            raw = os.read(handle, LARGEST_FILE + 1)
        finally:
            os.close(handle)
        self._outputs.read(raw, where)

    async def _keep_files(self, failure: CommandFailed | None) -> CommandFailed | None:
        """What the steps left in BACKSTAY_ARTIFACTS, also after a failure. Raises JobError when the lease is gone."""
        if self._collect is None:
            return failure
        try:
            await self._collect(self._directory / "artifacts", self._pump.say)
        except (ConfigError, PayloadTooLarge) as error:
            wrong = self._failed("", f"a file that it left cannot be kept: {error}")
            self._pump.say(str(wrong))
            return failure or wrong
        return failure

    async def _end_leftovers(self) -> None:
        """Processes that the steps left in the background end with the job."""
        if left := len(self._group.members()):
            what = "1 process was" if left == 1 else f"{left} processes were"
            self._pump.say(f"{what} left in the background, and ended with the job")
            await self._group.end()
        else:
            await self._group.close()

    def _failed(self, name: str, what: str, code: int | None = None) -> CommandFailed:
        return CommandFailed(
            self._secrets.hide(what),
            step=name,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else "",
            output=self._pump.streams.tail,
        )


def how(code: int) -> str:
    """An exit code in words."""
    if code < 0:
        return f"ended by {signal_name(-code)}"
    if code > SIGNALLED and (name := signal_name(code - SIGNALLED, known=True)):
        return f"exit code {code} ({name})"
    return f"exit code {code}"


def signal_name(number: int, *, known: bool = False) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "" if known else f"signal {number}"
