"""Command execution: scripts, shells, directories, steps and outputs."""

from __future__ import annotations

import asyncio
import time

import pytest
from command_run import CommandRun, run_failing, wait_exited

from backstay.errors import ConfigError
from backstay.testing.waiting import soon
from backstay.workflow.command.pump import HIGH_WATER, READ
from backstay.workflow.command.spec import Step
from support.event_loop import on_a_worker_loop


@on_a_worker_loop
async def test_stdout_and_stderr_are_stored_as_separate_streams():
    ran = await CommandRun("echo out; echo err >&2").run()
    assert (ran.text("stdout"), ran.text("stderr")) == ("out\n", "err\n")


@on_a_worker_loop
async def test_lines_of_both_streams_keep_the_order_of_writing():
    ran = await CommandRun("for i in 1 2 3 4 5; do echo $i; sleep 0.05; echo $i >&2; sleep 0.05; done").run()
    assert ran.text().split() == [str(n) for n in (1, 2, 3, 4, 5) for _ in range(2)]


@on_a_worker_loop
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
@on_a_worker_loop
async def test_a_script_stops_at_the_first_command_that_fails(shell):
    error, ran = await run_failing("echo one\nfalse\necho two", shell=shell)
    assert ran.text("stdout") == "one\n"
    assert str(error) == "exit code 1"
    assert error.exit_code == 1


@on_a_worker_loop
async def test_a_failure_inside_a_pipe_fails_the_script():
    error, _ = await run_failing("false | cat")
    assert error.exit_code == 1


@on_a_worker_loop
async def test_an_unset_variable_fails_the_script():
    error, ran = await run_failing('echo "$NO_SUCH_VARIABLE"')
    assert "NO_SUCH_VARIABLE" in ran.text("stderr")
    assert "NO_SUCH_VARIABLE" in error.output


@on_a_worker_loop
async def test_a_fatal_signal_is_reported_by_name():
    error, _ = await run_failing("kill -SEGV $$")
    assert (str(error), error.signal, error.exit_code) == ("ended by SIGSEGV", "SIGSEGV", None)
    error, _ = await run_failing("bash -c 'kill -KILL $$'")
    assert str(error) == "exit code 137 (SIGKILL)"


@on_a_worker_loop
async def test_other_shells_run_the_script_from_a_file():
    ran = await CommandRun(Step(run="print(6 * 7)", shell="python"), Step(run="hello\n", shell="cat {0}")).run()
    assert ran.text("stdout") == "42\nhello\n"


@pytest.mark.parametrize(("shell", "why"), [("fish", "has no {0}"), ("'x {0}", "cannot be parsed")])
@on_a_worker_loop
async def test_an_invalid_shell_is_refused(shell, why):
    with pytest.raises(ConfigError, match=why):
        await CommandRun("true", shell=shell).run()


@on_a_worker_loop
async def test_a_missing_shell_is_named_in_the_error():
    error, _ = await run_failing("true", shell="no-such-shell {0}")
    assert str(error) == "no-such-shell cannot be started: No such file or directory"


@on_a_worker_loop
async def test_a_script_beyond_the_size_of_an_argument_list_runs():
    ran = await CommandRun("true\n" * 100_000 + "echo end").run()
    assert ran.text() == "end\n"


@on_a_worker_loop
async def test_the_path_variable_of_a_job_applies_to_its_script():
    ran = await CommandRun("echo $PATH", env={"PATH": "/nowhere"}).run()
    assert ran.text() == "/nowhere\n"


@on_a_worker_loop
async def test_standard_input_is_empty():
    assert (await CommandRun("cat; echo done").run()).text() == "done\n"


@on_a_worker_loop
async def test_working_directories_are_relative_to_the_workers_directory(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    ran = await CommandRun(
        "pwd", Step(run="pwd", working_directory="b"), directory=tmp_path, working_directory="a"
    ).run()
    assert ran.text("stdout") == f"{tmp_path}/a\n{tmp_path}/a/b\n"


@on_a_worker_loop
async def test_a_missing_working_directory_is_named():
    error, _ = await run_failing("pwd", working_directory="no/such/place")
    assert "directory 'no/such/place' does not exist" in str(error)


@on_a_worker_loop
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


@on_a_worker_loop
async def test_a_failing_log_store_does_not_stop_the_command():
    ran = CommandRun("head -c 5000000 /dev/zero | tr '\\0' x; echo a=1 >> $BACKSTAY_OUTPUT")

    async def broken(_):
        raise OSError("no room")

    ran.execution._pump._sink = broken
    assert (await ran.run()).outputs == {"a": "1"}


@on_a_worker_loop
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


@on_a_worker_loop
async def test_a_failed_step_with_continue_on_error_is_logged():
    ran = await CommandRun(Step(run="exit 3", continue_on_error=True), Step(run="echo on")).run()
    assert ran.text("stdout") == "on\n"
    assert "step 1 of 2: exit code 3 (the job continues)\n" in ran.text("log")


@on_a_worker_loop
async def test_outputs_of_a_failed_step_with_continue_on_error_are_kept():
    ran = await CommandRun(
        Step(run="echo a=1 >> $BACKSTAY_OUTPUT; exit 3", continue_on_error=True), Step(run="true")
    ).run()
    assert ran.outputs == {"a": "1"}


@on_a_worker_loop
async def test_the_first_failed_step_gives_the_error_of_the_job():
    error, _ = await run_failing("exit 3", Step(run="exit 4", condition="always()"))
    assert error.exit_code == 3


@on_a_worker_loop
async def test_a_step_has_variables_of_its_own():
    ran = await CommandRun(
        Step(run="echo $A $B", env={"B": "step"}), Step(run="echo $A ${B-none}"), env={"A": "job", "HOME": "/"}
    ).run()
    assert ran.text("stdout") == "job step\njob none\n"


@on_a_worker_loop
async def test_background_processes_outlive_their_step_and_end_with_the_job():
    ran = await CommandRun("sleep 300 & echo $!", 'kill -0 "$(jobs -p)" 2>/dev/null || echo still here').run()
    pid = int(ran.text("stdout").split()[0])
    assert "1 process was left running in the background" in ran.text("log")
    assert await wait_exited(pid)


@on_a_worker_loop
async def test_a_background_process_that_keeps_writing_does_not_delay_the_job():
    began = time.monotonic()
    ran = await CommandRun("yes & echo started", "echo next").run()
    assert "next" in ran.text("stdout")
    assert time.monotonic() - began < 20


@on_a_worker_loop
async def test_outputs_come_from_the_file_and_from_lines():
    ran = await CommandRun(
        'echo "version=1.2" >> "$BACKSTAY_OUTPUT"; printf "notes<<END\\na\\nb\\nEND\\n" >> "$BACKSTAY_OUTPUT"',
        "echo '::set-output sha=abc'; echo version=1.3 >> $BACKSTAY_OUTPUT",
    ).run()
    assert ran.outputs == {"version": "1.3", "notes": "a\nb", "sha": "abc"}


@on_a_worker_loop
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
@on_a_worker_loop
async def test_an_output_file_that_was_replaced_or_is_too_large_is_refused(trick, why):
    error, _ = await run_failing(trick)
    assert why in str(error)
