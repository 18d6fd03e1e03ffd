"""What only a whole n8n server can show: a deployed workflow behind a webhook, stopped by its user, retried after a
failure. The lock is on the redis transport; where stock nodes cannot keep a promise, the test shows what happens.
"""

from __future__ import annotations

import json
import secrets
import threading
import urllib.error
import urllib.request
from contextlib import contextmanager
from itertools import pairwise

import pytest
from lab.stage import calling, hydrated, node
from redis import Redis

from backstay import sync as blocking
from backstay.interop.n8n_wire import keys
from backstay.n8n.model import Workflow
from backstay.n8n.patch.patch import LockOptions, add_lock
from backstay.n8n.primitives import KEYS, primitive
from backstay.n8n.sync import sync
from backstay.n8n.sync.client import Client
from backstay.n8n.sync.create_placeholders import mint
from backstay.n8n.sync.state import State
from backstay.testing.waiting import eventually

pytestmark = [pytest.mark.n8n_server, pytest.mark.redis]

WORK = "work"
WITHIN = 120.0


class Deployed:
    """A woven workflow behind a webhook, with its primitives, pushed to a real n8n."""

    def __init__(self, server, transport, credential, body, url="", answers="lastNode", **options):
        self.server = server
        self.client = Client(server.url, server.key)
        self.scope = f"full-{secrets.token_hex(4)}"
        self.path = f"hook-{secrets.token_hex(4)}"
        name, kind, data = credential
        self.credential = self.client.create_credential(name, kind, data)
        parameters = {"path": self.path, "httpMethod": "POST", "responseMode": answers, "options": {}}
        hook = node("Hook", "webhook", 2, parameters, webhookId=self.path)
        names = ["Hook", *(one["name"] for one in body)]
        lines = {a: {"main": [[{"node": b, "type": "main", "index": 0}]]} for a, b in pairwise(names)}
        plain = Workflow(
            {"name": WORK, "nodes": [hook, *body], "connections": lines, "settings": {"executionOrder": "v1"}}
        )
        woven = add_lock(plain, WORK, LockOptions(self.scope, 600, 60, transport=transport, **options))
        self.wiring = woven.wiring
        templates = {**{key: primitive(key, transport) for key in KEYS}, **woven.others, WORK: woven.workflow}
        self.state = State()
        minted = mint(self.client, templates, self.state)
        settings = {
            "workflows": {change.key: {"id": change.id} for change in minted},
            "credentials": {name: {"id": self.credential, "name": name}},
            "backstay": {"url": url},
            "lockScopes": [self.scope],
        }
        built = {key: Workflow(hydrated(one, key, settings)) for key, one in templates.items()}
        sync.push(self.client, built, self.state)
        self.id = self.state.workflows[WORK].id
        self.client.publish(self.id)  # its webhook answers from now on: for the operator to decide, so push does not

    def hit(self, timeout=WITHIN):
        return self.server.call("POST", f"/webhook/{self.path}", {"n": 1}, timeout)

    def executions(self, status="", of=WORK):
        return self.client.executions(workflow_id=self.state.workflows[of].id, status=status, limit=50)

    def shown(self, name):
        """Ids and states of a workflow's executions, oldest first, as the editor shows them: also those that wait."""
        told = self.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
        ids = {known.id for known in self.state.workflows.values()}
        found = [one for one in told if one["workflowName"] == name and one["workflowId"] in ids]
        return sorted(((one["id"], one["status"]) for one in found), key=lambda one: int(one[0]))

    def output_of(self, execution, name):
        """The first item that a node gave."""
        told = self.client._call("GET", f"/executions/{execution}", query={"includeData": "true"})
        return told["data"]["resultData"]["runData"][name][0]["data"]["main"][0][0]["json"]

    def close(self):
        for known in self.state.workflows.values():
            self.client.delete(known.id)
        self.client.delete_credential(self.credential)


