"""Commands run as their steps say: fail-fast, with outputs, environment and time limits, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import time

import pytest
from awaited import awaited
from executing import Ran

from backstay.errors import CommandFailed, ConfigError
from backstay.testing.waiting import WITHIN, soon
from backstay.workflow.command.execution import Stopped
from backstay.workflow.command.pump import HIGH, READ
from backstay.workflow.command.spec import Step


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:  # noqa: PTH123 - one line
            return stat.read().rpartition(b")")[2].split()[0] not in b"ZX"
    except OSError:
        return False


async def gone(pid: int) -> bool:
    async def look() -> bool:
        return not alive(pid)

    return await soon(look)


async def failing(*steps: Step | str, **options) -> tuple[CommandFailed, Ran]:
    ran = Ran(*steps, **options)
    with pytest.raises(CommandFailed) as caught:
        await ran.run()
    return caught.value, ran


# ── scripts ──


@awaited
async def test_both_streams_are_kept_under_their_names():
    ran = await Ran("echo out; echo err >&2").run()
    assert (ran.text("stdout"), ran.text("stderr")) == ("out\n", "err\n")


@awaited
async def test_lines_come_in_the_order_in_which_they_were_written():
    ran = await Ran("for i in 1 2 3 4 5; do echo $i; sleep 0.05; echo $i >&2; sleep 0.05; done").run()
    assert ran.text().split() == [str(n) for n in (1, 2, 3, 4, 5) for _ in range(2)]


@awaited
async def test_output_is_seen_while_the_command_runs():
    ran = Ran("printf 'Ready? '; while [ ! -e \"$BACKSTAY_TEMP/go\" ]; do sleep 0.02; done; echo yes")
    task = asyncio.create_task(ran.run())

    async def asked() -> bool:
        return ran.text() == "Ready? "

    assert await soon(asked)
    (ran.execution._directory / "temp" / "go").touch()
    await task
    assert ran.text() == "Ready? yes\n"


@pytest.mark.parametrize("shell", ["bash", "sh"])
@awaited
async def test_a_script_stops_at_the_first_command_that_fails(shell):
    error, ran = await failing("echo one\nfalse\necho two", shell=shell)
    assert ran.text("stdout") == "one\n"
    assert str(error) == "exit code 1"
    assert error.exit_code == 1


@awaited
async def test_a_failure_in_the_middle_of_a_pipe_counts():
    error, _ = await failing("false | cat")
    assert error.exit_code == 1


@awaited
async def test_a_variable_that_is_not_set_is_a_failure():
    error, ran = await failing('echo "$NO_SUCH_VARIABLE"')
    assert "NO_SUCH_VARIABLE" in ran.text("stderr")
    assert "NO_SUCH_VARIABLE" in error.output


@awaited
async def test_a_signal_is_told_by_its_name():
    error, _ = await failing("kill -SEGV $$")
    assert (str(error), error.signal, error.exit_code) == ("ended by SIGSEGV", "SIGSEGV", None)
    error, _ = await failing("bash -c 'kill -KILL $$'")
    assert str(error) == "exit code 137 (SIGKILL)"


@awaited
async def test_other_shells_run_the_script_from_a_file():
    ran = await Ran(Step(run="print(6 * 7)", shell="python"), Step(run="hello\n", shell="cat {0}")).run()
    assert ran.text("stdout") == "42\nhello\n"


@pytest.mark.parametrize(("shell", "why"), [("fish", "has no {0}"), ("'x {0}", "cannot be read")])
@awaited
async def test_a_shell_that_is_not_known_is_refused(shell, why):
    with pytest.raises(ConfigError, match=why):
        await Ran("true", shell=shell).run()


@awaited
async def test_a_shell_that_is_not_there_is_a_failure_that_names_it():
    error, _ = await failing("true", shell="no-such-shell {0}")
    assert str(error) == "no-such-shell cannot be started: No such file or directory"


@awaited
async def test_a_long_script_is_no_argument_and_so_no_problem():
    ran = await Ran("true\n" * 100_000 + "echo end").run()
    assert ran.text() == "end\n"


@awaited
async def test_the_path_of_a_job_is_for_its_script():
    ran = await Ran("echo $PATH", env={"PATH": "/nowhere"}).run()
    assert ran.text() == "/nowhere\n"


@awaited
async def test_standard_input_is_empty():
    assert (await Ran("cat; echo done").run()).text() == "done\n"


@awaited
async def test_the_directory_is_the_workers_unless_said_otherwise(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    ran = await Ran("pwd", Step(run="pwd", working_directory="b"), directory=tmp_path, working_directory="a").run()
    assert ran.text("stdout") == f"{tmp_path}/a\n{tmp_path}/a/b\n"


@awaited
async def test_a_directory_that_is_not_there_is_named():
    error, _ = await failing("pwd", working_directory="no/such/place")
    assert "there is no directory 'no/such/place'" in str(error)


@awaited
async def test_a_command_that_writes_faster_than_its_log_is_kept_waits():
    ran = Ran("head -c 20000000 /dev/zero | tr '\\0' x")
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
    assert most <= 2 * (HIGH + READ), "never more than two batches"


@awaited
async def test_a_log_that_cannot_be_kept_does_not_stop_the_command():
    ran = Ran("head -c 5000000 /dev/zero | tr '\\0' x; echo a=1 >> $BACKSTAY_OUTPUT")

    async def broken(_):
        raise OSError("no room")

    ran.execution._pump._sink = broken
    assert (await ran.run()).outputs == {"a": "1"}


# ── steps ──


@awaited
async def test_a_step_that_fails_ends_the_job_except_for_steps_that_want_to_know():
    error, ran = await failing(
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
async def test_a_step_whose_failure_does_not_matter_is_noted():
    ran = await Ran(Step(run="exit 3", continue_on_error=True), Step(run="echo on")).run()
    assert ran.text("stdout") == "on\n"
    assert "step 1 of 2: exit code 3 (the job goes on)\n" in ran.text("log")


@awaited
async def test_outputs_of_a_step_that_failed_count_when_that_does_not_matter():
    ran = await Ran(Step(run="echo a=1 >> $BACKSTAY_OUTPUT; exit 3", continue_on_error=True), Step(run="true")).run()
    assert ran.outputs == {"a": "1"}


@awaited
async def test_the_first_failure_is_the_jobs():
    error, _ = await failing("exit 3", Step(run="exit 4", condition="always()"))
    assert error.exit_code == 3


@awaited
async def test_a_step_has_variables_of_its_own():
    ran = await Ran(
        Step(run="echo $A $B", env={"B": "step"}), Step(run="echo $A ${B-none}"), env={"A": "job", "HOME": "/"}
    ).run()
    assert ran.text("stdout") == "job step\njob none\n"


@awaited
async def test_steps_share_their_background_processes_which_end_with_the_job():
    ran = await Ran("sleep 300 & echo $!", 'kill -0 "$(jobs -p)" 2>/dev/null || echo still here').run()
    pid = int(ran.text("stdout").split()[0])
    assert "1 process was left in the background" in ran.text("log")
    assert await gone(pid)


@awaited
async def test_a_background_process_that_keeps_writing_does_not_hold_up_the_job():
    began = time.monotonic()
    ran = await Ran("yes & echo started", "echo next").run()
    assert "next" in ran.text("stdout")
    assert time.monotonic() - began < 20


# ── outputs ──


@awaited
async def test_outputs_come_from_the_file_and_from_lines():
    ran = await Ran(
        'echo "version=1.2" >> "$BACKSTAY_OUTPUT"; printf "notes<<END\\na\\nb\\nEND\\n" >> "$BACKSTAY_OUTPUT"',
        "echo '::set-output sha=abc'; echo version=1.3 >> $BACKSTAY_OUTPUT",
    ).run()
    assert ran.outputs == {"version": "1.3", "notes": "a\nb", "sha": "abc"}


@awaited
async def test_a_bad_output_line_fails_the_step_and_is_named():
    error, _ = await failing("echo 'no output' >> $BACKSTAY_OUTPUT")
    assert "its outputs cannot be read: line 1 of BACKSTAY_OUTPUT: 'no output' is no output" in str(error)


@pytest.mark.parametrize(
    ("trick", "why"),
    [
        ("rm $BACKSTAY_OUTPUT", "cannot be read: No such file"),
        ("ln -sf /etc/passwd $BACKSTAY_OUTPUT", "cannot be read: Too many levels of symbolic links"),
        ("rm $BACKSTAY_OUTPUT; mkfifo $BACKSTAY_OUTPUT", "it is no longer a file"),
        ("rm $BACKSTAY_OUTPUT; mkdir $BACKSTAY_OUTPUT", "it is no longer a file"),
        ("head -c 2000000 /dev/zero > $BACKSTAY_OUTPUT", "at most 1048576 are read"),
    ],
)
@awaited
async def test_a_file_that_was_exchanged_or_is_too_large_is_refused(trick, why):
    error, _ = await failing(trick)
    assert why in str(error)


# ── environment ──


@awaited
async def test_the_run_is_told_in_variables():
    ran = await Ran(
        'echo "$INPUT_DEPLOY_TO $NEEDS_TEST_3_11_REPORT_URL $BACKSTAY_RUN_ID"; cat "$BACKSTAY_NEEDS_FILE"',
        inputs={"deploy-to": "prod"},
        needs={"test (3.11)": {"report.url": "http://x"}},
        given={"BACKSTAY_RUN_ID": "0-1"},
    ).run()
    assert ran.text("stdout").startswith("prod http://x 0-1\n")
    assert '"report.url": "http://x"' in ran.text("stdout")


@awaited
async def test_the_workers_secrets_stay_with_the_worker():
    environ = {
        "PATH": os.environ["PATH"],
        "BACKSTAY_URL": "redis://:hunter22@127.0.0.1/0",
        "GITHUB_TOKEN": "t0ken",
        "DB_PASSWORD": "hunter22",
        "PROXY": "http://user:pass@proxy",
        "JAVA_HOME": "/java",
        "OTHER": "1",
    }
    plain = await Ran("env", environ=environ).run()
    names = {line.partition("=")[0] for line in plain.text().splitlines()}
    assert not names & {"BACKSTAY_URL", "GITHUB_TOKEN", "DB_PASSWORD", "PROXY", "JAVA_HOME", "OTHER"}
    everything = await Ran("env", environ=environ, wanted=["*"]).run()
    names = {line.partition("=")[0] for line in everything.text().splitlines()}
    assert names >= {"JAVA_HOME", "OTHER"}
    assert not names & {"BACKSTAY_URL", "GITHUB_TOKEN", "DB_PASSWORD", "PROXY"}
    named = await Ran("env", environ=environ, wanted=["DB_PASSWORD"], secrets=["hunter22"]).run()
    assert "DB_PASSWORD=***\n" in named.text()


@awaited
async def test_outputs_that_are_too_large_for_variables_are_in_a_file():
    ran = await Ran(
        'echo "${NEEDS_A0_K-none}"; wc -c < $BACKSTAY_NEEDS_FILE',
        needs={f"a{n}": {"k": "x" * 60_000} for n in range(20)},
    ).run()
    assert "too large for variables: read $BACKSTAY_NEEDS_FILE" in ran.text("log")
    assert ran.text("stdout").split()[0] == "none"
    assert int(ran.text("stdout").split()[1]) > 1_200_000


@awaited
async def test_two_parents_that_would_have_one_variable_are_refused():
    with pytest.raises(ConfigError, match="would both be the variable NEEDS_A_B_K; rename one"):
        await Ran("true", needs={"a-b": {"k": "1"}, "a_b": {"k": "2"}}).run()


# ── secrets ──


@awaited
async def test_secrets_are_hidden_in_logs_outputs_and_errors():
    error, ran = await failing(
        "echo hunter22; echo '::add-mask::0ther-secret'; echo 0ther-secret >&2; echo 'x hunter22' >> $BACKSTAY_OUTPUT",
        secrets=["hunter22"],
    )
    for text in (ran.text("stdout", "stderr", "log"), str(error), error.output):
        assert "hunter22" not in text
        assert "0ther-secret" not in text
    ran = await Ran("echo 'a=the hunter22' >> $BACKSTAY_OUTPUT", secrets=["hunter22"]).run()
    assert ran.outputs == {"a": "the ***"}


@awaited
async def test_a_secret_that_is_written_in_two_parts_is_hidden():
    ran = await Ran("printf hunt; sleep 0.6; echo er22", secrets=["hunter22"]).run()
    assert ran.text() == "***\n"


# ── ends ──


@awaited
async def test_a_step_that_takes_too_long_is_ended_with_its_children():
    error, ran = await failing(
        Step(run="sleep 300 & echo $!; wait", timeout=0.3), Step(run="true", condition="always()")
    )
    assert "it ran longer than its timeout of 0.3 s" in str(error)
    assert await gone(int(ran.text("stdout")))


@awaited
async def test_a_command_that_ignores_sigterm_is_killed_after_the_grace():
    ran = Ran("trap '' TERM; echo $$; while true; do sleep 0.1; done", grace=0.3)
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    began = time.monotonic()
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert 0.25 < time.monotonic() - began < WITHIN
    assert await gone(int(ran.text("stdout")))


@awaited
async def test_a_command_may_tidy_up_when_it_is_stopped():
    ran = Ran("trap 'echo tidied; exit 0' TERM; echo ready; while true; do sleep 0.05; done")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert ran.text("stdout") == "ready\ntidied\n"


@awaited
async def test_a_stopped_process_is_ended_all_the_same():
    ran = Ran("echo $$; kill -STOP $$")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    ran.execution.stop()
    with pytest.raises(Stopped):
        await task
    assert await gone(int(ran.text("stdout")))


@awaited
async def test_a_task_that_is_cancelled_leaves_nothing_behind():
    ran = Ran("sleep 300 & echo $$ $!; wait")
    task = asyncio.create_task(ran.run())
    assert await soon(lambda: asyncio.sleep(0, bool(ran.text())))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for pid in ran.text("stdout").split():
        assert await gone(int(pid))
    assert not ran.execution._directory.exists()


@awaited
async def test_a_command_that_kills_its_own_group_has_failed_and_the_next_step_runs():
    error, ran = await failing("kill -KILL 0", Step(run="echo after", condition="always()"))
    assert error.signal == "SIGKILL"
    assert ran.text("stdout") == "after\n"


@awaited
async def test_nothing_is_left_in_the_temporary_directory():
    ran = await Ran('mkdir "$BACKSTAY_TEMP/x"; touch "$BACKSTAY_TEMP/x/y"; echo "$BACKSTAY_TEMP"').run()
    assert not os.path.exists(ran.text().strip())  # noqa: PTH110, ASYNC240 - one look
