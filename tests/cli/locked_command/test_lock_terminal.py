"""`backstay lock` on a terminal: Ctrl-C and Ctrl-Z work as without backstay, and full-screen programs run."""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from dataclasses import dataclass

import pytest

from support.command_line import PATIENCE, Cli, end_input, eventually

#: Makes standard input the controlling terminal of a new session.
SESSION = """
import fcntl, os, sys, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Screen:
    """A pseudo-terminal with a running program."""

    process: subprocess.Popen[bytes]
    fd: int
    text: str = ""

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode())

    def expect(self, pattern: str) -> re.Match[str]:
        """Read until the pattern appears and drop the text up to it."""
        deadline = time.monotonic() + PATIENCE
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self.fd], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                pytest.fail(f"{pattern!r} never came; the screen shows {self.text!r}")
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:  # the last program closed the terminal
                chunk = b""
            if not chunk:
                pytest.fail(f"{pattern!r} never came before the end; the screen shows {self.text!r}")
            self.text += chunk.decode(errors="replace")
        self.text = self.text[found.end() :]
        return found

    def type_and_find(self, text: str, pattern: str) -> bool:
        """Type a text and return whether the output matches the pattern."""
        self.type(text)
        return pattern in self.expect(r"(?s)(.*?)prompt> ")[1]

    def drain(self) -> str:
        """Return the rest of the output."""
        while True:
            try:
                chunk = os.read(self.fd, 65536)
            except OSError:
                return self.text
            if not chunk:
                return self.text
            self.text += chunk.decode(errors="replace")


@pytest.fixture
def open_screen(sqlite_cli: Cli):
    screens: list[Screen] = []

    def start(*argv: str) -> Screen:
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-c", SESSION, *argv],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=sqlite_cli.environment | {"TERM": "xterm", "PS1": "prompt> ", "COLUMNS": "200"},
            cwd=sqlite_cli.folder,
        )
        os.close(theirs)
        screens.append(Screen(process, ours))
        return screens[-1]

    yield start
    for screen in screens:
        os.close(screen.fd)  # hangs up
        try:
            screen.process.wait(PATIENCE)
        finally:
            screen.process.kill()
            screen.process.wait()


#: A signal just before a read does not interrupt it, so the program selects on input and the wakeup pipe.
COUNTING = """
import os, select, signal, sys
seen = 0
bell, ring = os.pipe()
os.set_blocking(ring, False)
signal.set_wakeup_fd(ring)
def count(*_):
    global seen
    seen += 1
    print("interrupt", seen, flush=True)
signal.signal(signal.SIGINT, count)
print("in front" if os.tcgetpgrp(0) == os.getpgrp() else "behind", flush=True)
line = ""
while line != "end\\n":
    if bell in (ready := select.select([0, bell], [], [])[0]):
        os.read(bell, 100)
    if 0 in ready:
        line = sys.stdin.readline()