@contextmanager
def deploying_redis(server, backstay_redis):
    made = []

    def make(*body, **options):
        data = {"host": "127.0.0.1", "port": backstay_redis.port, "database": 0, "ssl": False}
        made.append(Deployed(server, "redis", ("redis", "redis", data), body, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@contextmanager
def deploying_http(server, backstay_server):
    made = []

    def make(*body, **options):
        url, token = backstay_server
        data = {"name": "Authorization", "value": f"Bearer {token}"}
        made.append(Deployed(server, "http", ("backstay", "httpHeaderAuth", data), body, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def deploy(n8n_server, backstay_redis):
    with deploying_redis(n8n_server, backstay_redis) as make:
        yield make


@pytest.fixture
def deploy_http(n8n_server, backstay_server):
    with deploying_http(n8n_server, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_queue(n8n_queue, backstay_server):
    """Over http, on an n8n in queue mode."""
    with deploying_http(n8n_queue, backstay_server) as make:
        yield make


@pytest.fixture
def deploy_redis_queue(n8n_queue, backstay_redis):
    with deploying_redis(n8n_queue, backstay_redis) as make:
        yield make


@pytest.fixture
def redis(backstay_redis):
    with Redis.from_url(backstay_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def stay(backstay_redis):
    with blocking.Backstay(backstay_redis.url) as made:
        yield made


@pytest.fixture
def ask(backstay_server):
    """The server of the http transport, past n8n: status and JSON."""
    url, token = backstay_server
    headers = {"Authorization": f"Bearer {token}", "content-type": "application/json"}

    def ask(scope, verb, **body):
        place = f"{url}/api/locks/{scope}/{verb}"
        request = urllib.request.Request(place, json.dumps(body).encode(), headers, method="POST")  # noqa: S310 - loopback
        try:
            with urllib.request.urlopen(request, timeout=60) as found:  # noqa: S310 - loopback
                return found.status, json.load(found)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return ask


def free(redis, scope):
    return not redis.exists(keys.lock_key(scope), keys.meta_key(scope))


def answer(name="Body"):
    return node(name, "set", 3.4, {"mode": "raw", "jsonOutput": '={{ { "done": true } }}', "options": {}})


def test_a_pushed_workflow_takes_the_lock_and_gives_it_back(deploy, redis):
    work = deploy(answer())
    status, body, _ = work.hit()
    assert (status, body) == (200, {"done": True})
    assert free(redis, work.scope)


def test_an_execution_waits_for_python_and_is_served(deploy, redis, stay):
    work = deploy(answer())
    lease = stay.lock(work.scope, wire="n8n", ttl=300).acquire()
    answers = []
    asking = threading.Thread(target=lambda: answers.append(work.hit()))
    asking.start()
    assert eventually(lambda: work.executions("running", "lock_acquisition"), WITHIN)
    assert answers == []
    lease.release()
    asking.join(WITHIN)
    assert answers[0][0] == 200
    assert free(redis, work.scope)


def test_a_failed_body_leaves_no_lock_and_its_retry_runs_without_one(deploy, redis):
    """n8n retries from the node that failed: what stands before it, the lock, is not taken again. Over redis that is
    shown, not mended: the workflow fails again without running anything, the body's own execution runs on unlocked.
    """
    work = deploy(answer("First"), node("Fails", "stopAndError", 1, {"errorMessage": "it fails"}))
    status, _, _ = work.hit()
    assert status >= 400
    assert eventually(lambda: free(redis, work.scope), WITHIN)
    assert eventually(lambda: work.executions("error"), WITHIN)
    failed = work.executions("error")[0]
    before = len(work.executions(of="lock_acquisition"))
    work.client.retry_execution(failed["id"])
    assert eventually(lambda: len(work.executions("error")) > 1, WITHIN)
    assert len(work.executions(of="lock_acquisition")) == before
    assert free(redis, work.scope)
    body = f"{WORK}_body"
    known = work.executions("error", body)  # the call of the body, and the body
    for execution in known:
        retrying(work, execution["id"]).join(WITHIN)
    assert eventually(lambda: len(work.executions("error", body)) > 2 * len(known), WITHIN)
    assert len(work.executions(of="lock_acquisition")) == before


def test_a_stopped_execution_leaves_its_waiter_looking_and_the_ttl_frees_what_it_takes(deploy, redis, stay):
    """Stop ends the caller. The acquire that it waits for goes on by itself, takes the lock when it is free, and nobody
    gives that back: its TTL does. On the http transport a grant that nobody confirms ends within seconds.
    """
    work = deploy(answer())
    lease = stay.lock(work.scope, wire="n8n", ttl=300).acquire()
    asking = threading.Thread(target=work.hit, args=(30,))
    asking.start()
    assert eventually(lambda: work.executions("running", "lock_acquisition"), WITHIN)
    (running,) = work.executions("running")
    status, _, _ = work.server.call("POST", f"/rest/executions/{running['id']}/stop")
    assert status == 200
    assert eventually(lambda: not work.executions("running"), WITHIN)
    asking.join(WITHIN)
    assert work.executions("running", "lock_acquisition")  # it goes on
    lease.release()
    assert eventually(lambda: redis.exists(keys.meta_key(work.scope)), WITHIN)
    assert 0 < redis.ttl(keys.lock_key(work.scope)) <= 600
    assert eventually(lambda: not work.executions("running", "lock_acquisition"), WITHIN)
    assert not free(redis, work.scope)
    assert stay.locks.force_release(work.scope, wire="n8n").holders


def counted(body):
    """How often the body was run, as its first node counts."""
    return len(body.executions("success", "rate_limit_check"))


def fails_once(seconds=0):
    """Counts on the server, waits, and fails the first time."""
    inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
    first = "={{ $('Count').first().json.allowed ? 'no object' : { done: true } }}"
    return (
        calling("Count", "{{@:env:workflows.rate_limit_check.id}}", inputs),
        node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}),
        node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}}),
    )


def failed_once(work):
    """Its execution; the body has run, and its lock is free."""
    status, body, _ = work.hit()
    assert status >= 400 or body is None  # so answers n8n where a node should have answered
    assert eventually(lambda: work.executions("error"), WITHIN)
    assert counted(work) == 1
    (failed,) = work.executions("error")
    return failed["id"]


def retrying(work, execution):
    """As the editor does; n8n answers when it is over."""
    asking = threading.Thread(target=work.server.call, args=("POST", f"/rest/executions/{execution}/retry", {}, WITHIN))
    asking.start()
    return asking


def test_on_http_a_retry_takes_the_lock_anew_and_runs_the_body_under_it(deploy_http, ask):
    work = deploy_http(*fails_once(seconds=5))
    failed = failed_once(work)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")
    asking = retrying(work, failed)
    assert eventually(lambda: counted(work) == 2, WITHIN)  # in the body now
    status, held = ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
    assert status == 409, held
    asking.join(WITHIN)
    (again,) = work.executions("success")
    assert again["retryOf"] == failed
    assert [one["id"] for one in work.executions("error")] == [failed]
    first, second = reversed(work.executions("success", "lock_acquisition"))
    grants = [work.output_of(one["id"], "Build Acquire Output") for one in (first, second)]
    assert [grant["execution_id"] for grant in grants] == [failed, again["id"]]
    assert len({grant["lock_id"] for grant in grants}) == 2
    assert len(work.executions("success", "lock_release")) == 2
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def test_on_http_a_retry_never_runs_beside_another_holder(deploy_http, ask):
    work = deploy_http(*fails_once())
    failed = failed_once(work)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200

    def waiting():
        return ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[1]["count"] == 2

    asking = retrying(work, failed)
    assert eventually(waiting, WITHIN)  # one holds it, one waits
    assert (counted(work), work.executions("success")) == (1, [])
    ask(work.scope, "release", lock_id="python")
    asking.join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (2, 1)


def test_on_http_two_retries_of_one_execution_run_one_after_the_other(deploy_http, ask):
    work = deploy_http(*fails_once(seconds=3))
    failed = failed_once(work)
    both = [retrying(work, failed) for _ in range(2)]
    for asking in both:
        asking.join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (3, 2)
    grants = sorted(one["stoppedAt"] for one in work.executions("success", "lock_acquisition"))
    releases = sorted(one["startedAt"] for one in work.executions("success", "lock_release"))
    assert grants[1] < releases[1] <= grants[2] < releases[2]


def test_on_http_nothing_but_the_locked_workflow_itself_can_be_retried(deploy_http, ask):
    """Neither the body nor what calls it: n8n keeps nothing of them when they have failed."""
    work = deploy_http(*fails_once())
    failed = failed_once(work)
    for what in ("locked body", "locked retry"):
        assert work.shown(f"{WORK} ({what})") == []
    told = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in told)
    for other in range(int(failed) + 1, last + 1):
        status, said, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, said
    assert counted(work) == 1
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def test_on_http_a_retry_after_the_wait_was_too_long_takes_the_lock(deploy_http, ask):
    """It is the acquire that failed then, and so it is what n8n starts again at."""
    work = deploy_http(answer(), fail_fast=True)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    assert work.hit()[0] >= 400
    assert eventually(lambda: work.executions("error"), WITHIN)
    ask(work.scope, "release", lock_id="python")
    retrying(work, work.executions("error")[0]["id"]).join(WITHIN)
    assert len(work.executions("success")) == 1
    assert len(work.executions("success", "lock_release")) == 1


