"""Steps rendered as one shell script run like on a worker that supports steps."""

from __future__ import annotations

import subprocess

import pytest

from backstay.server.workers.plain_script import render_script
from backstay.workflow.command.spec import CommandSpec, Step


def run(*steps, **spec):
    made = render_script(CommandSpec(steps=steps, **spec))
    return subprocess.run(["sh", "-eu", "-c", made], capture_output=True, text=True, check=False)


def test_a_single_command_stays_as_it_was_written():
    assert render_script(CommandSpec(steps=(Step(run="make", name="Compile"),))) == "make"


def test_steps_stop_at_the_first_failure_and_keep_its_code():
    done = run(Step(run="echo one; false; echo never"), Step(run="echo two"), shell="sh")
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert run(Step(run="exit 7"), Step(run="echo two")).returncode == 7


@pytest.mark.parametrize(
    ("first", "expected"), [("true", ["usual", "always"]), ("exit 3", ["failed", "always"])], ids=["success", "failure"]
)
def test_conditions_on_earlier_steps_are_evaluated(first, expected):
    done = run(
        Step(run=first),
        Step(run="echo usual"),
        Step(run="echo failed", condition="failure()"),
        Step(run="echo always", condition="always()"),
        Step(run="echo never", condition="inputs.deploy"),
        inputs={"deploy": False},
    )
    assert done.stdout.split() == expected
    assert done.returncode == (0 if first == "true" else 3)


def test_a_step_with_continue_on_error_does_not_stop_the_script():
    done = run(Step(run="exit 3", continue_on_error=True), Step(run="echo on"))
    assert (done.returncode, done.stdout) == (0, "on\n")


def test_directories_variables_and_shells_of_steps_are_kept(tmp_path):
    (tmp_path / "inner").mkdir()
    done = run(
        Step(run='pwd; echo "$NAME"', env={"NAME": "it's $HOME"}, working_directory="inner"),
        Step(run='pwd; echo "${NAME:-none}"'),
        Step(run="print('python', 1 + 1)", shell="python"),
        Step(run="echo cat", shell="cat {0}"),
        working_directory=str(tmp_path),
    )
    assert done.stdout.split("\n") == [f"{tmp_path}/inner", "it's $HOME", str(tmp_path), "none", "python 2", "echo cat"]


def test_a_condition_that_needs_outputs_fails_and_names_its_step():
    done = run(Step(run="echo one"), Step(run="echo two", condition="outputs.x == '1'"))
    assert (done.returncode, done.stdout) == (1, "one\n")
    assert "step 2" in done.stderr
