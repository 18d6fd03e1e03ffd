"""`backstay lock` forwards signals to its command and always releases the lock."""

import os
import signal
import sys

import pytest

from support.command_line import end_input, eventually, finish
from support.programs import is_alive

COUNTING = """
import signal, sys
seen = []
awaited = {getattr(signal, name) for name in sys.argv[1:]} | {signal.SIGALRM}
signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
print("ready", flush=True)
while (number := signal.sigwait(awaited)) != signal.SIGALRM:
    seen.append(signal.Signals(number).name)
    print(*seen, flush=True)
sys.exit(5)
"""
LOOP = "while :; do sleep 0.02; done"
FORWARDED = ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGWINCH", "SIGCONT"]


def test_every_signal_reaches_the_command_once(cli):
    process = cli.start("lock", "x", "--", sys.executable, "-c", COUNTING, *FORWARDED)
    assert process.stdout.readline() == "ready\n"
    for count, name in enumerate(FORWARDED, 1):
        process.send_signal(getattr(signal, name))
        assert process.stdout.readline().split() == FORWARDED[:count]
    assert cli.inspect("x").held
    process.send_signal(signal.SIGALRM)
    assert finish(process)[0] == 5
    assert cli.is_free("x")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_the_command_and_releases_the_lock(cli, name):
    number = getattr(signal, name)
    process = cli.holding("x")
    process.send_signal(number)
    assert finish(process)[0] == 128 + number
    assert cli.is_free("x")


def test_the_lock_is_held_until_the_command_has_ended(cli):
    process = cli.holding("x", setup="trap 'echo bye; read line; exit 9' TERM", script=LOOP)
    process.terminate()
    assert process.stdout.readline() == "bye\n"
    assert cli.inspect("x").held
    process.stdin.write("go\n")
    process.stdin.flush()
    assert finish(process)[0] == 9
    assert cli.is_free("x")


def test_signals_reach_grandchildren(cli):
    process = cli.holding("x", script="sleep 60 & echo $!; wait")
    grandchild = int(process.stdout.readline())
    process.terminate()
    assert finish(process)[0] == 143
    eventually(lambda: not is_alive(grandchild), "the grandchild has ended")


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_while_waiting_leaves_the_queue(cli, name):
    number = getattr(signal, name)
    cli.holding("x")
    waiter = cli.waiting("x", "--", "echo", "never")
    waiter.send_signal(number)
    code, out, err = finish(waiter)
    assert (code, out, err) == (128 + number, "", "")
    assert cli.inspect("x").waiter_count == 0


@pytest.mark.race
@pytest.mark.parametrize("round_", range(5))
def test_a_signal_at_the_moment_of_the_grant_leaves_no_lock(cli, round_):
    holder = cli.holding("x", script="read line")
    waiter = cli.waiting("x", "--", "sleep", "60")
    end_input(holder)
    waiter.terminate()
    assert finish(waiter)[0] == 143
    assert finish(holder)[0] == 1
    assert cli.is_free("x")


def test_ignored_signals_stay_ignored(sqlite_cli):
    nohup = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    script = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN, flush=True); input()"
    process = sqlite_cli.start("lock", "x", "--", sys.executable, "-c", nohup, sys.executable, "-c", script)
    assert process.stdout.readline() == "True\n"
    end_input(process)
    finish(process)
    # The same, with backstay itself under nohup.
    argv = sqlite_cli.argv("lock", "x", "--", "sh", "-c", "echo ready; read line; exit 4")
    import subprocess

    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", nohup, *argv], env=sqlite_cli.environment, text=True, **pipes)
    sqlite_cli.started.append(process)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGHUP)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert finish(process)[0] == 4


def test_a_stopped_command_keeps_its_lock(cli):
    process = cli.holding("x", "--ttl", "2", script="echo $$; exec sleep 60")
    child = int(process.stdout.readline())
    os.kill(child, signal.SIGSTOP)
    before = cli.inspect("x").holders[0].expires_at
    eventually(lambda: cli.inspect("x").holders[0].expires_at > before, "it is renewed")
    os.kill(child, signal.SIGCONT)
    process.terminate()
    assert finish(process)[0] == 143