def test_on_http_a_crashed_execution_is_retried_through_the_lock_and_its_body_cannot_be(deploy_http, ask):
    """n8n keeps nothing of a crashed body either; the error workflow frees its lock, a retry begins at the trigger."""
    work = deploy_http(*fails_once(seconds=20), error_workflow="error_handler_lock_cleanup")
    asking = threading.Thread(target=work.hit)
    asking.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash()
    asking.join(WITHIN)
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["crashed"], WITHIN)
    for what in ("locked body", "locked retry"):
        assert eventually(lambda what=what: work.shown(f"{WORK} ({what})") == [], WITHIN)
    ((crashed, _),) = work.shown(WORK)
    retrying(work, crashed).join(WITHIN)
    assert (counted(work), len(work.executions("success"))) == (2, 1)
    assert len(work.executions("success", "lock_acquisition")) == 2


def reply():
    return node("Reply", "respondToWebhook", 1.1, {"respondWith": "firstIncomingItem", "options": {}})


def test_on_http_a_body_whose_answer_is_last_answers_behind_its_lock_and_is_retried_under_it(deploy_http, ask):
    """The answer stays with the webhook, the rest moves; so a retry takes the lock anew, as with any other body."""
    work = deploy_http(*fails_once(seconds=3), reply(), answers="responseNode")
    assert work.wiring == "sub-workflow"
    asking = retrying(work, failed_once(work))
    assert eventually(lambda: counted(work) == 2, WITHIN)  # in the body now
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    asking.join(WITHIN)
    assert len(work.executions("success")) == 1
    assert work.hit()[:2] == (200, {"done": True})
    assert (counted(work), len(work.executions("success", "lock_release"))) == (3, 3)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")