print("seen", seen, flush=True)
"""


def test_ctrl_c_reaches_the_command_exactly_once(sqlite_cli, open_screen):
    screen = open_screen(*sqlite_cli.argv("lock", "x", "--", sys.executable, "-c", COUNTING))
    screen.expect("in front")
    screen.type("\x03")
    screen.expect("interrupt 1")
    screen.type("\x03")
    screen.expect("interrupt 2")
    screen.type("end\n")
    screen.expect("seen 2")
    assert screen.process.wait(PATIENCE) == 0
    assert sqlite_cli.is_free("x")


def test_ctrl_c_ends_the_command_and_releases_the_lock(sqlite_cli, open_screen):
    screen = open_screen(*sqlite_cli.argv("lock", "x", "--", "sh", "-c", "echo ready; exec sleep 60"))
    screen.expect("ready")
    screen.type("\x03")
    # Ended by the signal itself, from which a shell concludes that it must not run the next line.
    assert screen.process.wait(PATIENCE) == -signal.SIGINT
    assert sqlite_cli.is_free("x")


def test_ctrl_c_stops_the_calling_script(sqlite_cli, open_screen):
    script = sqlite_cli.folder / "script"
    line = shlex.join(sqlite_cli.argv("lock", "x", "--", "sh", "-c", "echo ready; exec sleep 60"))
    script.write_text(f"{line}\necho went on\n")
    screen = open_screen("bash", str(script))
    screen.expect("ready")
    screen.type("\x03")
    assert screen.process.wait(PATIENCE) == -signal.SIGINT
    assert "went on" not in screen.drain()


def test_ctrl_c_reaches_a_command_in_a_pipeline_once(sqlite_cli, open_screen):
    program = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGINT, lambda *_: sys.exit('interrupt'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    line = shlex.join(sqlite_cli.argv("lock", "x", "--", sys.executable, "-c", program))
    pager = "trap '' INT; cat"
    screen = open_screen("bash", "-c", f"{line} | sh -c {shlex.quote(pager)}; echo codes ${{PIPESTATUS[*]}}")
    screen.expect("ready")
    screen.type("\x03")
    screen.expect("interrupt")
    screen.process.wait(PATIENCE)
    assert "interrupt" not in screen.drain()
    assert sqlite_cli.is_free("x")


def test_a_command_in_a_pipeline_can_read_from_the_terminal(sqlite_cli, open_screen):
    ask = "printf 'password? ' >/dev/tty; read line </dev/tty; echo got $line"
    line = shlex.join(sqlite_cli.argv("lock", "x", "--", "sh", "-c", ask))
    screen = open_screen("bash", "-c", f"{line} | cat; echo codes ${{PIPESTATUS[*]}}")
    screen.expect(r"password\? ")
    screen.type("secret\n")
    screen.expect("got secret")
    screen.expect("codes 0 0")


@pytest.mark.slow
def test_ctrl_z_and_fg_work_as_without_backstay(sqlite_cli, open_screen):
    screen = open_screen("bash", "--norc", "--noprofile", "-i")
    screen.expect("prompt> ")
    program = "print('ready', flush=True)\nwhile (line := input()) != 'end': print('read', line, flush=True)"
    screen.type(shlex.join(sqlite_cli.argv("lock", "x", "--", sys.executable, "-c", program)) + "\n")
    screen.expect("ready\r\n")
    for turn in range(2):
        screen.type("\x1a")
        screen.expect("Stopped")
        screen.expect("prompt> ")
        screen.type(f"fg\nturn {turn}\n")
        screen.expect(f"read turn {turn}")
    screen.type("end\n")
    screen.expect("prompt> ")
    screen.type("echo code $?\n")
    screen.expect("code 0")
    assert sqlite_cli.is_free("x")
    screen.type("exit\n")


@pytest.mark.timed
@pytest.mark.slow
def test_a_lease_that_expired_while_stopped_ends_the_command(sqlite_cli, open_screen):
    screen = open_screen("bash", "--norc", "--noprofile", "-i")
    screen.expect("prompt> ")
    program = "print('ready', flush=True); print('read', input(), flush=True)"
    argv = sqlite_cli.argv("lock", "x", "--ttl", "1", "--", sys.executable, "-c", program)
    screen.type(shlex.join(argv) + "\n")
    screen.expect("ready\r\n")
    screen.type("\x1a")
    screen.expect("Stopped")
    screen.expect("prompt> ")
    eventually(lambda: sqlite_cli.is_free("x"), "the lock has run out")
    screen.type("fg\n")
    screen.expect("was lost: .*Terminating the command")
    screen.expect("prompt> ")
    screen.type("echo code $?\n")
    screen.expect("code 76")
    screen.type("exit\n")


@pytest.mark.slow
def test_a_background_job_that_reads_the_terminal_stops_until_fg(sqlite_cli, open_screen):
    screen = open_screen("bash", "--norc", "--noprofile", "-i")
    screen.expect("prompt> ")
    argv = sqlite_cli.argv("lock", "x", "--", sys.executable, "-c", "print('read', input(), flush=True)")
    screen.type(shlex.join(argv) + " &\n")
    screen.expect("prompt> ")
    # bash reports stopped jobs only before its next prompt.
    eventually(lambda: screen.type_and_find("\n", "Stopped"), "the job has stopped")
    screen.type("fg\n")
    screen.expect("backstay lock x")
    screen.type("hello\n")
    screen.expect("read hello")
    screen.expect("prompt> ")
    assert sqlite_cli.is_free("x")
    screen.type("exit\n")


def test_a_full_screen_program_works(sqlite_cli, open_screen):
    program = (
        "import os, sys, termios, tty\n"
        "tty.setraw(0)\n"
        "os.write(1, b'raw')\n"
        "key = os.read(0, 1)\n"
        "os.write(1, b'key %d' % key[0])\n"
        "sys.exit(key[0])"
    )
    screen = open_screen(*sqlite_cli.argv("lock", "x", "--", sys.executable, "-c", program))
    screen.expect("raw")
    screen.type("\x03")  # a raw terminal sends no signal
    screen.expect("key 3")
    assert screen.process.wait(PATIENCE) == 3


def test_the_wait_shows_a_status_line(sqlite_cli, open_screen):
    holder = sqlite_cli.holding("x", "--workflow-name", "Nightly", script="read line")
    screen = open_screen(*sqlite_cli.argv("lock", "x", "--", "echo", "granted"))
    screen.expect(r"waiting for 'x': position 1, held by Nightly \(")
    end_input(holder)
    screen.expect("granted")
    assert screen.process.wait(PATIENCE) == 0


def test_ctrl_c_while_waiting_leaves_the_queue(sqlite_cli, open_screen):
    sqlite_cli.holding("x")
    screen = open_screen(*sqlite_cli.argv("lock", "x", "--", "echo", "never"))
    screen.expect("waiting for 'x'")
    screen.type("\x03")
    assert screen.process.wait(PATIENCE) == 130
    assert "Traceback" not in screen.drain()
    assert sqlite_cli.inspect("x").waiter_count == 0


@pytest.mark.parametrize(("answer", "code", "held"), [("n", 1, True), ("y", 0, False)])
def test_force_asks_on_a_terminal(sqlite_cli, open_screen, answer, code, held):
    sqlite_cli.backstay.lock("x", renew=False).acquire(workflow_name="Nightly", execution_id="run-1")
    screen = open_screen(*sqlite_cli.argv("locks", "release", "x", "--force"))
    screen.expect(r"Release 'x', held by Nightly \(run-1\)\?")
    screen.type(f"{answer}\n")
    assert screen.process.wait(PATIENCE) == code
    assert sqlite_cli.inspect("x").held is held


def test_yes_does_not_ask(sqlite_cli, open_screen):
    sqlite_cli.backstay.lock("x", renew=False).acquire()
    screen = open_screen(*sqlite_cli.argv("locks", "release", "x", "--force", "--yes"))
    screen.expect("The fence is now")
    assert screen.process.wait(PATIENCE) == 0
    assert sqlite_cli.is_free("x")
