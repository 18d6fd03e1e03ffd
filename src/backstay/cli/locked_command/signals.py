"""Handle signals to this process: before the command runs they end the wait, afterwards the command gets them."""

from __future__ import annotations

import asyncio
import signal
from types import TracebackType
from typing import Self

from backstay.cli.locked_command.process import Command

#: Signals whose default action ends this process and would leave a lock or a queue entry behind.
ENDING = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
)
#: Signals that only a running command can handle.
PASSING = (signal.SIGTSTP, signal.SIGCONT, signal.SIGWINCH)


class SignalRelay:
    """Forwards each signal once to the command's group. Signals ignored at the start (nohup) stay ignored."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._command: Command | None = None
        self._installed: list[signal.Signals] = []
        #: The signal that ended the wait.
        self.ended_by: signal.Signals | None = None

    def __enter__(self) -> Self:
        self._install(ENDING)
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

    def to(self, command: Command) -> None:
        """Forward signals to the command from now on."""
        self._command = command
        self._install(PASSING)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._command is not None:
            self._command.signal(number)
        elif self.ended_by is None and self._task is not None:
            self.ended_by = number
            self._task.cancel()