def nothing_left(work, ask):
    """Its error workflow has freed the lock, and n8n knows no execution of it, so none can be retried."""
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    told = work.server.call("GET", "/rest/executions?limit=50")[1]["data"]["results"]
    last = max(int(one["id"]) for one in told)
    for other in range(last, max(0, last - 10), -1):
        status, said, _ = work.server.call("POST", f"/rest/executions/{other}/retry", {})
        assert status >= 400, said
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 200
    ask(work.scope, "release", lock_id="probe")
    return True


def stays(*body, **options):
    """Answers at once, so it cannot move, and that is accepted."""
    given = [one | {"alwaysOutputData": True} for one in body]
    accepted = {"error_workflow": "error_handler_lock_cleanup", "in_place": True}
    return (reply(), *given), {"answers": "responseNode", **accepted, **options}


def test_on_http_nothing_is_left_to_retry_of_a_body_that_stayed_in_its_place(deploy_http, ask):
    body, options = stays(*fails_once())
    work = deploy_http(*body, **options)
    assert work.wiring == "inline"
    assert work.hit()[0] == 200  # the answer came first
    assert nothing_left(work, ask)
    assert (counted(work), len(work.executions("success", "lock_acquisition"))) == (1, 1)
    assert work.hit()[0] == 200  # started anew, it runs through
    assert eventually(lambda: work.executions("success"), WITHIN)
    assert len(work.executions("success", "lock_acquisition")) == 2


