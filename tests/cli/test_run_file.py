"""`backstay run FILE` runs a workflow locally to its end; the exit code is its result."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import textwrap
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from backstay.cli.root import app
from backstay.cli.views.run_lines import sanitize_line
from backstay.cli.views.run_progress import RunProgress
from backstay.cli.views.run_tree import DEEPEST, nest_jobs
from backstay.testing.waiting import eventually
from backstay.workflow.run import RunDoc, RunJob
from support.programs import is_alive

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "ci.yml"


@pytest.fixture
def flow(tmp_path):
    def write(text: str) -> str:
        file = tmp_path / "flow.yml"
        file.write_text(textwrap.dedent(text))
        return str(file)

    return write


def run(*args: str):
    return CliRunner().invoke(app, ["run", *args])


def outcome(*args: str) -> tuple[int, dict]:
    done = run("--json", *args)
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.slow
def test_the_example_succeeds():
    code, found = outcome(str(EXAMPLE))
    assert code == 0
    assert found["status"] == "success"
    assert {key: job["status"] for key, job in found["jobs"].items()} == {
        "lint": "success",
        "build": "success",
        "test (3.11)": "success",
        "test (3.12)": "success",
        "test (3.13)": "success",
        "publish": "success",
        "release-notes": "success",
        "alarm": "skipped",
    }
    assert found["jobs"]["publish"]["outputs"] == {"url": "https://example.org/demo-1.0.whl"}


@pytest.mark.slow
def test_the_example_with_fail_input_fails_and_runs_the_alarm_job():
    done = run(str(EXAMPLE), "--input", "fail=true", "--input", "version=2.0")
    assert done.exit_code == 1
    assert "compiling 2.0" in done.stdout
    assert "✗ failed after 2 attempts: step 2 of 3 (Test): exit code 1" in done.stdout
    assert re.search(r"│ run \S+ failed\n", done.stdout)
    assert done.stdout.endswith("test (3.13) failed\n")


def test_output_lines_are_prefixed_with_their_job(flow):
    done = run(flow("{name: a, jobs: {one: {run: 'echo hi; printf unfinished'}}}"))
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == ["one │ ▶ started", "one │ hi", "one │ unfinished"]
    assert lines[3].startswith("one │ ✓ completed in ")
    assert lines[4].startswith("a: success after ")


def test_no_logs_hides_the_output_of_jobs(flow):
    done = run(flow("{name: a, jobs: {one: {run: echo hi}}}"), "--no-logs")
    assert "│ hi" not in done.stdout
    assert "started" in done.stdout


def test_a_job_can_be_run_with_only_its_needs(flow):
    file = flow("{name: a, jobs: {one: {run: 'true'}, two: {needs: one, run: 'true'}, three: {run: exit 1}}}")
    code, found = outcome(file, "--job", "two")
    assert code == 0
    assert set(found["jobs"]) == {"one", "two"}
    done = run(file, "--job", "four")
    assert done.exit_code == 2
    assert "there is no job 'four'" in done.stderr


def test_variables_and_inputs_are_passed(flow):
    file = flow(
        """
        name: a
        inputs: {to: {required: true}}
        env: {WHO: nobody}
        jobs:
          one:
            labels: [gpu]
            run: echo "greeting=$WHO $INPUT_TO" >> "$BACKSTAY_OUTPUT"
        """
    )
    code, found = outcome(file, "--env", "WHO=me", "-i", "to=you=all")
    assert code == 0
    assert found["jobs"]["one"]["outputs"] == {"greeting": "me you=all"}
    done = run(file)
    assert done.exit_code != 0
    assert "input 'to' is missing" in done.stderr


def test_independent_jobs_continue_after_a_failure_unless_fail_fast(flow):
    file = flow(
        """
        name: a
        jobs:
          bad: {run: exit 5}
          slow: {run: sleep 1}
          after: {needs: slow, run: 'true'}
        """
    )
    code, found = outcome(file, "-c", "2")
    assert code == 1
    assert found["jobs"]["after"]["status"] == "success"
    assert found["jobs"]["bad"] == found["jobs"]["bad"] | {"status": "failure", "error": "exit code 5"}
    code, found = outcome(file, "-c", "2", "--fail-fast")
    assert code == 1
    assert found["jobs"]["slow"]["status"] == "cancelled"
    assert found["jobs"]["after"]["status"] == "cancelled"


def test_problems_are_listed_with_their_positions(flow):
    file = flow("name: x\njobs:\n  a:\n    run: [1]\n    bogus: 1\n  b:\n    needs: nope\n    run: echo\n")
    done = run(file)
    assert done.exit_code == 2
    assert f"{file}:4:10: run of job 'a' must be text" in done.stderr
    assert f"{file}:5:5: 'bogus' is not a key of job 'a'" in done.stderr
    assert f"{file}:7:12: job 'b' needs 'nope'" in done.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["no-such-file.yml"], "cannot be read: No such file or directory"),
        (["-", "--input", "x"], "is not NAME=VALUE"),
        (["-", "--env", "=x"], "is not NAME=VALUE"),
        (["-", "--input", "nobody=1"], "unknown input 'nobody'"),
    ],
)
def test_invalid_run_arguments_are_refused(args, why):
    done = CliRunner().invoke(app, ["run", *args], input="{name: a, jobs: {one: {run: 'true'}}}")
    assert done.exit_code == 2
    assert why in done.stderr


def test_a_workflow_can_be_read_from_standard_input():
    done = CliRunner().invoke(app, ["run", "-"], input="{name: piped, jobs: {one: {run: 'true'}}}")
    assert done.exit_code == 0, done.output


def test_secrets_are_masked_and_secret_looking_variables_are_not_passed(flow, monkeypatch):
    monkeypatch.setenv("DEPLOY_TOKEN", "hunter22secret")
    monkeypatch.setenv("OTHER_TOKEN", "0therSecret")
    monkeypatch.setenv("PLAIN_THING", "plain")
    done = run(
        flow("{name: a, jobs: {one: {run: 'echo $DEPLOY_TOKEN ${OTHER_TOKEN-none} $PLAIN_THING'}}}"),
        "--secrets",
        "DEPLOY_TOKEN",
    )
    assert "one │ *** none plain" in done.stdout


SLOW = """
name: slow
jobs:
  one:
    run: |
      sleep 300 & echo $$ $! > pids
      trap 'echo tidied; exit 1' TERM
      wait
  two: {needs: one, run: echo never}
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_cancels_the_run_and_ends_its_commands(flow, tmp_path, number, code):
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", "run", flow(SLOW)], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        pids = tmp_path / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
        process.send_signal(number)
        output = process.communicate(timeout=60)[0]
        assert process.returncode == code
        assert "slow: cancelled after" in output
        assert "tidied" in output
        assert not any(is_alive(int(pid)) for pid in pids.read_text().split())
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_killed_run_leaves_no_command_running(flow, tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", "run", flow(SLOW), "--grace", "0.5s"],
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
    )
    try:
        pids = tmp_path / "pids"
        assert eventually(lambda: pids.exists() and len(pids.read_text().split()) == 2, 60)
        process.kill()
        found = [int(pid) for pid in pids.read_text().split()]
        assert eventually(lambda: not any(map(is_alive, found)))
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_terminal_shows_a_tree(flow):
    file = flow("{name: t, jobs: {one: {run: sleep 0.5}, two: {needs: one, run: exit 4}}}")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "backstay", "run", file],
        stdout=theirs,
        env=os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
    )
    os.close(theirs)
    seen = b""
    with suppress(OSError):
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    assert process.wait(60) == 1
    text = seen.decode()
    assert "└── " in text
    assert "✓ " in text
    assert "exit code 4" in text


