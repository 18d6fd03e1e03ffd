"""Handle the signals that this process gets. While it waits for the lock, a signal ends the wait. While the command
runs, signals are forwarded to the command.
"""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

from backstay.cli.locked_command.process import CommandProcess

#: Signals whose default action ends this process. If it did not handle them, it would end without releasing the lock or
#: leaving the lock's queue.
TERMINATING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
#: Signals that are forwarded only while the command runs. Before that, they have their default action: SIGTSTP, for
#: example, suspends this process.
FORWARDED = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class SignalRelay:
    """Ends the wait for the lock on the first signal; after `forward_to`, sends each signal to the command's process
    group. Signals that were ignored when this process started (nohup) stay ignored.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._command: CommandProcess | None = None
        self._installed: list[signal.Signals] = []
        #: The signal that ended the wait for the lock; None if none did.
        self.ended_by: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._install(TERMINATING)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number in self._installed:
            self._loop.remove_signal_handler(number)

    def _install(self, numbers: tuple[signal.Signals, ...]) -> None:
        for number in numbers:
            if signal.getsignal(number) != signal.SIG_IGN:
                self._loop.add_signal_handler(number, self._on_signal, number)
                self._installed.append(number)

    def forward_to(self, command: CommandProcess) -> None:
        """Forward all later signals to the command."""
        self._command = command
        self._install(FORWARDED)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._command is not None:
            self._command.signal(number)
        elif self.ended_by is None and self._task is not None:
            self.ended_by = number
            self._task.cancel()
