"""Acquire a lock, run a command under it, release the lock: the work of `backstay lock`."""

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
from backstay.cli.connection import ConnectionOptions
from backstay.cli.durations import span
from backstay.cli.locked_command.process import CommandProcess
from backstay.cli.locked_command.signals import SignalRelay
from backstay.cli.locked_command.terminal import Terminal, wants_terminal
from backstay.cli.output import describe_caller, printable, quote, warn
from backstay.cli.views.lock_wait import show_wait
from backstay.errors import EngineError, HolderInfo, LeaseLost, LockHeld, LockTimeout, NotOwner, QueueFull
from backstay.gate.api import Lease
from backstay.runtime.orphan_guard import OrphanGuard


class Acquirable(Protocol):
    """A lock, a semaphore, or one side of a read-write lock."""

    async def acquire(
        self, *, wait: float | None, lock_id: str, execution_id: str, workflow_id: str, workflow_name: str
    ) -> Lease: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LockRequest:
    """The options of `backstay lock`. If `wait` is None, the wait for the lock has no limit."""

    name: str
    command: tuple[str, ...]
    gate: Callable[[Backstay], Acquirable]
    wait: float | None
    grace: float
    execution_id: str
    workflow_id: str
    workflow_name: str
    verbose: bool


@dataclass(frozen=True, slots=True)
class LockOutcome:
    """The result of `backstay lock`. `interrupted`: SIGINT ended the command while it was in the foreground. The
    kernel sent that Ctrl-C only to the command's process group, so this process did not get it.
    """

    exit_code: int
    interrupted: bool = False


def check_program(program: str) -> int:
    """Return 127 when the program is not found, 126 when it is not executable, else 0."""
    if shutil.which(program):
        return 0
    exists = os.path.lexists(program) if os.sep in program else shutil.which(program, os.F_OK)
    return exit_codes.NOT_EXECUTABLE if exists else exit_codes.NOT_FOUND


async def run_locked(connection: ConnectionOptions, request: LockRequest) -> LockOutcome:
    """Acquire the lock, run the command and release the lock, also after a failure or a signal."""
    with SignalRelay() as relay:
        try:
            async with connection.create() as stay:
                return await _hold(stay, request, relay)
        except asyncio.CancelledError:
            if relay.ended_by is None:
                raise
            return LockOutcome(exit_codes.SIGNALLED + relay.ended_by)


async def _hold(stay: Backstay, request: LockRequest, relay: SignalRelay) -> LockOutcome:
    lock_id = secrets.token_hex(16)
    lease: Lease | None = None
    started = asyncio.get_running_loop().time()
    try:
        try:
            with show_wait(stay, request.name, lock_id, verbose=request.verbose):
                lease = await request.gate(stay).acquire(
                    wait=request.wait,
                    lock_id=lock_id,
                    execution_id=request.execution_id,
                    workflow_id=request.workflow_id or _program(request),
                    workflow_name=request.workflow_name or request.workflow_id or _program(request),
                )
        except (LockHeld, LockTimeout, QueueFull) as error:
            warn(_not_acquired(error, request))
            return LockOutcome(exit_codes.NOT_ACQUIRED)
        if request.verbose:
            waited = asyncio.get_running_loop().time() - started
            warn(f"acquired {quote(request.name)} after {span(waited)}, fence {lease.fence}")
        outcome = await _run(request, lease, relay)
    except BaseException:
        if lease is not None:
            with contextlib.suppress(EngineError, NotOwner):
                await lease.release()
        raise
    if outcome.exit_code == exit_codes.LEASE_LOST and lease.is_lost:
        return outcome
    return await _release(request, lease, outcome)


async def _run(request: LockRequest, lease: Lease, relay: SignalRelay) -> LockOutcome:
    """Run the command until it ends or the lease is lost. `relay` forwards signals to the command. It gets the
    command before the first await, so that it also forwards a signal that arrives right after the start.
    """
    terminal = Terminal.find()
    guard = OrphanGuard(request.grace)
    command: CommandProcess | None = None
    lost: asyncio.Task[bool] | None = None
    try:
        try:
            command = CommandProcess(
                request.command,
                os.environ
                | {
                    "BACKSTAY_LOCK_NAME": lease.name,
                    "BACKSTAY_LOCK_ID": lease.id,
                    "BACKSTAY_FENCE": str(lease.fence),
                },
                guard=guard,
                terminal=terminal,
                in_foreground=wants_terminal(),
                may_resume=lambda: not lease.is_lost,
            )
        except OSError as error:
            warn(f"cannot run {shlex.quote(request.command[0])}: {error.strerror}")
            missing = isinstance(error, FileNotFoundError)
            return LockOutcome(exit_codes.NOT_FOUND if missing else exit_codes.NOT_EXECUTABLE)
        relay.forward_to(command)
        lost = asyncio.get_running_loop().create_task(_loss(lease))
        until: set[asyncio.Future[Any]] = {command.ended, lost}
        await asyncio.wait(until, return_when=asyncio.FIRST_COMPLETED)
        if not command.ended.done():
            warn(f"{lease.loss()} Terminating the command.")
            await command.terminate(request.grace)
            if terminal is not None:
                terminal.take_back(restore_modes=True)
            return LockOutcome(exit_codes.LEASE_LOST)
        code = command.ended.result()
        in_foreground = terminal is not None and terminal.lent
        return LockOutcome(code if code >= 0 else exit_codes.SIGNALLED - code, in_foreground and code == -signal.SIGINT)
    except BaseException:
        if command is not None:  # after any error, the command must not outlive its lock
            await command.terminate(request.grace)
        raise
    finally:
        guard.dismiss()
        if lost is not None:
            lost.cancel()
        if terminal is not None:
            terminal.close()


async def _loss(lease: Lease) -> bool:
    return await lease.lost


async def _release(request: LockRequest, lease: Lease, outcome: LockOutcome) -> LockOutcome:
    """Release the lock. If the lease was lost before the command ended, warn and return LEASE_LOST as the exit code."""
    loss: LeaseLost | None = lease.loss() if lease.is_lost else None
    try:
        if loss is None and (await lease.release()).idempotent:
            lease.reason = "the engine no longer knew it when the command ended"
            loss = lease.loss()
    except NotOwner as error:
        lease.reason = f"it was held by {error.holder} when the command ended"
        loss = lease.loss()
    except EngineError as error:
        warn(f"{quote(request.name)} could not be released; its lease will expire: {error}")
    if loss is not None:
        warn(f"{loss} The command had ended with {outcome.exit_code}.")
        return LockOutcome(exit_codes.LEASE_LOST)
    return outcome


def _program(request: LockRequest) -> str:
    """Return the holder's name that other callers see: the program without its arguments, which may be secret."""
    return printable(Path(request.command[0]).name) or "command"


def _not_acquired(error: LockHeld | LockTimeout | QueueFull, request: LockRequest) -> str:
    if isinstance(error, QueueFull):
        return f"{quote(request.name)} was not acquired: {error.waiters} callers wait for it already"
    holder: HolderInfo | None = error.holder
    held = (
        f"it is held by {describe_caller(holder)} since {holder.locked_at}"
        if holder
        else "it is offered to another waiter"
    )
    if isinstance(error, LockHeld):
        return f"{quote(request.name)} was not acquired: {held}; wait for it with, for example, --wait 30s"
    return f"{quote(request.name)} was not acquired within {span(error.waited)}: {held}"
