"""Run a command job: its steps one after another, each a script in a shell, all in one process group.

After a failed step, only steps with `if: failure()` or `if: always()` run; with `continue-on-error` the failure is
ignored. When the job ends for any reason, all its processes are ended.
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
from backstay.runtime.serialization import printable
from backstay.workflow.command import variables
from backstay.workflow.command.environment import CommandEnvironment
from backstay.workflow.command.masking import Secrets
from backstay.workflow.command.outputs import LARGEST_FILE, Outputs
from backstay.workflow.command.process_group import ProcessGroup, wait_exit
from backstay.workflow.command.pump import Pump, Sink
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.command.streams import Streams
from backstay.workflow.expressions.expression import as_text

#: Shells by name. bash and sh stop at the first failing command, and at an unset variable.
SHELLS: dict[str, tuple[str, ...]] = {
    "bash": ("bash", "--noprofile", "--norc", "-euo", "pipefail"),
    "sh": ("sh", "-eu"),
    "python": (sys.executable,),
}
#: A shell reports a command that was killed by signal N as exit code 128 + N.
SIGNAL_EXIT_BASE = 128
#: Variable with the path of the file into which a command writes its outputs.
OUTPUT = "BACKSTAY_OUTPUT"


class Stopped(Exception):
    """The execution was stopped, and all its processes have ended."""


#: A function that stores the files of a directory as artifacts; its second argument writes a line to the job's log.
Collect = Callable[[Path, Callable[[str], None]], Awaitable[None]]
#: A function that decides whether to run a step. Arguments: the step, whether an earlier step failed, the outputs so
#: far.
StepCondition = Callable[[Step, bool, Mapping[str, str]], bool]


def evaluate_plain_condition(step: Step, failed: bool, _: Mapping[str, str]) -> bool:
    """Evaluate a step's condition if it is empty or a single call: `success()`, `failure()` or `always()`. Raises
    ConfigError for other conditions.
    """
    match step.condition.strip().removeprefix("${{").removesuffix("}}").strip():
        case "" | "success()":
            return not failed
        case "failure()":
            return failed
        case "always()":
            return True
        case other:
            raise ConfigError(f"{other!r} is not supported as the condition of a step")


class Execution:
    """One attempt of a command job. `run` is called once; `stop` and `kill` at any time, on the same event loop."""

    def __init__(
        self,
        spec: CommandSpec,
        environment: CommandEnvironment,
        *,
        given: Mapping[str, str],
        needs: Mapping[str, Mapping[str, str]],
        sink: Sink,
        now: Callable[[], Micros],
        condition: StepCondition = evaluate_plain_condition,
        collect: Collect | None = None,
        needs_directory: Path | None = None,
    ) -> None:
        self._spec = spec
        self._environment = environment
        self._given = given
        self._needs = needs
        self._condition = condition
        self._collect = collect
        self._needs_directory = needs_directory
        self._secrets = Secrets(environment.secrets)
        self._outputs = Outputs()
        self._group = ProcessGroup(environment.grace)
        self._pump = Pump(Streams(self._secrets, self._outputs), sink, now)
        self._stopping = asyncio.Event()
        self._directory = Path()
        self._processes: list[subprocess.Popen[bytes]] = []

    def stop(self, grace: float | None = None) -> None:
        """Stop the job: send SIGTERM, and SIGKILL `grace` seconds later. When all processes have ended, `run` raises
        Stopped.
        """
        if grace is not None:
            self._group.grace = min(grace, self._group.grace)
        self._stopping.set()

    def kill(self) -> None:
        """Kill all processes now. Output that was not yet stored may be lost."""
        self._stopping.set()
        self._group.kill()
        self._pump.discard()

    async def run(self) -> dict[str, str]:
        """Run all steps and return the outputs. Raises CommandFailed, ConfigError, Stopped."""
        self._directory = Path(tempfile.mkdtemp(prefix="backstay-"))
        try:
            try:
                failure = await self._run_steps()
                await self._end_leftovers()
                failure = await self._store_artifacts(failure)
            finally:
                # Also after an exception or a cancellation of this task: first end the processes, then close the pump
                # (it copies their output to the job's log), which waits until all output is stored.
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

    async def _run_steps(self) -> CommandFailed | None:
        """Run the steps. Returns the first failure of a step without `continue-on-error`; None if there is none."""
        environ = self._build_variables()
        failure: CommandFailed | None = None
        steps = self._spec.steps
        for number, step in enumerate(steps, 1):
            name = self._step_name(number, step)
            if not self._condition(step, failure is not None, self._outputs.values):
                if step.condition:
                    self._pump.log_line(f"{name}: skipped, its condition does not hold")
                continue
            if len(steps) > 1 or step.name:
                self._pump.log_line(f"{name}")
            try:
                await self._run_step(number, name, step, environ)
            except CommandFailed as error:
                self._pump.log_line(str(error) + (" (the job continues)" if step.continue_on_error else ""))
                if not step.continue_on_error and failure is None:
                    failure = error
        return failure

    def _step_name(self, number: int, step: Step) -> str:
        count = len(self._spec.steps)
        place = f"step {number} of {count}" if count > 1 else ""
        title = printable(self._secrets.hide(step.name))
        return f"{place} ({title})" if place and title else place or title

    def _build_variables(self) -> dict[str, str]:
        """Build the environment variables that all steps share."""
        spec = self._spec
        inputs = {name: as_text(value) for name, value in spec.inputs.items()}
        run_variables, complete = variables.build_run_variables(inputs, self._needs)
        if not complete:
            self._pump.log_line("the outputs of the needed jobs are too large for variables: read $BACKSTAY_NEEDS_FILE")
        for folder in ("temp", "artifacts"):
            (self._directory / folder).mkdir()
        document = self._directory / "needs.json"
        document.write_text(variables.encode_needs(self._needs), encoding="utf-8", errors="surrogateescape")
        variables.check_env(spec.env, f"job {spec.key or 'command'}")
        return {
            **self._environment.variables,
            **run_variables,
            "BACKSTAY_NEEDS_FILE": str(document),
            "BACKSTAY_TEMP": str(self._directory / "temp"),
            "BACKSTAY_ARTIFACTS": str(self._directory / "artifacts"),
            **({"BACKSTAY_NEEDS_DIR": str(self._needs_directory)} if self._needs_directory is not None else {}),
            "CI": "true",
            **self._given,
            **spec.env,
        }

    async def _run_step(self, number: int, name: str, step: Step, environ: Mapping[str, str]) -> None:
        """Run one script until it exits. Raises CommandFailed, Stopped."""
        if self._stopping.is_set():
            raise Stopped
        variables.check_env(step.env, name or "the command")
        file = self._directory / f"outputs-{number}"
        file.touch(mode=0o600)
        process = self._start(number, name, step, {**environ, **step.env, OUTPUT: str(file)})
        code = await self._wait(process, step.timeout)
        self._pump.drain()
        if code is None:
            raise self._make_failure(name, f"it exceeded its timeout of {step.timeout:g} s and was ended")
        self._read_outputs(file)
        problems, self._outputs.problems = self._outputs.problems, []
        if code:
            raise self._make_failure(name, describe_exit(code), code)
        if problems:
            raise self._make_failure(name, f"its outputs cannot be read: {'; '.join(problems)}")

    def _start(self, number: int, name: str, step: Step, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
        directory = Path(self._environment.directory, self._spec.working_directory, step.working_directory)
        arguments = self._shell_command(number, step)
        try:
            process = self._group.start(
                arguments, env=environ, cwd=str(directory), stdout=self._pump.stdout, stderr=self._pump.stderr
            )
        except OSError as error:
            if not directory.is_dir():
                raise self._make_failure(name, f"its working directory {str(directory)!r} does not exist") from None
            raise self._make_failure(name, f"{printable(arguments[0])} cannot be started: {error.strerror}") from None
        self._processes.append(process)
        return process

    def _shell_command(self, number: int, step: Step) -> list[str]:
        shell = step.shell or self._spec.shell or ("bash" if shutil.which("bash") else "sh")
        script = self._directory / f"step-{number}{'.py' if shell == 'python' else ''}"
        script.write_text(step.run, encoding="utf-8", errors="surrogateescape")
        if shell in SHELLS:
            program, *options = SHELLS[shell]
            # Resolve the shell with the worker's PATH; the job's own PATH applies to what the script runs.
            return [shutil.which(program) or program, *options, str(script)]
        try:
            words = shlex.split(shell)
        except ValueError as error:
            raise ConfigError(f"the shell {shell!r} cannot be parsed: {error}") from None
        if not any("{0}" in word for word in words):
            raise ConfigError(
                f"the shell {shell!r} is none of {', '.join(SHELLS)}, and has no {{0}} in place of the script's file"
            )
        return [word.replace("{0}", str(script)) for word in words]

    async def _wait(self, process: subprocess.Popen[bytes], timeout: float) -> int | None:
        """Wait for the process and return its exit code; None after a timeout. Raises Stopped. After a timeout or a
        stop, all processes of the group have ended.
        """
        end = asyncio.ensure_future(wait_exit(process))
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

    def _read_outputs(self, file: Path) -> None:
        """Read the step's output file. The step may have replaced it with a link, a FIFO or a directory: open it
        without following links, without blocking, and accept only a regular file.
        """
        where = OUTPUT
        try:
            handle = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._outputs.add_problem(where, f"the file cannot be read: {error.strerror}")
            return
        try:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                self._outputs.add_problem(where, "it is no longer a regular file")
                return
            raw = os.read(handle, LARGEST_FILE + 1)
        finally:
            os.close(handle)
        self._outputs.read(raw, where)

    async def _store_artifacts(self, failure: CommandFailed | None) -> CommandFailed | None:
        """Store the files in the directory BACKSTAY_ARTIFACTS, also after a failed step. `failure`: the failure of
        that step, or None. Returns `failure` if it is not None; otherwise a failure that says which file cannot be
        stored, or None if all files are stored. Raises JobError when the job's lease is lost.
        """
        if self._collect is None:
            return failure
        try:
            await self._collect(self._directory / "artifacts", self._pump.log_line)
        except (ConfigError, PayloadTooLarge) as error:
            wrong = self._make_failure("", f"an artifact cannot be stored: {error}")
            self._pump.log_line(str(wrong))
            return failure or wrong
        return failure

    async def _end_leftovers(self) -> None:
        """End the background processes that the steps left running."""
        if left := len(self._group.list_members()):
            what = "1 process was" if left == 1 else f"{left} processes were"
            self._pump.log_line(f"{what} left running in the background and ended with the job")
            await self._group.end()
        else:
            await self._group.close()

    def _make_failure(self, name: str, what: str, code: int | None = None) -> CommandFailed:
        return CommandFailed(
            self._secrets.hide(what),
            step=name,
            exit_code=code if code is not None and code >= 0 else None,
            signal=signal_name(-code) if code is not None and code < 0 else "",
            output=self._pump.streams.tail,
        )


def describe_exit(code: int) -> str:
    """Describe the exit code of a process, as in "exit code 1" or "ended by SIGKILL"."""
    if code < 0:
        return f"ended by {signal_name(-code)}"
    if code > SIGNAL_EXIT_BASE and (name := signal_name(code - SIGNAL_EXIT_BASE, known=True)):
        return f"exit code {code} ({name})"
    return f"exit code {code}"


def signal_name(number: int, *, known: bool = False) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "" if known else f"signal {number}"
