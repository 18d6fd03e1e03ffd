"""Opening a SQLite file: which files are refused with which error, and several processes that create one file."""

import os
import sqlite3
import subprocess
import sys

import pytest

import backstay
import backstay.sync
from backstay import ConfigError, EngineUnavailable, SchemaTooNew

OPENER = """
import sys
from backstay.sync import Backstay
sys.stdin.readline()
stay = Backstay(sys.argv[1]).open()
print(stay.lock("x", ttl=10).acquire(wait=30).fence, flush=True)
stay.locks.force_release("x")
stay.close()
"""


def test_a_missing_folder_is_named_in_the_error(tmp_path):
    path = tmp_path / "no" / "such" / "folder.db"
    with pytest.raises(ConfigError, match="folder does not exist"):
        backstay.sync.Backstay(f"sqlite:///{path}").open()
    assert not path.parent.exists()


def test_a_folder_created_later_is_found(tmp_path):
    path = tmp_path / "later" / "a.db"
    stay = backstay.sync.Backstay(f"sqlite:///{path}")
    with pytest.raises(ConfigError):
        stay.open()
    path.parent.mkdir()
    with stay, stay.lock("x", wait=0):
        pass


def test_a_folder_in_place_of_the_file_raises_an_engine_error(tmp_path):
    with pytest.raises(backstay.BackstayError, match=tmp_path.name):
        backstay.sync.Backstay(f"sqlite:///{tmp_path}").open()


def test_a_file_that_is_not_a_database_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("Not a database, only some notes. " * 100)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="not a SQLite database"):
        backstay.sync.Backstay(f"sqlite:///{path}").open()
    assert path.read_bytes() == before


def test_a_newer_schema_is_refused_and_not_changed(tmp_path):
    path = tmp_path / "new.db"
    url = f"sqlite:///{path}"
    backstay.sync.Backstay(url).open().close()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE backstay_meta SET value = 999 WHERE key = 'schema'")
    db.close()
    with pytest.raises(SchemaTooNew, match="999"):
        backstay.sync.Backstay(url).open()
    stay = backstay.sync.Backstay(url)
    with pytest.raises(SchemaTooNew):
        stay.lock("x").acquire(wait=0)
    stay.close()


def test_an_application_may_share_the_file(tmp_path):
    path = tmp_path / "app.db"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE orders (id INTEGER)")
        db.execute("INSERT INTO orders VALUES (1)")
    db.close()
    with backstay.sync.Backstay(f"sqlite:///{path}") as stay, stay.lock("x", wait=0):
        pass
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    db.close()


@pytest.mark.race
@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_processes_that_start_together_all_open_a_new_file(tmp_path, turn):
    url = f"sqlite:///{tmp_path}/new.db"
    command = [sys.executable, "-c", OPENER, url]
    processes = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(8)
    ]
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    outcomes = [process.communicate(timeout=60) for process in processes]
    assert [errors for _, errors in outcomes if errors] == []
    assert len({int(fence) for fence, _ in outcomes}) == 8


@pytest.fixture
def read_only_folder(tmp_path):
    """A folder that becomes read-only on demand, by a mount: root ignores permission bits."""
    if os.geteuid():
        yield tmp_path, lambda: tmp_path.chmod(0o555)
        tmp_path.chmod(0o755)
        return
    if subprocess.run(["mount", "-t", "tmpfs", "tmpfs", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("root without the right to mount: nothing here can be made read-only")
    try:
        yield tmp_path, lambda: subprocess.run(["mount", "-o", "remount,ro", tmp_path], check=True)
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=False)


def test_a_read_only_folder_raises_an_engine_error(read_only_folder):
    folder, freeze = read_only_folder
    freeze()
    with pytest.raises(backstay.BackstayError, match=r"a\.db") as caught:
        backstay.sync.Backstay(f"sqlite:///{folder}/a.db").open()
    assert isinstance(caught.value, (ConfigError, EngineUnavailable, backstay.EngineRefused))


def test_a_read_only_file_raises_an_engine_error_and_locks_fail_closed(read_only_folder):
    folder, freeze = read_only_folder
    url = f"sqlite:///{folder}/a.db"
    backstay.sync.Backstay(url).open().close()
    freeze()
    stay = backstay.sync.Backstay(url, profile=backstay.MAX_AVAILABILITY)
    with pytest.raises(backstay.BackstayError, match=r"a\.db"):
        stay.lock("x").acquire(wait=0)
    stay.close()
