"""Take a lock, run a command under it, give the lock back: what `backstay lock` does."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import shlex
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from backstay import Backstay
from backstay.cli import exit_codes
from backstay.cli.connection import Connection
from backstay.cli.durations import span
from backstay.cli.locked_command.process import Command
from backstay.cli.locked_command.signals import Relay
from backstay.cli.locked_command.terminal import Terminal, wants_terminal
from backstay.cli.output import printable, quoted, warn, who
from backstay.cli.views.lock_wait import shown
from backstay.errors import EngineError, HolderInfo, LeaseLost, LockHeld, LockTimeout, NotOwner, QueueFull
from backstay.gate.api import Lease
from backstay.runtime.orphan_guard import Guard


class Gate(Protocol):
    """A lock, a permit, a read or a write."""

    async def acquire(
        self, *, wait: float | None, lock_id: str, execution_id: str, workflow_id: str, workflow_name: str
    ) -> Lease: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What was asked for. `wait` None waits for ever."""

    name: str
    command: tuple[str, ...]
    gate: Callable[[Backstay], Gate]
    wait: float | None
    grace: float
    execution_id: str
    workflow_id: str
    workflow_name: str
    verbose: bool


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. `interrupted`: Ctrl-C ended a command that had the terminal, so only it heard."""

    exit_code: int
    interrupted: bool = False


def unusable(program: str) -> int:
    """127 or 126 for a program that cannot be run, 0 for one that can: known before the lock is waited for."""
    if shutil.which(program):
        return 0
    exists = os.path.lexists(program) if os.sep in program else shutil.which(program, os.F_OK)
    return exit_codes.NOT_EXECUTABLE if exists else exit_codes.NOT_FOUND


async def hold(connection: Connection, wish: Wish) -> Outcome:
    """Run the command under the lock. Leaves no lock behind, whatever ends it."""
    with Relay() as relay:
        try:
            async with connection.create() as stay:
                return await _hold(stay, wish, relay)
        except asyncio.CancelledError:
            if relay.ended_by is None:
                raise
            return Outcome(exit_codes.SIGNALLED + relay.ended_by)


async def _hold(stay: Backstay, wish: Wish, relay: Relay) -> Outcome:
    lock_id = secrets.token_hex(16)
    lease: Lease | None = None
    started = asyncio.get_running_loop().time()
    try:
        try:
            with shown(stay, wish.name, lock_id, verbose=wish.verbose):
                lease = await wish.gate(stay).acquire(
                    wait=wish.wait,
                    lock_id=lock_id,
                    execution_id=wish.execution_id,
                    workflow_id=wish.workflow_id or _program(wish),
                    workflow_name=wish.workflow_name or wish.workflow_id or _program(wish),
                )
        except (LockHeld, LockTimeout, QueueFull) as error:
            warn(_not_acquired(error, wish))
            return Outcome(exit_codes.NOT_ACQUIRED)
        if wish.verbose:
            waited = asyncio.get_running_loop().time() - started
            warn(f"acquired {quoted(wish.name)} after {span(waited)}, fence {lease.fence}")
        outcome = await _run(wish, lease, relay)
    except BaseException:
        if lease is not None:
            with contextlib.suppress(EngineError, NotOwner):
                await lease.release()
        raise
    if outcome.exit_code == exit_codes.LEASE_LOST and lease.is_lost:
        return outcome
    return await _give_back(wish, lease, outcome)


async def _run(wish: Wish, lease: Lease, relay: Relay) -> Outcome:
    """The command from start to end. Nothing is awaited before the relay knows it."""
    terminal = Terminal.find()
    guard = Guard(wish.grace)
    command: Command | None = None
    lost: asyncio.Task[bool] | None = None
    try:
        try:
            command = Command(
                wish.command,
                os.environ
                | {
                    "BACKSTAY_LOCK_NAME": lease.name,
                    "BACKSTAY_LOCK_ID": lease.id,
                    "BACKSTAY_FENCE": str(lease.fence),
                },
                guard=guard,
                terminal=terminal,
                in_front=wants_terminal(),
                may_go_on=lambda: not lease.is_lost,
            )
        except OSError as error:
            warn(f"cannot run {shlex.quote(wish.command[0])}: {error.strerror}")
            missing = isinstance(error, FileNotFoundError)
            return Outcome(exit_codes.NOT_FOUND if missing else exit_codes.NOT_EXECUTABLE)
        relay.to(command)
        lost = asyncio.get_running_loop().create_task(_loss(lease))
        until: set[asyncio.Future[Any]] = {command.ended, lost}
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        if not command.ended.done():
            warn(f"{lease.loss()} Ending the command.")
            await command.end(wish.grace)
            if terminal is not None:
                terminal.take_back(mend=True)
            return Outcome(exit_codes.LEASE_LOST)
        code = command.ended.result()
        in_front = terminal is not None and terminal.lent
        return Outcome(code if code >= 0 else exit_codes.SIGNALLED - code, in_front and code == -signal.SIGINT)
    except BaseException:
        if command is not None:  # it must not outlive its lock, whatever went wrong here
            await command.end(wish.grace)
        raise
    finally:
        guard.dismiss()
        if lost is not None:
            lost.cancel()
        if terminal is not None:
            terminal.close()


async def _loss(lease: Lease) -> bool:
    return await lease.lost


async def _give_back(wish: Wish, lease: Lease, outcome: Outcome) -> Outcome:
    """Release, and say so when the lock had not been ours to the end."""
    loss: LeaseLost | None = lease.loss() if lease.is_lost else None
    try:
        if loss is None and (await lease.release()).idempotent:
            lease.reason = "the engine no longer knew it when the command ended"
            loss = lease.loss()
    except NotOwner as error:
        lease.reason = f"it was held by {error.holder} when the command ended"
        loss = lease.loss()
    except EngineError as error:
        warn(f"{quoted(wish.name)} could not be released and runs out by itself: {error}")
    if loss is not None:
        warn(f"{loss} The command had ended with {outcome.exit_code}.")
        return Outcome(exit_codes.LEASE_LOST)
    return outcome


def _program(wish: Wish) -> str:
    """Whom others see as the holder: the program's name, never its arguments, which may be secret."""
    return printable(Path(wish.command[0]).name) or "command"


def _not_acquired(error: LockHeld | LockTimeout | QueueFull, wish: Wish) -> str:
    if isinstance(error, QueueFull):
        return f"{quoted(wish.name)} was not acquired: {error.waiters} wait for it already"
    holder: HolderInfo | None = error.holder
    held = f"it is held by {who(holder)} since {holder.locked_at}" if holder else "it is promised to another waiter"
    if isinstance(error, LockHeld):
        return f"{quoted(wish.name)} was not acquired: {held}; --wait 30s would queue"
    return f"{quoted(wish.name)} was not acquired within {span(error.waited)}: {held}"
