"""The guide for n8n operators: its commands run verbatim, offline, in an empty folder."""

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
STEPS = re.compile(r"^<!-- run -->\n```\n(.*?)^```", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.fixture
def shell(tmp_path):
    """Runs a script with bash in a folder that has only the examples."""
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
def test_the_guide_can_be_followed_word_for_word(shell, tmp_path):
    steps = STEPS.findall(GUIDE.read_text("utf-8"))
    assert len(steps) >= 7
    done = shell("\n".join(steps))
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
    checked = 0
    for page in PAGES:
        text = page.read_text("utf-8")
        lines = [line for block in BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
        lines += [found for found in re.findall(r"`(backstay n8n [^`]*)`", text) if "…" not in found]
        for line in lines:
            found = re.match(r"backstay (n8n [a-z-]+(?: (?:create|list-link|add|ls|rm)\b)?)(.*)", line)
            if found is None:
                continue
            checked += 1
            assert found[1] in known, line
            assert set(re.findall(r"(?<=\s)--[a-z-]+", found[2])) <= known[found[1]], line
    assert checked > 10


def test_generated_pictures_are_up_to_date():
    done = subprocess.run(
        [sys.executable, str(TOP / "scripts" / "docs_pictures"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_rule_that_a_page_names_exists(page):
    from backstay.n8n.rules.validate import RULES

    named = set(re.findall(r"[Rr]ules? `([a-z]+(?:-[a-z]+)+)`", page.read_text("utf-8")))
    assert named <= {rule.id for rule in RULES}


def test_every_message_of_the_troubleshooting_table_is_in_the_sources():
    """Each part between ellipses and variables occurs in the sources, so the guide follows reworded messages."""
    sources = "".join(path.read_text("utf-8") for path in sorted((TOP / "src" / "backstay" / "n8n").rglob("*.py")))
    sources = sources.replace("{what}", "lock").replace("{verb}", "push")
    table = GUIDE.read_text("utf-8").partition("## Troubleshooting")[2]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    messages = [one for row in rows for one in re.findall(r"`([^`]+)`", row)]
    assert len(messages) >= 8
    for message in messages:
        for piece in re.split(r"…|\bN\b|\d+|[\"'(),:]", message):
            assert piece.strip(" .") in sources, message


def test_both_transports_have_the_same_inputs_and_outputs():
    """The outputs over HTTP may have more fields, never fewer."""
    from backstay.n8n import reference

    for key in reference.INPUTS:
        assert reference.inputs_of(key, "http") == reference.inputs_of(key, "redis")
        assert reference.outputs_of(key, "redis").items() <= reference.outputs_of(key, "http").items()