def test_on_http_nothing_is_left_to_retry_of_a_body_that_stayed_in_its_place_and_was_suspended(deploy_http, ask):
    pause = node("Pause", "wait", 1.1, {"resume": "webhook", "options": {}}, webhookId=secrets.token_hex(8))
    body, options = stays(pause, broken())
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["waiting"], WITHIN)
    ((suspended, _),) = work.shown(WORK)
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409
    assert work.server.call("GET", f"/webhook-waiting/{suspended}")[0] == 200
    assert nothing_left(work, ask)


def test_on_http_nothing_is_left_to_retry_of_a_body_that_stayed_in_its_place_and_crashed(deploy_http, ask):
    body, options = stays(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash()
    assert nothing_left(work, ask)
    assert counted(work) == 1


def test_on_http_nothing_is_left_to_retry_of_a_body_that_stayed_in_its_place_and_was_stopped(deploy_http, ask):
    body, options = stays(*fails_once(seconds=20))
    work = deploy_http(*body, **options)
    assert work.hit()[0] == 200
    assert eventually(lambda: counted(work) == 1, WITHIN)
    (running,) = work.executions("running")
    assert work.server.call("POST", f"/rest/executions/{running['id']}/stop")[0] == 200
    assert eventually(lambda: work.shown(WORK) == [], WITHIN)
    assert work.server.call("POST", f"/rest/executions/{running['id']}/retry", {})[0] == 404
    assert counted(work) == 1
    # It was stopped in a Wait, of which n8n 1 tells no error workflow: its TTL frees the lock.
    assert ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)[0] == 409


def broken():
    """Fails in its place, as nodes do."""
    return node("Fails", "set", 3.4, {"mode": "raw", "jsonOutput": "={{ 'no object' }}", "options": {}})


def test_a_body_that_stayed_in_its_place_and_failed_is_cleaned_up_after_by_the_error_workflow(deploy, redis):
    """Which n8n 2.x starts only when it is published: a push sees to that."""
    work = deploy(reply(), broken(), answers="responseNode", error_workflow="error_handler_lock_cleanup")
    assert work.wiring == "inline"
    work.hit()
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    assert free(redis, work.scope)


def test_n8n_does_not_tell_of_the_failure_of_a_body_that_it_suspended(deploy, redis, monkeypatch):
    """Why such a body gets no lock: held and released rightly, and then a success over a failure."""
    monkeypatch.setattr("backstay.n8n.analysis.waits.suspends", lambda _: "never")
    pause = node("Pause", "wait", 1.1, {"resume": "webhook", "options": {}}, webhookId=secrets.token_hex(8))
    work = deploy(answer("First"), pause, broken())
    assert work.wiring == "sub-workflow"
    asking = threading.Thread(target=work.hit, args=(60,))
    asking.start()
    body = f"{WORK} (locked body)"
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["waiting"], WITHIN)
    (_, _), (suspended, _) = work.shown(body)  # the call of the body, and the body
    assert not free(redis, work.scope)
    assert work.server.call("GET", f"/webhook-waiting/{suspended}")[0] == 200
    assert eventually(lambda: [status for _, status in work.shown(WORK)] == ["success"], WITHIN)
    assert [status for _, status in work.shown(body)] == ["success", "error"]
    assert free(redis, work.scope)
    asking.join(WITHIN)


