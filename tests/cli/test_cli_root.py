import subprocess
import sys

import pytest

from backstay.testing.servers.ports import reserve_port
from support.command_line import PATIENCE


def python(code: str, *args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_reported_with_the_install_command(missing):
    done = python(f"import sys; sys.modules[{missing!r}] = None; from backstay.cli import main; main()")
    assert done.returncode == 2
    assert done.stderr == "backstay: the command line needs its extra: pip install 'backstay[cli]'\n"


def test_another_missing_module_is_not_hidden():
    done = python("import sys; sys.modules['backstay.sync'] = None; from backstay.cli import main; main()")
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr


def test_the_package_imports_without_typer():
    done = python("import sys; sys.modules['typer'] = sys.modules['rich'] = None; import backstay.cli")
    assert done.returncode == 0, done.stderr


def test_the_script_and_the_module_are_the_same(sqlite_cli):
    module = sqlite_cli.run("--version")
    script = python("import sys; sys.argv = ['backstay', '--version']; from backstay.cli import main; main()")
    assert module.stdout == script.stdout
    assert module.stdout.startswith("backstay ")


def test_help_shows_examples(sqlite_cli):
    for command in (
        (),
        ("lock",),
        ("doctor",),
        ("locks", "ls"),
        ("locks", "show"),
        ("locks", "release"),
        ("locks", "cleanup"),
    ):
        result = sqlite_cli.call(*command, "--help")
        assert result.exit_code == 0
        assert "Examples" in result.stdout
        assert f"backstay {' '.join(command)}".strip() in result.stdout


@pytest.mark.parametrize(
    "args",
    [
        ("nonsense",),
        ("locks", "show"),
        ("locks", "release", "x"),
        ("locks", "release", "x", "--force", "--lock-id", "1"),
        ("locks", "cleanup"),
        ("lock", "x"),
        ("lock", "x", "--"),
        ("lock", "x", "--", ""),
        ("lock", "", "--", "true"),
        ("lock", "x", "--ttl", "soon", "--", "true"),
        ("lock", "x", "--ttl", "0", "--", "true"),
        ("lock", "x", "--wait", "-1", "--", "true"),
        ("lock", "x", "--wait", "5", "--no-wait", "--", "true"),
        ("lock", "x", "--semaphore", "0", "--", "true"),
        ("lock", "x", "--semaphore", "2", "--read", "--", "true"),
        ("lock", "x", "--read", "--write", "--", "true"),
        ("--url", "gopher://x", "locks", "ls"),
        ("--url", "memory://", "locks", "ls"),
        ("--url", "memory://", "lock", "x", "--", "true"),
        ("--url", "sqlite:///missing/backstay.db", "lock", "x", "--", "true"),
        ("--namespace", "a{b}", "locks", "ls"),
    ],
)
def test_wrong_usage_exits_2_without_a_traceback(sqlite_cli, args):
    result = sqlite_cli.call(*args)
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)  # anything else would print a traceback
    assert result.stderr
    assert not result.stdout


@pytest.mark.parametrize(
    "args", [("locks", "ls"), ("locks", "show", "x"), ("lock", "x", "--", "true"), ("locks", "release", "x", "--force")]
)
def test_an_engine_that_cannot_be_reached_exits_3_with_one_line(sqlite_cli, args):
    done = sqlite_cli.run("--url", f"redis://:secret@127.0.0.1:{reserve_port()}/0", *args)
    assert done.returncode == 3, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("backstay: cannot reach redis://127.0.0.1:")
    assert "secret" not in line


def test_read_commands_never_create_a_database(sqlite_cli):
    elsewhere = sqlite_cli.folder / "typo.db"
    done = sqlite_cli.run("--url", f"sqlite:///{elsewhere}", "locks", "ls")
    assert done.returncode == 2
    assert "typo.db does not exist" in done.stderr
    assert not elsewhere.exists()


def test_options_override_the_environment(sqlite_cli):
    other = sqlite_cli.folder / "other.db"
    assert sqlite_cli.run("--url", f"sqlite:///{other}", "lock", "x", "--", "true").returncode == 0
    assert other.exists()


def test_a_closed_pipe_is_no_error(sqlite_cli):
    process = sqlite_cli.start("locks", "ls", stdout=subprocess.PIPE)
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err