@pytest.mark.slow
def test_a_command_that_reads_the_terminal_fails_instead_of_waiting(flow):
    file = flow("{name: t, jobs: {one: {run: 'if read -r word < /dev/tty; then exit 9; else echo refused; fi'}}}")
    inside = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", inside, sys.executable, "-m", "backstay", "run", "--logs", file],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "refused" in done.stdout


def test_the_tree_puts_each_job_below_its_last_need():
    doc = RunDoc(
        workflow="w",
        jobs=tuple(
            RunJob(key=key, id=key, needs=needs)
            for key, needs in (("late", ("b", "a")), ("a", ()), ("b", ("a",)), ("free", ()))
        ),
    )
    assert nest_jobs(RunProgress(doc)) == [("a", ""), ("b", "a"), ("late", "b"), ("free", "")]


def test_the_tree_limits_its_depth():
    jobs = tuple(RunJob(key=str(n), id=str(n), needs=(str(n - 1),) if n else ()) for n in range(40))
    parents = dict(nest_jobs(RunProgress(RunDoc(workflow="w", jobs=jobs))))
    assert len(parents) == 40
    assert {parents[str(n)] for n in range(DEEPEST, 40)} == {str(DEEPEST - 2)}


def test_control_sequences_of_jobs_cannot_move_the_cursor():
    assert sanitize_line("50%\r100%\r") == "100%"
    assert sanitize_line("a\x07b\x1b[31mred\x1b[2J") == "a\\x07b\x1b[31mred\\x1b[2J\x1b[0m"


def test_a_failure_is_printed_once_at_its_job(flow):
    file = flow("name: f\njobs: {a: {run: exit 3}}\n")
    done = subprocess.run(
        [sys.executable, "-m", "backstay", "run", file], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 1
    assert done.stderr == ""
    assert "a │ ✗ failed: exit code 3" in done.stdout
