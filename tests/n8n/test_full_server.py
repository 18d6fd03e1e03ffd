"""What only a whole n8n server can show: a deployed workflow behind a webhook, stopped by its user, retried after a
failure. The lock is on the redis transport; where stock nodes cannot keep a promise, the test shows what happens.
"""

from __future__ import annotations

import json
import secrets
import threading
import urllib.error
import urllib.request
from itertools import pairwise

import pytest
from lab.stage import calling, hydrated, node
from redis import Redis

from holdfast import n8n_keys
from holdfast import sync as blocking
from holdfast.n8n import sync
from holdfast.n8n.client import Client
from holdfast.n8n.minting import mint
from holdfast.n8n.model import Workflow
from holdfast.n8n.primitives import KEYS, primitive
from holdfast.n8n.state import State
from holdfast.n8n.weave import LockOptions, add_lock
from holdfast.testing.waiting import eventually

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
            "holdfast": {"url": url},
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


@pytest.fixture
def deploy(n8n_server, holdfast_redis):
    made = []

    def make(*body, **options):
        data = {"host": "127.0.0.1", "port": holdfast_redis.port, "database": 0, "ssl": False}
        made.append(Deployed(n8n_server, "redis", ("redis", "redis", data), body, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def deploy_http(n8n_server, holdfast_server):
    made = []

    def make(*body, **options):
        url, token = holdfast_server
        data = {"name": "Authorization", "value": f"Bearer {token}"}
        made.append(Deployed(n8n_server, "http", ("holdfast", "httpHeaderAuth", data), body, url, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def redis(holdfast_redis):
    with Redis.from_url(holdfast_redis.url, decode_responses=True) as client:
        yield client


@pytest.fixture
def hf(holdfast_redis):
    with blocking.Holdfast(holdfast_redis.url) as made:
        yield made


@pytest.fixture
def ask(holdfast_server):
    """The server of the http transport, past n8n: status and JSON."""
    url, token = holdfast_server
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
    return not redis.exists(n8n_keys.lock_key(scope), n8n_keys.meta_key(scope))


def answer(name="Body"):
    return node(name, "set", 3.4, {"mode": "raw", "jsonOutput": '={{ { "done": true } }}', "options": {}})


def test_a_pushed_workflow_takes_the_lock_and_gives_it_back(deploy, redis):
    work = deploy(answer())
    status, body, _ = work.hit()
    assert (status, body) == (200, {"done": True})
    assert free(redis, work.scope)


def test_an_execution_waits_for_python_and_is_served(deploy, redis, hf):
    work = deploy(answer())
    lease = hf.lock(work.scope, wire="n8n", ttl=300).acquire()
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


def test_a_stopped_execution_leaves_its_waiter_looking_and_the_ttl_frees_what_it_takes(deploy, redis, hf):
    """Stop ends the caller. The acquire that it waits for goes on by itself, takes the lock when it is free, and nobody
    gives that back: its TTL does. On the http transport a grant that nobody confirms ends within seconds.
    """
    work = deploy(answer())
    lease = hf.lock(work.scope, wire="n8n", ttl=300).acquire()
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
    assert eventually(lambda: redis.exists(n8n_keys.meta_key(work.scope)), WITHIN)
    assert 0 < redis.ttl(n8n_keys.lock_key(work.scope)) <= 600
    assert eventually(lambda: not work.executions("running", "lock_acquisition"), WITHIN)
    assert not free(redis, work.scope)
    assert hf.locks.force_release(work.scope, wire="n8n").holders


def counted(body):
    """How often the body was run, as its first node counts."""
    return len(body.executions("success", "rate_limit_check"))


def fails_once(seconds=0):
    """Counts on the server, waits, and fails the first time."""
    inputs = {"scope": secrets.token_hex(4), "limit": 1, "windowSeconds": 600}
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
    """Answers at once, so it cannot move."""
    given = [one | {"alwaysOutputData": True} for one in body]
    return (reply(), *given), {"answers": "responseNode", "error_workflow": "error_handler_lock_cleanup", **options}


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
    monkeypatch.setattr("holdfast.n8n.waits.suspends", lambda _: "never")
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
