"""The guide for n8n operators: its commands are typed as they stand there, offline, in a folder that is empty."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

TOP = Path(__file__).resolve().parents[2]
GUIDE = TOP / "docs" / "how-to" / "n8n.md"
PAGES = [GUIDE, TOP / "docs" / "reference" / "n8n-validate.md", TOP / "docs" / "reference" / "n8n-primitives.md"]
TYPED = re.compile(r"^<!-- run -->\n```\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def typed(tmp_path):
    """Types commands into a shell in a folder with nothing but the examples. Each is told with what it said."""
    (tmp_path / "examples").symlink_to(TOP / "examples")
    env = {key: value for key, value in os.environ.items() if not key.startswith(("BACKSTAY_", "N8N_"))}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"

    def run(script):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=tmp_path,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )

    return run


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_can_be_followed_word_for_word(typed, tmp_path):
    steps = TYPED.findall(GUIDE.read_text("utf-8"))
    assert len(steps) >= 7
    done = typed("\n".join(steps))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "excel_report: sub-workflow" in done.stdout
    assert "warning" not in done.stdout
    built = json.loads((tmp_path / "flows" / "n8n-build" / "dev" / "excel_report.json").read_text("utf-8"))
    assert {"Lock Acquire", "Lock Release"} <= {node["name"] for node in built["nodes"]}
    assert "{{@:" not in json.dumps(built)


def commands(command, path=()):
    yield path, {name for parameter in command.params for name in parameter.opts}
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, (*path, name))


def test_every_command_and_option_of_the_guide_exists():
    from backstay.cli.root import app

    known = {" ".join(path): options for path, options in commands(get_command(app))}
    told = 0
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        lines += [found for found in re.findall(r"`(backstay n8n [^`]*)`", text) if "…" not in found]
        for line in lines:
            found = re.match(r"backstay (n8n [a-z-]+(?: (?:create|list-link|add|ls|rm)\b)?)(.*)", line)
            if found is None:
                continue
            told += 1
            assert found[1] in known, line
            assert set(re.findall(r"(?<=\s)--[a-z-]+", found[2])) <= known[found[1]], line
    assert told > 10


def test_the_pictures_are_fresh():
    done = subprocess.run(
        [sys.executable, str(TOP / "scripts" / "docs_pictures"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_rule_that_a_page_names_exists(page):
    from backstay.n8n.rules.validate import RULES

    named = set(re.findall(r"[Rr]ules? `([a-z]+(?:-[a-z]+)+)`", page.read_text("utf-8")))
    assert named <= {rule.id for rule in RULES}


def test_every_message_of_the_troubleshooting_is_one_that_is_said():
    """Pieces between the dots, in the sources: a message that was reworded is reworded here, too."""
    sources = "".join(path.read_text("utf-8") for path in sorted((TOP / "src" / "backstay" / "n8n").rglob("*.py")))
    sources = sources.replace("{what}", "lock").replace("{verb}", "push")
    table = GUIDE.read_text("utf-8").partition("## Troubleshooting")[2]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    messages = [one for row in rows for one in re.findall(r"`([^`]+)`", row)]
    assert len(messages) >= 8
    for message in messages:
        for piece in re.split(r"…|\bN\b|\d+|[\"'(),:]", message):
            assert piece.strip(" .") in sources, message


def test_both_transports_take_and_give_the_same():
    """Over HTTP there may be more in what is given, never less."""
    from backstay.n8n import reference

    for key in reference.INPUTS:
        assert reference.inputs_of(key, "http") == reference.inputs_of(key, "redis")
        assert reference.outputs_of(key, "redis").items() <= reference.outputs_of(key, "http").items()
