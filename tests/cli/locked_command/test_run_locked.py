import json
import subprocess
import sys

import pytest

from backstay.errors import LockHeld
from support.command_line import end_input, finish


def test_the_exit_code_is_passed_on(cli):
    for code in (0, 1, 7, 255):
        assert cli.run("lock", "x", "--", "sh", "-c", f"exit {code}").returncode == code
    assert cli.is_free("x")


def test_a_command_killed_by_a_signal_exits_with_128_plus_its_number(cli):
    assert cli.run("lock", "x", "--", "sh", "-c", "kill -9 $$").returncode == 137
    assert cli.is_free("x")


def test_the_command_gets_its_lock_in_the_environment(cli):
    script = "import json, os; print(json.dumps({k: v for k, v in os.environ.items() if k.startswith('BACKSTAY_')}))"
    done = cli.run("lock", "invoice:42", "--", sys.executable, "-c", script)
    found = json.loads(done.stdout)
    assert found["BACKSTAY_LOCK_NAME"] == "invoice:42"
    assert len(found["BACKSTAY_LOCK_ID"]) == 32
    assert int(found["BACKSTAY_FENCE"]) == cli.inspect("invoice:42").fence > 0


def test_the_lock_is_held_while_the_command_runs(cli):
    process = cli.holding("x", "--execution-id", "run-1", script="read line; exit 3")
    (holder,) = cli.inspect("x").holders
    assert (holder.workflow_name, holder.execution_id) == ("sh", "run-1")
    process.stdin.write("go\n")
    process.stdin.flush()
    assert finish(process)[0] == 3
    assert cli.is_free("x")


def test_standard_input_and_output_are_passed_to_the_command(cli):
    done = cli.run("lock", "x", "--", "cat", input="one\ntwo\n", stdin=None)
    assert (done.stdout, done.stderr) == ("one\ntwo\n", "")


def test_all_arguments_after_two_dashes_are_the_command(cli):
    done = cli.run("lock", "x", "--", "echo", "--ttl", "-v", "--", "--help")
    assert done.stdout == "--ttl -v -- --help\n"


def test_two_processes_exclude_one_another(cli):
    log = cli.folder / "log"
    script = f"echo in >> {log}; sleep 0.05; echo out >> {log}"
    together = [cli.start("lock", "x", "--", "sh", "-c", script) for _ in range(4)]
    assert [finish(p)[0] for p in together] == [0] * 4
    assert log.read_text() == "in\nout\n" * 4
    assert cli.is_free("x")


def test_no_wait_gives_up_at_once_and_names_the_holder(cli):
    cli.holding("x", "--workflow-name", "Nightly", "--execution-id", "run-7")
    done = cli.run("lock", "x", "--no-wait", "--", "true")
    assert done.returncode == 75
    assert done.stderr.startswith("backstay: 'x' was not acquired: it is held by Nightly (run-7) since 20")
    assert cli.inspect("x").waiter_count == 0


def test_waiting_ends_after_the_timeout_and_names_the_holder(cli):
    cli.holding("x", "--workflow-name", "Nightly")
    done = cli.run("lock", "x", "--wait", "0.2s", "--", "true")
    assert done.returncode == 75
    assert "'x' was not acquired within 0.2s: it is held by Nightly" in done.stderr
    assert cli.inspect("x").waiter_count == 0


def test_a_waiter_runs_when_the_holder_has_ended(cli):
    holder = cli.holding("x", script="read line")
    waiter = cli.waiting("x", "--wait", "forever", "--", "echo", "done")
    end_input(holder)
    assert finish(waiter)[:2] == (0, "done\n")


def test_a_semaphore_admits_n_commands(cli):
    cli.holding("gpu", "--semaphore", "2")
    cli.holding("gpu", "--semaphore", "2")
    assert cli.run("lock", "gpu", "--semaphore", "2", "--no-wait", "--", "true").returncode == 75


def test_a_different_number_of_permits_is_refused(cli):
    cli.holding("gpu", "--semaphore", "2")
    done = cli.run("lock", "gpu", "--semaphore", "3", "--", "true")
    assert done.returncode == 2
    assert "all callers of one name must agree" in done.stderr


def test_readers_share_and_a_writer_does_not(cli):
    reader = cli.holding("doc", "--read")
    for side, code in (("--shared", 0), ("--write", 75), ("--exclusive", 75)):
        done = cli.run("lock", "doc", side, "--no-wait", "--", "true")
        assert (side, done.returncode, reader.poll()) == (side, code, None), (done, cli.inspect("doc"))


def test_the_api_and_the_command_line_exclude_one_another(cli):
    cli.holding("x")
    with pytest.raises(LockHeld):
        cli.backstay.lock("x").acquire(wait=0)


def test_a_command_that_cannot_start_takes_no_lock(cli):
    plain = cli.folder / "plain"
    plain.write_text("not a program")
    for program, code, why in (("no-such-program", 127, "not found"), (str(plain), 126, "not executable")):
        done = cli.run("lock", "x", "--", program)
        assert (done.returncode, done.stderr) == (code, f"backstay: cannot run {program}: {why}\n")
    assert cli.inspect("x").fence == 0


def test_a_program_that_exec_refuses_leaves_no_lock(cli):
    broken = cli.folder / "broken"
    broken.write_bytes(b"\x7fELF nonsense")
    broken.chmod(0o755)
    done = cli.run("lock", "x", "--", str(broken))
    assert done.returncode == 126
    assert "Exec format error" in done.stderr
    assert "Traceback" not in done.stderr
    assert cli.is_free("x")


def test_the_command_prints_nothing_by_default(cli):
    end_input(cli.holding("x", script="read line"))
    quiet = cli.run("lock", "x", "--", "true")
    assert (quiet.stdout, quiet.stderr) == ("", "")


def test_verbose_reports_waiting_and_acquiring(cli):
    holder = cli.holding("x", "--workflow-name", "Nightly", script="read line")
    waiter = cli.waiting("x", "-v", "--", "true")
    assert waiter.stderr.readline().startswith("backstay: waiting for 'x': position 1, held by Nightly (")
    end_input(holder)
    code, _, err = finish(waiter)
    assert code == 0
    assert err.startswith("backstay: acquired 'x' after ")


def test_max_hold_ends_a_long_command(cli):
    done = cli.run("lock", "x", "--ttl", "0.5", "--max-hold", "1", "--", "sleep", "60")
    assert done.returncode == 76


def test_a_background_process_does_not_keep_the_lock(cli):
    done = cli.run("lock", "x", "--", "sh", "-c", "sleep 0.2 >/dev/null 2>&1 &")
    assert done.returncode == 0
    assert cli.is_free("x")


def test_standard_output_ends_with_the_command(cli):
    process = cli.start("lock", "x", "--", "true", stdin=subprocess.DEVNULL)
    assert process.stdout.read() == ""
    assert finish(process)[0] == 0