def test_on_http_what_a_stopped_executions_waiter_takes_lapses(deploy_http, ask):
    """The same on the http transport: nobody confirms the grant, so it ends within seconds."""
    work = deploy_http(answer())

    def take():
        return ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)

    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200
    asking = threading.Thread(target=work.hit, args=(30,))
    asking.start()
    assert eventually(lambda: take()[1]["count"] == 2, WITHIN)  # one holds it, one waits
    (running,) = work.executions("running")
    assert work.server.call("POST", f"/rest/executions/{running['id']}/stop")[0] == 200
    asking.join(WITHIN)
    ask(work.scope, "release", lock_id="python")
    assert take()[0] == 409  # the waiter goes on, and has it now
    assert eventually(lambda: take()[0] == 200, WITHIN)
    ask(work.scope, "release", lock_id="probe")


# ── stopped, or out of time, while a body that became a sub-workflow runs: n8n does not stop that ──

CLEAN_UP = "error_handler_lock_cleanup"
LOCKED_BODY = f"{WORK} (locked body)"
on_error = pytest.mark.parametrize("error_workflow", [CLEAN_UP, ""])


def slow(seconds):
    """Counts, waits, and counts again."""

    def count(name):
        inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 10_000_000}
        return calling(name, "{{@:env:workflows.rate_limit_check.id}}", inputs)

    return count("Count"), node("Pause", "wait", 1.1, {"amount": seconds, "unit": "seconds"}), count("Count Again")


def held_on_redis(work, redis):
    return lambda: not free(redis, work.scope)


def held_on_http(work, ask):
    def held():
        status, _ = ask(work.scope, "acquire", lock_id="probe", wait_till_lock_released=False)
        return status == 409 or ask(work.scope, "release", lock_id="probe")[0] != 200

    return held


def in_its_body(work):
    """Started; the id of the execution, and who waits for its answer."""
    asking = threading.Thread(target=work.hit, args=(60,))
    asking.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)
    (running,) = work.executions("running")
    return running["id"], asking


def stop(work, execution):
    assert work.server.call("POST", f"/rest/executions/{execution}/stop")[0] == 200


def held_while_the_body_runs(work, held):
    """Looked at again and again, until the body has ended."""
    running = True
    while running:
        was_held = held()
        running = "running" in [status for _, status in work.shown(LOCKED_BODY)]
        assert was_held or not running
        assert not running or not work.executions(of=CLEAN_UP)  # nobody has even tried to free it
    return True


def held_after_a_stop(work, held):
    """For as long as the body runs, and longer: nobody frees it but its TTL, and n8n's retry runs nothing."""
    stopped, asking = in_its_body(work)
    stop(work, stopped)
    assert eventually(lambda: work.shown(WORK) == [(stopped, "canceled")], WITHIN)
    assert "running" in [status for _, status in work.shown(LOCKED_BODY)]
    assert held_while_the_body_runs(work, held)
    asking.join(WITHIN)
    assert counted(work) == 2  # to its end
    assert [status for _, status in work.shown(LOCKED_BODY)] == ["success"] * 2
    assert work.executions(of=CLEAN_UP) == []
    assert work.executions(of="lock_release") == []
    retrying(work, stopped).join(WITHIN)
    assert counted(work) == 2
    assert held()
    (taken,) = work.executions("success", "lock_acquisition")
    return work.output_of(taken["id"], "Build Acquire Output")


@on_error
def test_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy, redis, stay, error_workflow):
    """n8n tells no error workflow of the stop, so `--lock-on-error` changes nothing."""
    work = deploy(*slow(5), error_workflow=error_workflow)
    grant = held_after_a_stop(work, held_on_redis(work, redis))
    assert 0 < redis.ttl(grant["key"]) <= 600
    (holder,) = stay.locks.force_release(work.scope, wire="n8n").holders
    assert holder.lock_id == grant["lock_id"]


