"""Files of a workspace change all at once or not at all, one command at a time."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from backstay.errors import WorkspaceError
from backstay.n8n.workspace import journal
from backstay.n8n.workspace.files import PRIVATE, Files, inside
from backstay.n8n.workspace.init import lay_out
from backstay.n8n.workspace.workspace import Workspace

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def root(tmp_path):
    with Workspace(tmp_path / "w").edit() as view:
        lay_out(view, ["dev", "prod"])
    return tmp_path / "w"


def snapshot(root):
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and PRIVATE not in path.parts
    }


def several(view):
    """A change of three kinds: written anew, changed, deleted."""
    view.files.write("n8n-build/dev/new.json", b"{}")
    view.add_scope("dev", "a")
    view.add_scope("prod", "a")
    view.files.delete("n8n-workflows-template/.gitkeep")


def test_an_error_inside_changes_nothing(root):
    before = snapshot(root)
    with pytest.raises(WorkspaceError, match="no environment 'late'"), Workspace.open(root).edit() as view:  # noqa: PT012 - a command
        several(view)
        view.add_scope("late", "a")
    assert snapshot(root) == before


def test_a_dry_run_changes_nothing_and_shows_the_diff(root):
    before = snapshot(root)
    with Workspace.open(root).edit(dry_run=True) as view:
        several(view)
    assert snapshot(root) == before
    diff = view.files.diff()
    assert "--- n8n-config/dev.yml" in diff
    assert "+  - a\n" in diff
    assert "--- /dev/null\n+++ n8n-build/dev/new.json" in diff
    assert [change.action for change in view.changes] == ["create", "update", "update", "delete"]


def test_a_dry_run_leaves_no_trace_where_nothing_is(tmp_path):
    with Workspace(tmp_path / "new").edit(dry_run=True) as view:
        lay_out(view, ["dev"])
    assert view.changes
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("at", range(9))
def test_a_disk_that_fails_anywhere_changes_nothing(root, monkeypatch, at):
    before = snapshot(root)
    calls = iter(range(100))

    def fail(real):
        def call(*arguments, **options):
            if next(calls) == at:
                raise OSError(28, "No space left on device", "somewhere")
            return real(*arguments, **options)

        return call

    path = type(root)
    with monkeypatch.context() as patch:
        patch.setattr(path, "replace", fail(path.replace))
        patch.setattr(path, "unlink", fail(path.unlink))
        patch.setattr(journal.os, "fsync", fail(os.fsync))
        try:
            with Workspace.open(root).edit() as view:
                several(view)
        except WorkspaceError as refusal:
            assert "No space left" in str(refusal)  # noqa: PT017 - where it fails differs
        else:
            assert at == 0  # tidying up before anything begins, which may fail
            return
    with Workspace.open(root).edit():  # whatever could not be undone at once is undone now
        pass
    assert snapshot(root) == before


def killed_after(root, steps):
    """Commits the change, and is gone after so many renames and deletions."""

    def count(real):
        def call(*arguments, **options):
            nonlocal steps
            if steps == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            steps -= 1
            return real(*arguments, **options)

        return call

    path = type(root)
    path.replace, path.unlink = count(path.replace), count(path.unlink)
    with Workspace.open(root).edit() as view:
        several(view)


@pytest.mark.parametrize("steps", range(2, 9))
def test_a_command_that_was_killed_is_undone_by_the_next(root, steps):
    before = snapshot(root)
    process = FORK.Process(target=killed_after, args=(root, steps))
    process.start()
    process.join()
    after = snapshot(root)
    pending = journal.is_pending(root)
    with Workspace.open(root).look() as view:
        notes = view.notes
    if pending:
        assert snapshot(root) == before
        assert "interrupted" in notes[0]
    else:  # all was done, and the journal had gone
        assert len([path for path in {**before, **after} if before.get(path) != after.get(path)]) == 4


def test_a_file_that_was_edited_after_a_crash_is_left_alone_and_named(root):
    process = FORK.Process(target=killed_after, args=(root, 3))
    process.start()
    process.join()
    assert journal.is_pending(root)
    mine = root / "n8n-config/dev.yml"
    mine.write_text("# mine\n")
    for _ in range(2):
        with pytest.raises(WorkspaceError, match=r"n8n-config/dev.yml was changed since"), Workspace.open(root).edit():
            pass
    assert mine.read_text() == "# mine\n"


def test_somebody_elses_edit_under_way_is_not_overwritten(root):
    with pytest.raises(WorkspaceError, match="changed by somebody else"), Workspace.open(root).edit() as view:  # noqa: PT012 - a command
        view.add_scope("dev", "a")
        (root / "n8n-config/dev.yml").write_text("lockScopes: [mine]\n")
    assert (root / "n8n-config/dev.yml").read_text() == "lockScopes: [mine]\n"


def adding(root, names):
    for name in names:
        with Workspace.open(root).edit() as view:
            view.add_scope("dev", name)
            view.add_scope("prod", name)


def test_commands_at_the_same_time_lose_nothing(root):
    batches = [[f"{one}-{n}" for n in range(8)] for one in range(4)]
    processes = [FORK.Process(target=adding, args=(root, batch)) for batch in batches]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    wanted = {name for batch in batches for name in batch}
    for env in ("dev", "prod"):
        assert set(Workspace.open(root).scopes(env)) == wanted


def test_who_waits_too_long_for_another_command_says_so(root):
    with (
        Workspace.open(root).edit(),
        pytest.raises(WorkspaceError, match="another command works"),
        journal.alone(root, patience=0.05),
    ):
        pytest.fail("two at once")


def test_what_a_file_may_do_stays(root):
    file = root / "n8n-config/dev.yml"
    file.chmod(0o600)
    with Workspace.open(root).edit() as view:
        view.add_scope("dev", "a")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_view_cannot_be_changed_outside_of_edit(root):
    with pytest.raises(RuntimeError):
        Workspace.open(root).add_scope("dev", "a")


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../x", "a\\b", "~/x", "link/x", "a\0b"])
def test_no_path_leads_out(root, path):
    (root / "link").symlink_to("/etc")
    with pytest.raises(WorkspaceError, match=r"leads out|cannot be followed"):
        inside(root, path)


def test_a_link_inside_is_followed_and_stays_a_link(root):
    (root / "shared.yml").write_text("lockScopes: []\n")
    env = root / "n8n-config/linked.yml"
    env.symlink_to("../shared.yml")
    with Workspace.open(root).edit() as view:
        view.add_scope("linked", "a")
    assert env.is_symlink()
    assert "- a" in (root / "shared.yml").read_text()


def test_names_of_a_folder_know_what_is_about_to_change(root):
    files = Files(root)
    files.write("n8n-config/new.yml", b"")
    files.delete("n8n-config/dev.yml")
    assert files.names("n8n-config", ".yml") == ["common", "deployment_order", "new", "prod"]


def test_the_journal_is_readable_by_people(root):
    process = FORK.Process(target=killed_after, args=(root, 3))
    process.start()
    process.join()
    told = json.loads((root / PRIVATE / "journal.json").read_text())
    assert [entry["path"] for entry in told["files"]][:2] == ["n8n-build/dev/new.json", "n8n-config/dev.yml"]


@pytest.fixture
def read_only(root, monkeypatch):
    """A workspace on a disk that takes nothing: somebody else's, or mounted so. Root may write anywhere else."""
    with Workspace.open(root).edit() as view:
        view.files.write("n8n-config/a.txt", b"a")
    opened = os.open

    def refused(path, flags, *more, **given):
        if str(path).startswith(str(root)) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opened(path, flags, *more, **given)

    monkeypatch.setattr(os, "open", refused)
    monkeypatch.setattr(Path, "write_text", lambda *_: refused(root, os.O_WRONLY))
    return root


def test_what_cannot_be_written_can_be_looked_at(read_only):
    with Workspace.open(read_only).look() as view:
        assert view.files.read("n8n-config/a.txt") == b"a"
    with Workspace.open(read_only).edit(dry_run=True) as view:
        view.files.write("n8n-config/a.txt", b"b")
        assert "+b" in view.files.diff()


def test_what_cannot_be_written_is_not_changed(read_only):
    with pytest.raises(WorkspaceError, match="cannot be written: Read-only"), Workspace.open(read_only).edit():
        pass


def test_what_was_interrupted_and_cannot_be_undone_is_not_taken_for_whole(read_only):
    (read_only / PRIVATE / journal.JOURNAL).mkdir()
    with pytest.raises(WorkspaceError, match="a command was interrupted in"), Workspace.open(read_only).look():
        pass
