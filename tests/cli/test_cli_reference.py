"""docs/reference/cli.md matches the program."""

import json
import re
from pathlib import Path

import pytest
from typer.main import get_command

from backstay.cli import exit_codes
from backstay.cli.locked_command.signals import FORWARDED, TERMINATING
from backstay.cli.root import app
from backstay.cli.views import locks
from backstay.errors import HolderInfo
from backstay.gate.view import Inspection, WaiterInfo

PAGE = (Path(__file__).resolve().parents[2] / "docs/reference/cli.md").read_text(encoding="utf-8")


def commands(command, path=()):
    """Yield every command with its options."""
    options = {
        name
        for parameter in command.params
        for name in (*parameter.opts, *parameter.secondary_opts)
        if name.startswith("-")
    }
    yield " ".join(path) or "root", options
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


@pytest.mark.parametrize("command", [path for path, _ in commands(get_command(app))])
def test_every_option_is_in_the_reference(command):
    for option in dict(commands(get_command(app)))[command]:
        assert re.search(rf"`{option}[` ]|{option} ", PAGE), option


def test_every_option_in_the_reference_exists():
    known = set().union(*(options for _, options in commands(get_command(app)))) | {"--help"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", PAGE)) <= known


def test_every_exit_code_is_in_the_reference():
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()} - {exit_codes.SIGNALLED}
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, re.MULTILINE)} == codes


def test_every_signal_is_in_the_reference():
    assert all(number.name in PAGE for number in (*TERMINATING, *FORWARDED))


def test_json_output_has_the_fields_of_the_reference():
    shown = json.loads(re.search(r"```json\n(.*?)```", PAGE, re.DOTALL)[1])
    (holder,), (waiter,) = shown["holders"], shown["queue"]
    lock = Inspection(
        name=shown["name"],
        fence=int(shown["fence"]),
        capacity=shown["capacity"],
        holders=(HolderInfo(**{**holder, "fence": int(holder["fence"])}),),
        queue=(WaiterInfo(**waiter),),
    )
    assert locks.as_json(lock) == shown
    assert list(locks.as_json(lock)) == list(shown)