@on_error
def test_on_http_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_http, ask, error_workflow):
    work = deploy_http(*slow(5), error_workflow=error_workflow)
    held = held_on_http(work, ask)
    grant = held_after_a_stop(work, held)
    assert ask(work.scope, "release", lock_id=grant["lock_id"])[0] == 200  # by hand
    assert not held()


def set_time_limit(work, seconds):
    """Of the locked workflow, past what weaving leaves it for its body."""
    data = work.client.workflow(work.id).data
    wanted = {name: data[name] for name in ("name", "nodes", "connections")}
    kept = {name: data["settings"][name] for name in ("executionOrder", "errorWorkflow")}
    work.client.update(work.id, {**wanted, "settings": {**kept, "executionTimeout": seconds}})


def held_after_its_time_was_up(work, held):
    """n8n tells a sub-workflow of its caller's limit: it ends before its next node, and no sooner."""
    set_time_limit(work, 6)
    late, asking = in_its_body(work)
    assert held_while_the_body_runs(work, held)
    assert eventually(lambda: work.shown(WORK) == [(late, "canceled")], WITHIN)
    asking.join(WITHIN)
    assert counted(work) == 1
    return True


def test_a_lock_is_held_while_the_body_of_an_execution_runs_whose_time_was_up(deploy, redis, stay):
    """n8n in one process tells no error workflow of that either."""
    work = deploy(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_redis(work, redis)
    assert held_after_its_time_was_up(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []
    assert stay.locks.force_release(work.scope, wire="n8n").holders


def test_on_http_a_lock_is_held_while_the_body_of_an_execution_runs_whose_time_was_up(deploy_http, ask):
    work = deploy_http(*slow(9), error_workflow=CLEAN_UP)
    held = held_on_http(work, ask)
    assert held_after_its_time_was_up(work, held)
    assert held()
    assert work.executions(of=CLEAN_UP) == []


def test_a_body_that_is_stopped_as_well_does_not_go_on(deploy, redis, stay):
    work = deploy(*slow(5), error_workflow=CLEAN_UP)
    stopped, asking = in_its_body(work)
    stop(work, stopped)
    asking.join(WITHIN)
    _, (body, _) = work.shown(LOCKED_BODY)  # the call of the body, and the body
    stop(work, body)
    assert not free(redis, work.scope)
    assert stay.locks.force_release(work.scope, wire="n8n").holders
    assert work.hit()[0] == 200  # another one, which waits longer than the first one had left
    assert counted(work) == 3
    assert free(redis, work.scope)


# ── queue mode: n8n's main process answers, a worker runs the workflows ──


def test_in_queue_mode_a_retry_takes_the_lock_anew_and_runs_the_body_under_it(deploy_queue, ask):
    test_on_http_a_retry_takes_the_lock_anew_and_runs_the_body_under_it(deploy_queue, ask)


def test_in_queue_mode_nothing_but_the_locked_workflow_itself_can_be_retried(deploy_queue, ask):
    test_on_http_nothing_but_the_locked_workflow_itself_can_be_retried(deploy_queue, ask)


def test_in_queue_mode_a_body_in_its_place_is_kept_and_retried_without_the_lock(deploy_queue, ask):
    """Why such a body is refused until somebody accepts it: n8n keeps what failed although it was told not to, and
    begins at the node that failed. Shown, not mended.
    """
    first = "={{ $execution.id === $('Lock Acquire').first().json.execution_id ? 'no object' : { done: true } }}"
    broken = node("Broken", "set", 3.4, {"mode": "raw", "jsonOutput": first, "options": {}})
    count, *_ = fails_once()
    body, options = stays(broken, count)
    work = deploy_queue(*body, **options)
    assert work.wiring == "inline"
    assert work.client.workflow(work.id).data["settings"]["saveDataErrorExecution"] == "none"
    assert work.hit()[0] == 200  # the answer came first
    assert eventually(lambda: work.executions("success", "error_handler_lock_cleanup"), WITHIN)
    ((failed, status),) = work.shown(WORK)
    assert (status, counted(work)) == ("error", 0)
    assert ask(work.scope, "acquire", lock_id="python", ttl_seconds=300)[0] == 200  # the error workflow has freed it
    retrying(work, failed).join(WITHIN)
    assert counted(work) == 1  # the rest of the body has run, beside another holder
    assert len(work.executions(of="lock_acquisition")) == 1
    assert ask(work.scope, "release", lock_id="python")[0] == 200


def test_in_queue_mode_what_is_left_of_a_body_whose_worker_was_lost_runs_nothing(deploy_queue, ask):
    """n8n then marks what it cannot find in its queue as crashed, whatever is set, and offers to retry it."""
    work = deploy_queue(*fails_once(seconds=20))
    asking = threading.Thread(target=work.hit)
    asking.start()
    assert eventually(lambda: counted(work) == 1, WITHIN)  # in the body
    work.server.crash(forgets=True)
    asking.join(WITHIN)
    body = f"{WORK} (locked body)"
    assert eventually(lambda: [status for _, status in work.shown(body)] == ["crashed"] * 2, WITHIN)
    for left, _ in work.shown(body):  # the call of the body, and the body
        retrying(work, left).join(WITHIN)
    assert [status for _, status in work.shown(body)] == ["crashed"] * 2 + ["error"] * 2
    assert counted(work) == 1


def test_in_queue_mode_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_queue, ask):
    test_on_http_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_queue, ask, CLEAN_UP)


