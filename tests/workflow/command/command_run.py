"""Run a command job without a store, and record its log chunks and outputs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from backstay.errors import CommandFailed
from backstay.testing.waiting import soon
from backstay.workflow.command.chunks import Chunk
from backstay.workflow.command.environment import CommandEnvironment
from backstay.workflow.command.execution import Execution
from backstay.workflow.command.spec import CommandSpec, Step
from backstay.workflow.command.variables import select_inherited
from support.programs import is_alive


class CommandRun:
    """A command execution with its recorded log chunks and outputs."""

    def __init__(
        self,
        *steps: Step | str,
        directory: Path | str = ".",
        environ: Mapping[str, str] | None = None,
        wanted: Sequence[str] = (),
        secrets: Sequence[str] = (),
        given: Mapping[str, str] | None = None,
        needs: Mapping[str, Mapping[str, str]] | None = None,
        grace: float = 2.0,
        **spec,
    ) -> None:
        self.chunks: list[Chunk] = []
        self.outputs: dict[str, str] = {}
        self.execution = Execution(
            CommandSpec(steps=tuple(Step(run=s) if isinstance(s, str) else s for s in steps), **spec),
            CommandEnvironment(
                directory=str(directory),
                variables=select_inherited(wanted, environ),
                secrets=tuple(secrets),
                grace=grace,
            ),
            given=given or {},
            needs=needs or {},
            sink=self.store_chunks,
            now=lambda: time.time_ns() // 1000,
        )

    async def store_chunks(self, chunks: Sequence[Chunk]) -> None:
        self.chunks += chunks

    async def run(self) -> CommandRun:
        self.outputs = await self.execution.run()
        return self

    def text(self, *streams: str) -> str:
        chosen = [c for c in self.chunks if c.stream in (streams or ("stdout", "stderr"))]
        return "".join(c.data + "\n" if c.stream == "log" else c.data for c in chosen)


async def wait_exited(pid: int) -> bool:
    """Wait until a process has exited; return whether it has."""

    async def has_exited() -> bool:
        return not is_alive(pid)

    return await soon(has_exited)


async def run_failing(*steps: Step | str, **options) -> tuple[CommandFailed, CommandRun]:
    """Run a command that must fail; return its error and the run."""
    ran = CommandRun(*steps, **options)
    with pytest.raises(CommandFailed) as caught:
        await ran.run()
    return caught.value, ran
