import json
import re
import signal
import uuid

import pytest

from support.command_line import eventually, finish

HINT = str(uuid.uuid4())


def tailing(cli, *args):
    """Start `backstay hub tail` and wait until it listens."""
    process = cli.start("hub", "tail", *args)
    assert process.stderr
    assert process.stderr.readline().startswith("backstay: listening on ")
    return process


def test_tail_shows_published_messages(cli):
    process = tailing(cli, "--count", "4")
    hint = cli.backstay.hub.publish_scheduled("mail:send", 3)
    cli.backstay.hub.publish_chain_completed("c1")
    cli.backstay.hub.publish_ownership_lost("j1")
    cli.backstay.hub.publish("news", "not asked for")
    cli.backstay.hub.publish("sched", "rubbish \x1b[31m")
    code, out, err = finish(process)
    assert (code, err) == (0, "")
    shown = [re.sub(r"^\S+Z?  ", "", line) for line in out.splitlines()]
    assert sorted(shown) == sorted([f"sched  mail:send  {hint}", "chainc  c1", "owls  j1", r"sched  rubbish \x1b[31m"])


def test_tail_takes_channels_and_prints_json(cli):
    process = tailing(cli, "news", "sched", "--json", "-n", "2")
    cli.backstay.hub.publish("news", "é\n")
    hint = cli.backstay.hub.publish_scheduled("resize")
    code, out, _ = finish(process)
    assert code == 0
    shown = [json.loads(line) for line in out.splitlines()]
    for item in shown:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", item.pop("at"))
    assert {"channel": "news", "payload": "é\n", "missed": False} in shown
    job = {"channel": "sched", "payload": f"{hint}:resize", "missed": False, "type": "resize", "hint_id": hint}
    assert job in shown


def test_ctrl_c_ends_tail_without_output(cli):
    process = tailing(cli)
    process.send_signal(signal.SIGINT)
    assert finish(process) == (0, "", "")


def test_a_closed_pipe_ends_tail_without_output(cli):
    process = tailing(cli)
    process.stdout.close()
    process.stdout = None
    eventually(lambda: cli.backstay.hub.publish_chain_completed("c1") or process.poll() is not None, "it ends")
    assert finish(process)[::2] == (0, "")


def test_tail_of_a_missing_file_is_an_error(cli, tmp_path):
    result = cli.call("--url", f"sqlite:///{tmp_path / 'none.db'}", "hub", "tail")
    assert result.exit_code == 2
    assert not (tmp_path / "none.db").exists()


@pytest.mark.redis
def test_tail_listens_on_the_hub_from_the_environment(sqlite_cli, backstay_redis, monkeypatch):
    monkeypatch.setenv("BACKSTAY_HUB", backstay_redis.url)
    from backstay.sync import Backstay

    process = tailing(sqlite_cli, "-n", "1")
    with Backstay(backstay_redis.url, namespace=sqlite_cli.namespace) as stay:
        stay.hub.publish_chain_completed("c1")
    code, out, _ = finish(process)
    assert code == 0
    assert out.rstrip().endswith("chainc  c1")
