"""The environment of commands: variables, inherited secrets, and masking."""

from __future__ import annotations

import os

import pytest
from command_run import CommandRun, run_failing

from backstay import Backstay
from backstay.errors import ConfigError
from backstay.workflow.command.environment import build_command_environment
from backstay.workflow.command.job_type import COMMAND_ENVIRONMENT
from backstay.workflow.command.variables import find_passwords
from support.event_loop import on_a_worker_loop


@on_a_worker_loop
async def test_the_run_is_described_in_environment_variables():
    ran = await CommandRun(
        'echo "$INPUT_DEPLOY_TO $NEEDS_TEST_3_11_REPORT_URL $BACKSTAY_RUN_ID"; cat "$BACKSTAY_NEEDS_FILE"',
        inputs={"deploy-to": "prod"},
        needs={"test (3.11)": {"report.url": "http://x"}},
        given={"BACKSTAY_RUN_ID": "0-1"},
    ).run()
    assert ran.text("stdout").startswith("prod http://x 0-1\n")
    assert '"report.url": "http://x"' in ran.text("stdout")


@on_a_worker_loop
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


@on_a_worker_loop
async def test_outputs_too_large_for_variables_are_passed_in_a_file():
    ran = await CommandRun(
        'echo "${NEEDS_A0_K-none}"; wc -c < $BACKSTAY_NEEDS_FILE',
        needs={f"a{n}": {"k": "x" * 60_000} for n in range(20)},
    ).run()
    assert "too large for variables: read $BACKSTAY_NEEDS_FILE" in ran.text("log")
    assert ran.text("stdout").split()[0] == "none"
    assert int(ran.text("stdout").split()[1]) > 1_200_000


@on_a_worker_loop
async def test_needs_that_map_to_the_same_variable_are_refused():
    with pytest.raises(ConfigError, match="would both be the variable NEEDS_A_B_K; rename one"):
        await CommandRun("true", needs={"a-b": {"k": "1"}, "a_b": {"k": "2"}}).run()


@on_a_worker_loop
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


@on_a_worker_loop
async def test_a_secret_that_is_written_in_two_parts_is_hidden():
    ran = await CommandRun("printf hunt; sleep 0.6; echo er22", secrets=["hunter22"]).run()
    assert ran.text() == "***\n"


def test_passwords_of_urls_are_masked_as_written_and_decoded(monkeypatch):
    assert find_passwords("redis://u:p%40ss%3Aword@host/0 x") == ["p%40ss%3Aword", "p@ss:word"]
    monkeypatch.setattr("sys.argv", ["backstay", "--url", "redis://:from%20argv@host", "worker"])
    made = build_command_environment((), (), ".", 5.0, urls=("postgresql://app:in%2Fcode@db/app",))
    assert {"from%20argv", "from argv", "in%2Fcode", "in/code"} <= set(made.secrets)


def test_the_password_of_a_backstays_own_url_is_masked():
    made = (
        Backstay("redis://:sup%40secret@127.0.0.1:1/0"),
        Backstay("memory://", hub="redis://:hub-pass@127.0.0.1:1/1"),
    )
    hidden = set()
    for stay in made:
        stay.worker(allow_commands=True)
        hidden.update(stay.internals.core.services.get(COMMAND_ENVIRONMENT).secrets)
    assert {"sup%40secret", "sup@secret", "hub-pass"} <= hidden
