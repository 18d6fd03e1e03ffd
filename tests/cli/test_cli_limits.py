"""`backstay limits` uses the same counts as the Python API."""

import json

import pytest


def test_hits_of_the_command_line_and_of_python_share_one_count(cli):
    api = cli.backstay.limit("api", "3/hour")
    assert api.hit("user:7").count == 1
    result = cli.call("limits", "hit", "api", "user:7", "--rate", "3/hour")
    assert (result.exit_code, result.stdout) == (0, "Admitted: 2 of 3 in 1h 0m.\n")
    assert cli.json("limits", "hit", "api", "user:7", "--rate", "3/hour")["remaining"] == 0
    assert not api.hit("user:7").allowed
    denied = cli.call("limits", "hit", "api", "user:7", "--rate", "3/hour")
    assert (denied.exit_code, denied.stdout) == (75, "")
    assert "'user:7' of 'api' has taken 3 of 3 in 3600 s; try again in" in denied.stderr


def test_a_hit_takes_several_rates_a_cost_and_an_algorithm(cli):
    args = (
        "limits",
        "hit",
        "api",
        "k",
        "--rate",
        "5/minute",
        "--rate",
        "6/hour",
        "--algorithm",
        "fixed",
        "--cost",
        "4",
    )
    assert cli.json(*args)["count"] == 4
    assert cli.call(*args).exit_code == 75


def test_a_denied_hit_in_json_has_a_retry_time(cli):
    args = ("limits", "hit", "api", "k", "--rate", "1/hour", "--json")
    assert json.loads(cli.call(*args).stdout)["allowed"] is True
    denied = cli.call(*args)
    assert denied.exit_code == 75
    reply = json.loads(denied.stdout)
    assert (reply["allowed"], reply["by"]) == (False, "engine")
    assert 0 < reply["retry_after"] <= 3600


def test_a_hit_can_wait_until_it_is_allowed(cli):
    cli.backstay.limit("api", "1/300ms").hit("k")
    assert cli.call("limits", "hit", "api", "k", "--rate", "1/300ms", "--wait", "10s").exit_code == 0
    cli.backstay.limit("api", "1/hour").hit("k")
    assert cli.call("limits", "hit", "api", "k", "--rate", "1/hour", "--wait", "1s").exit_code == 75


def test_show_lists_the_use_of_each_key(cli):
    assert cli.call("limits", "show").stdout == "No usage.\n"
    assert cli.call("limits", "show", "api", "k").stdout == "No usage of 'api' by 'k'.\n"
    assert cli.json("limits", "show") == {"limits": []}
    cli.backstay.limit("api", "5/hour", "9/day", algorithm="fixed").hit("user:7", 2)
    cli.backstay.limit("mail", "5/hour").hit("ada\n")
    head, *lines = cli.call("limits", "show").stdout.splitlines()
    assert head.split() == ["LIMIT", "KEY", "ALGORITHM", "RATE", "TAKEN", "FREE", "IN"]
    assert [line.split()[:5] for line in sorted(lines)] == [
        ["api", "user:7", "fixed", "5/hour", "2"],
        ["api", "user:7", "fixed", "9/day", "2"],
        ["mail", "ada\\n", "sliding", "5/hour", "1"],
    ]
    (use,) = cli.json("limits", "show", "api")["limits"]
    assert (use["name"], use["key"], use["trouble"]) == ("api", "user:7", "")
    assert [set(rate) for rate in use["rates"]] == [{"rate", "limit", "window", "count", "reset_after"}] * 2
    assert cli.json("limits", "show", "api", "somebody-else") == {"limits": []}


def test_reset_clears_the_counts(cli):
    cli.backstay.limit("api", "1/hour").hit("k")
    cli.backstay.limit("api", "1/day", algorithm="gcra").hit("k")
    assert cli.call("limits", "reset", "api", "k").stdout == "Reset the usage of 'api' by 'k'.\n"
    assert cli.call("limits", "reset", "api", "k").stdout == "'k' had no usage of 'api'.\n"
    assert cli.json("limits", "reset", "api", "k") == {"name": "api", "key": "k", "records": 0}
    assert cli.call("limits", "hit", "api", "k", "--rate", "1/hour").exit_code == 0


@pytest.mark.parametrize(
    "args",
    [
        ("hit", "api", "k", "--rate", "5/fortnight"),
        ("hit", "api", "k", "--rate", "5/hour", "--algorithm", "slow"),
        ("hit", "api", "k", "--rate", "5/hour", "--cost", "6"),
        ("hit", "api", "k", "--rate", "5/hour", "--wait", "soon"),
        ("hit", "api", "", "--rate", "5/hour"),
        ("hit", "api", "k"),
        ("reset", "", "k"),
    ],
)
def test_invalid_limit_arguments_are_wrong_usage(sqlite_cli, args):
    assert sqlite_cli.call("limits", *args).exit_code == 2


def test_an_engine_outage_is_an_error_and_no_denial(sqlite_cli):
    sqlite_cli.url = "redis://127.0.0.1:1/0"
    result = sqlite_cli.call("limits", "hit", "api", "k", "--rate", "5/hour")
    assert result.exit_code == 3
    assert "cannot" in result.stderr
