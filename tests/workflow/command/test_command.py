"""Command execution: steps, shells, outputs, environment, secrets, timeouts, and cleanup of processes and files."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from command_run import CommandRun

from backstay.errors import CommandFailed, ConfigError
from backstay.testing.waiting import WITHIN, soon
from backstay.workflow.command.execution import Stopped
from backstay.workflow.command.pump import HIGH_WATER, READ
from backstay.workflow.command.spec import Step
from support.event_loop import awaited


def is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - one line
            return stat.read().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


async def wait_exited(pid: int) -> bool:
    async def look() -> bool:
        return not is_alive(pid)

    return await soon(look)


async def run_failing(*steps: Step | str, **options) -> tuple[CommandFailed, CommandRun]:
    ran = CommandRun(*steps, **options)
    with pytest.raises(CommandFailed) as caught:
        await ran.run()
    return caught.value, ran


# ── scripts ──


@awaited
async def test_stdout_and_stderr_are_stored_as_separate_streams():
    ran = await CommandRun("echo out; echo err >&2").run()
    assert (ran.text("stdout"), ran.text("stderr")) == ("out\n", "err\n")


@awaited
async def test_lines_of_both_streams_keep_the_order_of_writing():
    ran = await CommandRun("for i in 1 2 3 4 5; do echo $i; sleep 0.05; echo $i >&2; sleep 0.05; done").run()
    assert ran.text().split() == [str(n) for n in (1, 2, 3, 4, 5) for _ in range(2)]


@awaited
async def test_output_is_visible_while_the_command_runs():
    ran = CommandRun("printf 'Ready? '; while [ ! -e \"$BACKSTAY_TEMP/go\" ]; do sleep 0.02; done; echo yes")
    task = asyncio.create_task(ran.run())

    async def has_prompted() -> bool:
        return ran.text() == "Ready? "

    assert await soon(has_prompted)
    (ran.execution._directory / "temp" / "go").touch()
    await task
    assert ran.text() == "Ready? yes\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
@awaited
async def test_a_script_stops_at_the_first_command_that_fails(shell):
    error, ran = await run_failing("echo one\nfalse\necho two", shell=shell)
    assert ran.text("stdout") == "one\n"
    assert str(error) == "exit code 1"
    assert error.exit_code == 1


@awaited
async def test_a_failure_inside_a_pipe_fails_the_script():
    error, _ = await run_failing("false | cat")
    assert error.exit_code == 1


@awaited
async def test_an_unset_variable_fails_the_script():
    error, ran = await run_failing('echo "$NO_SUCH_VARIABLE"')
    assert "NO_SUCH_VARIABLE" in ran.text("stderr")
    assert "NO_SUCH_VARIABLE" in error.output


@awaited
async def test_a_fatal_signal_is_reported_by_name():
    error, _ = await run_failing("kill -SEGV $$")
    assert (str(error), error.signal, error.exit_code) == ("ended by SIGSEGV", "SIGSEGV", None)
    error, _ = await run_failing("bash -c 'kill -KILL $$'")
    assert str(error) == "exit code 137 (SIGKILL)"


@awaited
async def test_other_shells_run_the_script_from_a_file():
    ran = await CommandRun(Step(run="print(6 * 7)", shell="python"), Step(run="hello\n", shell="cat {0}")).run()
    assert ran.text("stdout") == "42\nhello\n"


@pytest.mark.parametrize(("shell", "why"), [("fish", "has no {0}"), ("'x {0}", "cannot be parsed")])
@awaited
async def test_an_invalid_shell_is_refused(shell, why):
    with pytest.raises(ConfigError, match=why):
        await CommandRun("true", shell=shell).run()


@awaited
async def test_a_missing_shell_is_named_in_the_error():
    error, _ = await run_failing("true", shell="no-such-shell {0}")
    assert str(error) == "no-such-shell cannot be started: No such file or directory"


@awaited
async def test_a_script_beyond_the_size_of_an_argument_list_runs():
    ran = await CommandRun("true\n" * 100_000 + "echo end").run()
    assert ran.text() == "end\n"


@awaited
async def test_the_path_variable_of_a_job_applies_to_its_script():
    ran = await CommandRun("echo $PATH", env={"PATH": "/nowhere"}).run()
    assert ran.text() == "/nowhere\n"


@awaited
async def test_standard_input_is_empty():
    assert (await CommandRun("cat; echo done").run()).text() == "done\n"


@awaited
async def test_working_directories_are_relative_to_the_workers_directory(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    ran = await CommandRun(
        "pwd", Step(run="pwd", working_directory="b"), directory=tmp_path, working_directory="a"
    ).run()
    assert ran.text("stdout") == f"{tmp_path}/a\n{tmp_path}/a/b\n"


@awaited
async def test_a_missing_working_directory_is_named():
    error, _ = await run_failing("pwd", working_directory="no/such/place")
    assert "directory 'no/such/place' does not exist" in str(error)


@awaited
async def test_a_command_that_outruns_its_log_store_is_throttled():
    ran = CommandRun("head -c 20000000 /dev/zero | tr '\\0' x")
    most = 0

    async def slow(chunks):
        nonlocal most
        await asyncio.sleep(0.01)
        waiting = ran.execution._pump.streams.size
        most = max(most, waiting + sum(len(chunk.data) for chunk in chunks))
        ran.chunks += chunks

    ran.execution._pump._sink = slow
    await ran.run()
    assert sum(len(chunk.data) for chunk in ran.chunks) == 20_000_000
    assert most <= 2 * (HIGH_WATER + READ), "never more than two batches"


@awaited
async def test_a_failing_log_store_does_not_stop_the_command():
    ran = CommandRun("head -c 5000000 /dev/zero | tr '\\0' x; echo a=1 >> $BACKSTAY_OUTPUT")

    async def broken(_):
        raise OSError("no room")

    ran.execution._pump._sink = broken
    assert (await ran.run()).outputs == {"a": "1"}


# ── steps ──


@awaited
async def test_after_a_failed_step_only_failure_and_always_steps_run():
    error, ran = await run_failing(
        "echo one",
        Step(run="exit 3", name="break"),
        "echo never",
        Step(run="echo on failure", condition="failure()"),
        Step(run="echo always", condition="${{ always() }}"),
        Step(run="echo not after failure", condition="success()"),
    )
    assert ran.text("stdout") == "one\non failure\nalways\n"
    assert str(error) == "step 2 of 6 (break): exit code 3"
    assert error.step == "step 2 of 6 (break)"


@awaited
async def test_a_failed_step_with_continue_on_error_is_logged():
    ran = await CommandRun(Step(run="exit 3", continue_on_error=True), Step(run="echo on")).run()
    assert ran.text("stdout") == "on\n"
    assert "step 1 of 2: exit code 3 (the job goes on)\n" in ran.text("log")


@awaited
async def test_outputs_of_a_failed_step_with_continue_on_error_are_kept():
    ran = await CommandRun(
        Step(run="echo a=1 >> $BACKSTAY_OUTPUT; exit 3", continue_on_error=True), Step(run="true")
    ).run()
    assert ran.outputs == {"a": "1"}


@awaited
async def test_the_first_failed_step_gives_the_error_of_the_job():
    error, _ = await run_failing("exit 3", Step(run="exit 4", condition="always()"))
    assert error.exit_code == 3


@awaited
async def test_a_step_has_variables_of_its_own():
    ran = await CommandRun(
        Step(run="echo $A $B", env={"B": "step"}), Step(run="echo $A ${B-none}"), env={"A": "job", "HOME": "/"}
    ).run()
    assert ran.text("stdout") == "job step\njob none\n"


@awaited
async def test_background_processes_outlive_their_step_and_end_with_the_job():
    ran = await CommandRun("sleep 300 & echo $!", 'kill -0 "$(jobs -p)" 2>/dev/null || echo still here').run()
    pid = int(ran.text("stdout").split()[0])
    assert "1 process was left running in the background" in ran.text("log")
    assert await wait_exited(pid)


@awaited
async def test_a_background_process_that_keeps_writing_does_not_delay_the_job():
    began = time.monotonic()
    ran = await CommandRun("yes & echo started", "echo next").run()
    assert "next" in ran.text("stdout")
    assert time.monotonic() - began < 20


# ── outputs ──


@awaited
async def test_outputs_come_from_the_file_and_from_lines():
    ran = await CommandRun(
        'echo "version=1.2" >> "$BACKSTAY_OUTPUT"; printf "notes<<END\\na\\nb\\nEND\\n" >> "$BACKSTAY_OUTPUT"',
        "echo '::set-output sha=abc'; echo version=1.3 >> $BACKSTAY_OUTPUT",
    ).run()
    assert ran.outputs == {"version": "1.3", "notes": "a\nb", "sha": "abc"}


@awaited
async def test_a_bad_output_line_fails_the_step_and_is_named():
    error, _ = await run_failing("echo 'no output' >> $BACKSTAY_OUTPUT")
    assert "its outputs cannot be read: line 1 of BACKSTAY_OUTPUT: 'no output' is not an output" in str(error)


@pytest.mark.parametrize(
    ("trick", "why"),
    [
        ("rm $BACKSTAY_OUTPUT", "cannot be read: No such file"),
        ("ln -sf /etc/passwd $BACKSTAY_OUTPUT", "cannot be read: Too many levels of symbolic links"),
        ("rm $BACKSTAY_OUTPUT; mkfifo $BACKSTAY_OUTPUT", "it is no longer a regular file"),
        ("rm $BACKSTAY_OUTPUT; mkdir $BACKSTAY_OUTPUT", "it is no longer a regular file"),
        ("head -c 2000000 /dev/zero > $BACKSTAY_OUTPUT", "at most 1048576 are allowed"),
    ],
)
@awaited
async def test_an_output_file_that_was_replaced_or_is_too_large_is_refused(trick, why):
    error, _ = await run_failing(trick)
    assert why in str(error)


# ── environment ──


@awaited
async def test_the_run_is_described_in_environment_variables():
    ran = await CommandRun(
        'echo "$INPUT_DEPLOY_TO $NEEDS_TEST_3_11_REPORT_URL $BACKSTAY_RUN_ID"; cat "$BACKSTAY_NEEDS_FILE"',
        inputs={"deploy-to": "prod"},
        needs={"test (3.11)": {"report.url": "http://x"}},
        given={"BACKSTAY_RUN_ID": "0-1"},
    ).run()
    assert ran.text("stdout").startswith("prod http://x 0-1\n")
    assert '"report.url": "http://x"' in ran.text("stdout")


@awaited
async def test_commands_do_not_inherit_the_workers_secrets():
    environ = {
        "PATH": os.environ["PATH"],
        "BACKSTAY_URL": "redis://:hunter22@127.0.0.1/0",
        "GITHUB_TOKEN": "t0ken",
        "DB_PASSWORD": "hunter22",
        "PROXY": "http://user:pass@proxy",
        "JAVA_HOME": "/java",
        "OTHER": "1",
    }
    plain = await CommandRun("env", environ=environ).run()
    names = {line.partition("=")[0] for line in plain.text().splitlines()}
    assert not names & {"BACKSTAY_URL", "GITHUB_TOKEN", "DB_PASSWORD", "PROXY", "JAVA_HOME", "OTHER"}
    everything = await CommandRun("env", environ=environ, wanted=["*"]).run()
    names = {line.partition("=")[0] for line in everything.text().splitlines()}
    assert names >= {"JAVA_HOME", "OTHER"}
    assert not names & {"BACKSTAY_URL", "GITHUB_TOKEN", "DB_PASSWORD", "PROXY"}
    named = await CommandRun("env", environ=environ, wanted=["DB_PASSWORD"], secrets=["hunter22"]).run()
    assert "DB_PASSWORD=***\n" in named.text()


@awaited
async def test_outputs_too_large_for_variables_are_passed_in_a_file():
    ran = await CommandRun(
        'echo "${NEEDS_A0_K-none}"; wc -c < $BACKSTAY_NEEDS_FILE',
        needs={f"a{n}": {"k": "x" * 60_000} for n in range(20)},
    ).run()
    assert "too large for variables: read $BACKSTAY_NEEDS_FILE" in ran.text("log")
    assert ran.text("stdout").split()[0] == "none"
    assert int(ran.text("stdout").split()[1]) > 1_200_000


@awaited
async def test_needs_that_map_to_the_same_variable_are_refused():
    with pytest.raises(ConfigError, match="would both be the variable NEEDS_A_B_K; rename one"):
        await CommandRun("true", needs={"a-b": {"k": "1"}, "a_b": {"k": "2"}}).run()


# ── secrets ──


@awaited
async def test_secrets_are_hidden_in_logs_outputs_and_errors():
    error, ran = await run_failing(
        "echo hunter22; echo '::add-mask::0ther-secret'; echo 0ther-secret >&2; echo 'x hunter22' >> $BACKSTAY_OUTPUT",
        secrets=["hunter22"],
    )
    for text in (ran.text("stdout", "stderr", "log"), str(error), error.output):
        assert "hunter22" not in text
        assert "0ther-secret" not in text
    ran = await CommandRun("echo 'a=the hunter22' >> $BACKSTAY_OUTPUT", secrets=["hunter22"]).run()
    assert ran.outputs == {"a": "the ***"}


@awaited
async def test_a_secret_that_is_written_in_two_parts_is_hidden():
    ran = await CommandRun("printf hunt; sleep 0.6; echo er22", secrets=["hunter22"]).run()
    assert ran.text() == "***\n"


# ── termination ──


@awaited
async def test_a_step_past_its_timeout_is_stopped_with_its_children():
    error, ran = await run_failing(
        Step(run="sleep 300 & echo $!; wait", timeout=0.3), Step(run="true", condition="always()")
    )
    assert "it exceeded its timeout of 0.3 s" in str(error)
    assert await wait_exited(int(ran.text("stdout")))


@awaited
async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace():
    ran = CommandRun("trap '' TERM; echo $$; while true; do sleep 0.1; done", grace=0.3)
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    began = time.monotonic()
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert 0.25 < time.monotonic() - began < WITHIN
    assert await wait_exited(int(ran.text("stdout")))


@awaited
async def test_a_command_can_clean_up_when_it_is_stopped():
    ran = CommandRun("trap 'echo tidied; exit 0' TERM; echo ready; while true; do sleep 0.05; done")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert ran.text("stdout") == "ready\ntidied\n"


@awaited
async def test_a_process_suspended_by_sigstop_is_ended():
    ran = CommandRun("echo $$; kill -STOP $$")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert await wait_exited(int(ran.text("stdout")))


@awaited
async def test_a_cancelled_execution_leaves_no_process_or_directory_behind():
    ran = CommandRun("sleep 300 & echo $$ $!; wait")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in ran.text("stdout").split():
        assert await wait_exited(int(pid))
    assert not ran.execution._directory.exists()


@awaited
async def test_a_command_that_kills_its_own_group_has_failed_and_the_next_step_runs():
    error, ran = await run_failing("kill -KILL 0", Step(run="echo after", condition="always()"))
    assert error.signal == "SIGKILL"
    assert ran.text("stdout") == "after\n"


@awaited
async def test_nothing_is_left_in_the_temporary_directory():
    ran = await CommandRun('mkdir "$BACKSTAY_TEMP/x"; touch "$BACKSTAY_TEMP/x/y"; echo "$BACKSTAY_TEMP"').run()
    assert not os.path.exists(ran.text().strip())  # noqa: PTH110, ASYNC240 - one look