def test_in_queue_mode_on_redis_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(
    deploy_redis_queue, redis, stay
):
    test_a_lock_outlives_the_body_of_a_stopped_execution_until_its_ttl_ends(deploy_redis_queue, redis, stay, CLEAN_UP)


def freed_when_the_body_had_ended(work, held):
    """In queue mode n8n looks at the clock between nodes alone: the error workflow comes when the body has ended."""
    assert held_after_its_time_was_up(work, held)
    assert eventually(lambda: work.executions("success", CLEAN_UP), WITHIN)
    (cleaned,) = work.executions("success", CLEAN_UP)
    told = work.output_of(cleaned["id"], "Error Trigger")["execution"]
    assert (told["error"]["name"], told["lastNodeExecuted"]) == ("TimeoutExecutionCancelledError", "Locked Body")
    assert work.output_of(cleaned["id"], "Log Cleanup")["scopes"] == [work.scope]
    return not held()


def test_in_queue_mode_the_error_workflow_frees_the_lock_when_the_time_was_up_and_the_body_has_ended(deploy_queue, ask):
    work = deploy_queue(*slow(9), error_workflow=CLEAN_UP)
    assert freed_when_the_body_had_ended(work, held_on_http(work, ask))


def test_in_queue_mode_on_redis_the_error_workflow_frees_the_lock_when_the_time_was_up_and_the_body_has_ended(
    deploy_redis_queue, redis
):
    work = deploy_redis_queue(*slow(9), error_workflow=CLEAN_UP)
    assert freed_when_the_body_had_ended(work, held_on_redis(work, redis))


def test_in_queue_mode_a_body_that_somebody_stops_runs_on_under_its_lock(deploy_queue, ask):
    """n8n says that it is canceled; but its main process cannot reach a sub-workflow that a worker runs."""
    work = deploy_queue(*slow(5), error_workflow=CLEAN_UP)
    held = held_on_http(work, ask)
    _, asking = in_its_body(work)
    _, (body, _) = work.shown(LOCKED_BODY)
    stop(work, body)
    assert work.shown(LOCKED_BODY)[1] == (body, "canceled")
    assert (counted(work), held()) == (1, True)
    asking.join(WITHIN)
    assert counted(work) == 2
    assert [status for _, status in work.shown(WORK)] == ["success"]
    assert not held()
