"""`backstay lock` ends its command when the lease is lost or when backstay itself is killed."""

import os
import signal

import pytest

from backstay.testing.plugin import start_or_skip
from backstay.testing.servers import RedisServer
from support.command_line import end_input, eventually, finish
from support.programs import is_alive

pytestmark = pytest.mark.slow

LOOP = "while :; do sleep 0.02; done"


def test_a_lost_lease_ends_the_command(cli):
    process = cli.holding("x", "--ttl", "3")
    forced = cli.call("locks", "release", "x", "--force")
    assert forced.exit_code == 0
    code, _, err = finish(process)
    assert code == 76
    assert err.startswith("backstay: lease ")
    assert "was lost: the engine no longer knows it. Terminating the command." in err
    assert cli.is_free("x")


def test_the_message_names_the_new_holder(cli):
    process = cli.holding("x", "--ttl", "3")
    cli.call("locks", "release", "x", "--force")
    cli.backstay.lock("x").acquire(wait=0, workflow_name="Successor")
    code, _, err = finish(process)
    assert code == 76
    assert "it is held by Successor" in err
    assert cli.inspect("x").holders[0].workflow_name == "Successor"


def test_a_lost_lease_ends_grandchildren_of_the_command(cli):
    process = cli.holding("x", "--ttl", "3", script="sleep 60 & echo $!; wait")
    grandchild = int(process.stdout.readline())
    cli.call("locks", "release", "x", "--force")
    assert finish(process)[0] == 76
    eventually(lambda: not is_alive(grandchild), "the grandchild has ended")


def test_a_command_that_ignores_sigterm_is_killed_after_the_grace(cli):
    process = cli.holding("x", "--ttl", "3", "--grace", "0.3", setup="trap 'echo ignored' TERM", script=LOOP)
    cli.call("locks", "release", "x", "--force")
    code, out, _ = finish(process)
    assert code == 76
    assert out == "ignored\n"


def test_a_grandchild_that_ignores_sigterm_is_killed_after_the_grace(cli):
    script = f"(trap '' TERM; echo $(exec sh -c 'echo $PPID'); {LOOP}) & wait"
    process = cli.holding("x", "--ttl", "3", "--grace", "0.3", script=script)
    grandchild = int(process.stdout.readline())
    cli.call("locks", "release", "x", "--force")
    assert finish(process)[0] == 76
    eventually(lambda: not is_alive(grandchild), "the grandchild has ended")


def test_a_command_may_handle_sigterm_and_exit_by_itself(cli):
    process = cli.holding("x", "--ttl", "3", setup="trap 'echo bye; exit 0' TERM", script=LOOP)
    cli.call("locks", "release", "x", "--force")
    code, out, _ = finish(process)
    assert (code, out) == (76, "bye\n")


def test_a_loss_detected_at_release_is_reported(cli):
    process = cli.holding("x", script="read line; exit 3")
    cli.call("locks", "release", "x", "--force")
    end_input(process)
    code, _, err = finish(process)
    assert code == 76
    assert "the engine no longer knew it when the command ended. The command had ended with 3." in err


@pytest.mark.redis
@pytest.mark.chaos
def test_an_engine_outage_longer_than_the_ttl_ends_the_command(sqlite_cli):
    server = start_or_skip(RedisServer())
    try:
        sqlite_cli.url = server.url
        process = sqlite_cli.holding("x", "--ttl", "3")
        server.kill()
        code, _, err = finish(process)
        assert code == 76
        assert "it expired before it could be renewed" in err
        assert "Traceback" not in err
    finally:
        server.stop()


@pytest.mark.redis
@pytest.mark.chaos
def test_a_failed_release_is_reported_and_the_exit_code_passed_on(sqlite_cli):
    server = start_or_skip(RedisServer())
    try:
        sqlite_cli.url = server.url
        process = sqlite_cli.holding("x", script="read line; exit 3")
        server.kill()
        process.stdin.write("go\n")
        process.stdin.flush()
        code, _, err = finish(process)
        assert code == 3
        assert "'x' could not be released; its lease will expire" in err
        assert "Traceback" not in err
    finally:
        server.stop()


@pytest.mark.chaos
def test_killing_backstay_ends_the_command_and_the_lock_expires(cli):
    process = cli.holding("x", "--ttl", "2", script="sleep 60 & echo $$ $!; wait")
    child, grandchild = map(int, process.stdout.readline().split())
    process.kill()
    process.wait()
    eventually(lambda: not is_alive(child) and not is_alive(grandchild), "the command has ended")
    eventually(lambda: cli.is_free("x"), "the lock has run out")


@pytest.mark.chaos
def test_killing_backstay_ends_a_command_that_ignores_sigterm(cli):
    process = cli.holding("x", "--grace", "0.3", setup="trap '' TERM", script=f"echo $$; {LOOP}")
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    eventually(lambda: not is_alive(child), "the command has ended")


def test_a_process_paused_longer_than_the_ttl_ends_its_command(cli):
    process = cli.holding("x", "--ttl", "2", script="echo $$; exec sleep 60")
    child = int(process.stdout.readline())
    os.kill(process.pid, signal.SIGSTOP)
    eventually(lambda: cli.is_free("x"), "the lock has run out")
    os.kill(process.pid, signal.SIGCONT)
    assert finish(process)[0] == 76
    assert not is_alive(child)
