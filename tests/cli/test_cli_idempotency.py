"""`backstay idempotency`, on every engine that processes share."""

from __future__ import annotations

import threading

import pytest


@pytest.fixture
def charged(cli):
    cli.backstay.idempotency.run("charge:42", lambda: {"secret": "receipt"}, fingerprint={"amount": 5})


def test_show_of_an_unknown_key_reports_that_it_has_not_run(cli):
    cli.backstay.open()
    assert cli.call("idempotency", "show", "x").stdout == "'x' has not run, or its outcome has expired.\n"
    assert cli.json("idempotency", "show", "x")["state"] == "idle"


def test_show_of_a_completed_key(cli, charged):
    shown = cli.call("idempotency", "show", "charge:42")
    assert shown.exit_code == 0
    assert shown.stdout.startswith("charge:42: completed, the call has completed; its outcome is replayed\n")
    assert "outcome kept until: " in shown.stdout
    assert "secret" not in shown.stdout


def test_show_of_a_key_in_json(cli, charged):
    shown = cli.json("idempotency", "show", "charge:42")
    assert set(shown) == {"key", "state", "fence", "by", "since", "until", "fingerprint", "waiters"}
    assert (shown["key"], shown["state"], shown["waiters"]) == ("charge:42", "completed", 0)
    assert shown["fence"].isdecimal()
    assert len(shown["fingerprint"]) == 64


def test_show_of_a_running_key(cli):
    begun, may_end = threading.Event(), threading.Event()

    def work():
        begun.set()
        may_end.wait(30)

    thread = threading.Thread(target=cli.backstay.idempotency.run, args=("charge:42", work))
    thread.start()
    begun.wait(30)
    shown = cli.call("idempotency", "show", "charge:42").stdout
    may_end.set()
    thread.join()
    assert "running, a call runs; other calls wait" in shown
    assert "lease until: " in shown


def test_forget_lets_the_next_call_run(cli, charged):
    assert cli.call("idempotency", "forget", "charge:42").stdout == (
        "Forgot 'charge:42', which was completed: the next call runs.\n"
    )
    assert cli.backstay.idempotency.run("charge:42", lambda: "again") == "again"
    assert cli.json("idempotency", "forget", "charge:42") == {
        "key": "charge:42",
        "forgotten": True,
        "was": "completed",
    }


def test_forget_of_an_unknown_key_fails(cli):
    cli.backstay.open()
    nothing = cli.call("idempotency", "forget", "x")
    assert nothing.exit_code == 1
    assert "there is no record of" in nothing.stderr


def test_an_invalid_key_is_wrong_usage(cli):
    cli.backstay.open()
    assert cli.call("idempotency", "show", "x" * 600).exit_code == 2
