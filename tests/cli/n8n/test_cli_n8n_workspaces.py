"""`backstay n8n`: creating workspaces and installing primitives."""

from __future__ import annotations

from backstay.n8n.primitives import primitive
from support.n8n.commands import FLOW, Commands


def test_init_creates_a_workspace_and_keeps_existing_files(tmp_path):
    commands = Commands(tmp_path / "new" / "flows")
    reply = commands.json("init", "--env", "dev", "--dry-run")
    assert reply["dry_run"]
    assert "+++ n8n-config/dev.yml" in reply["diff"]
    assert not commands.root.exists()
    assert commands.json("init", "--env", "dev")["environments"] == ["dev"]
    for path in ("n8n-config/dev.yml", "n8n-config/common.yml", "n8n-config/deployment_order.yml"):
        assert (commands.root / path).is_file()
    assert (commands.root / "n8n-workflows-template").is_dir()
    assert (commands.root / "n8n-build/dev").is_dir()
    (commands.root / "n8n-config/dev.yml").write_text("# mine\n")
    again = commands.json("init", "--env", "dev", "--env", "staging")
    assert [change["path"] for change in again["changes"]] == ["n8n-config/staging.yml", "n8n-build/staging/.gitkeep"]
    assert commands.settings() == "# mine\n"
    assert commands.json("init")["changes"] == []
    assert "is not an environment" in commands.refused("init", "--env", "common")
    for url in ("nonsense: {", "ftp://n8n", "http://n8n:port", "http://a b"):
        assert "http://127.0.0.1:5678" in commands.refused("init", "--env", "new", "--n8n-url", url, code=2)


def test_init_refuses_a_path_that_is_a_file(tmp_path):
    (tmp_path / "n8n-config").write_text("a file")
    assert "is a file, but a workspace needs a folder" in Commands(tmp_path).refused("init")


def test_create_lock_installs_the_pair_and_registers_it(empty):
    reply = empty.json("create-lock")
    assert reply["written"] == ["lock_acquisition", "lock_release"]
    assert reply["transport"] == "redis"
    for env in ("dev", "prod"):
        assert set(reply["ids"][env]) == {"lock_acquisition", "lock_release"}
        for made in reply["ids"][env].values():
            assert len(made) <= 16
            assert made in empty.settings(env)
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    assert not empty.path("rate_limit_check").exists()
    again = empty.json("create-lock")
    assert again["changes"] == []
    assert again["kept"] == ["lock_acquisition", "lock_release"]


def test_create_lock_can_be_limited_to_one_environment(empty):
    empty.do("create-lock", "--env", "prod")
    assert "lock_release" in empty.settings("prod")
    assert "lock_release" not in empty.settings("dev")
    assert "no environment is named 'staging'" in empty.refused("create-lock", "--env", "staging")


def test_an_existing_primitive_is_kept_unless_forced_and_an_older_one_is_reported(empty):
    empty.do("create-lock")
    empty.put("lock_release", FLOW)
    older = primitive("lock_acquisition", "redis")
    older.data["meta"]["backstay"]["version"] = 0
    empty.put("lock_acquisition", older.text())
    before = empty.snapshot()
    reply = empty.json("create-lock")
    assert empty.snapshot() == before
    assert any("lock_acquisition.template.json is version 0" in line for line in reply["warnings"])
    assert any("lock_release.template.json is not one of Backstay's" in line for line in reply["warnings"])
    assert empty.json("create-lock", "--force-overwrite")["warnings"] == []
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()
    empty.put("lock_release", "not even JSON")
    assert "lock_release.template.json" in empty.refused("create-lock")
    empty.do("create-lock", "--force-overwrite")
    assert empty.path("lock_release").read_text() == primitive("lock_release", "redis").text()


def test_a_workspace_has_one_transport(commands):
    line = commands.refused("create-lock", "--transport", "http")
    assert "do not share locks" in line
    commands.add_lock()
    everything = ("--include-error-handler", "--include-rate-limit", "--force-overwrite")
    assert "nightly: uses a lock or limit over another transport" in commands.refused(
        "create-lock", "--transport", "http", *everything
    )
    commands.do("remove-lock-from-workflow", "--workflow-key", "nightly")
    assert commands.json("create-lock", "--transport", "http", *everything)["transport"] == "http"
    assert 'url: "http://127.0.0.1:3000"' in commands.settings()
    assert commands.json("create-lock")["transport"] == "http"
    assert "neither redis nor http" in commands.refused("create-lock", "--transport", "carrier-pigeon", code=2)


def test_primitives_of_two_transports_are_refused(commands):
    commands.put("lock_release", primitive("lock_release", "http").text())
    line = commands.refused("add-lock-to-workflow", "--workflow-key", "nightly", "--scope-expression", "x")
    assert "lock_release uses http" in line


def test_copy_primitive_lists_and_copies_and_registers_nothing(empty):
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False] * 4
    before = empty.settings()
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["written"] == ["rate_limit_check"]
    assert empty.settings() == before
    assert [one["here"] for one in empty.json("copy-primitive", "--list")["primitives"]] == [False, False, False, True]
    assert "rate_limit_check" in empty.do("copy-primitive", "--list")
    assert empty.json("copy-primitive", "--name", "rate_limit_check")["kept"] == ["rate_limit_check"]
    assert "unknown primitive" in empty.refused("copy-primitive", "--name", "mutex", code=2)
    assert "--name" in empty.refused("copy-primitive", code=2)


def test_init_has_git_ignore_env_files_and_keeps_other_lines(tmp_path):
    commands = Commands(tmp_path / "flows")
    commands.do("init")
    assert {".env", ".env.*"} <= set((commands.root / ".gitignore").read_text().splitlines())
    (commands.root / ".gitignore").write_text("mine\n.env")
    commands.do("init")
    lines = (commands.root / ".gitignore").read_text().splitlines()
    assert lines[:2] == ["mine", ".env"]
    assert lines.count(".env") == lines.count(".env.*") == 1
