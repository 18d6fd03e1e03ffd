"""The primitives on n8n's own Redis nodes, in the real engines, on a real Redis."""

from __future__ import annotations

import json
import time
import uuid
from datetime import UTC, datetime

import pytest
from lab.runner import caller, calling, chain, hydrated, node

from backstay.interop.n8n_wire.keys import IDENTITY, limit_bucket, limit_key, lock_key, meta_key
from backstay.n8n.primitives import primitive
from backstay.testing.servers import say
from backstay.testing.servers.ports import reserve_port
from backstay.testing.waiting import WITHIN, eventually

pytestmark = pytest.mark.redis

TEN = {"acquired", "count", "scope", "lock_id", "key", "meta_key", "workflow_id", "workflow_name"}
TEN |= {"execution_id", "locked_at"}


@pytest.fixture
def redis(backstay_redis):
    """Sends single commands to Redis directly."""

    def command(*words):
        reply = say(backstay_redis, *words)
        return reply.decode() if isinstance(reply, bytes) else reply

    return command


def holds(redis, scope, lock_id="theirs", ttl=60, **fields):
    """Write the keys of a lock that another holder took, as the nodes do."""
    identity = dict.fromkeys(IDENTITY, "") | {"lock_id": lock_id, "locked_at": "2026-01-01T00:00:00.000Z"} | fields
    redis("SET", lock_key(scope), 1, "EX", ttl)
    redis("SET", meta_key(scope), json.dumps(identity), "EX", ttl)


def test_a_free_lock_is_taken_and_records_its_holder(over_redis, redis, scope):
    before = datetime.now(UTC)
    asked = {"lock_id": "mine", "execution_id": "42", "workflow_id": "wf", "workflow_name": "Billing"}
    done = over_redis.call("lock_acquisition", scope=scope, ttl_seconds=60, **asked)
    (got,) = done.items
    assert set(got) == TEN
    at = got.pop("locked_at")
    assert got == {
        "acquired": True,
        "count": 1,
        "scope": scope,
        "key": f"n8n-lock-{scope}",
        "meta_key": f"n8n-lock-{scope}:meta",
        **asked,
    }
    assert before.replace(microsecond=0) <= datetime.fromisoformat(at) <= datetime.now(UTC)
    assert at.endswith("Z")
    assert json.loads(redis("GET", meta_key(scope))) == {**asked, "locked_at": at}
    assert redis("GET", lock_key(scope)) == "1"
    assert 55 <= redis("TTL", lock_key(scope)) <= 60
    assert 55 <= redis("TTL", meta_key(scope)) <= 60


def test_omitted_redis_inputs_have_the_documented_defaults(over_redis, redis, scope):
    done = over_redis.call("lock_acquisition", scope=scope)
    (got,) = done.items
    assert uuid.UUID(got["lock_id"]).version == 4
    (acquiring,) = done.of("lock_acquisition")
    assert got["execution_id"] == acquiring.id
    assert (got["workflow_id"], got["workflow_name"]) == ("", "")
    assert 86_300 <= redis("TTL", lock_key(scope)) <= 86_400
    assert 86_300 <= redis("TTL", meta_key(scope)) <= 86_400


def test_each_acquire_generates_its_own_lock_id(over_redis, scope):
    ids = {over_redis.call("lock_acquisition", scope=f"{scope}{n}", execution_id="7").items[0]["lock_id"] for n in "ab"}
    assert len(ids) == 2


def test_a_call_without_wait_fails_at_once_and_changes_no_key(over_redis, redis, scope):
    holds(redis, scope, ttl=30)
    done = over_redis.call("lock_acquisition", scope=scope, wait_till_lock_released=False, ttl_seconds=600)
    (acquiring,) = done.of("lock_acquisition")
    assert "Wait Before Poll" not in acquiring.runs
    assert (done.status, done.message) == ("error", f'Lock "{scope}" is held (count 1).')
    assert redis("TTL", lock_key(scope)) <= 30
    assert redis("GET", lock_key(scope)) == "1"
    assert json.loads(redis("GET", meta_key(scope)))["lock_id"] == "theirs"


def test_a_waiter_gets_the_lock_at_the_release_and_never_changes_the_holders_ttl(over_redis, redis, scope):
    first = over_redis.call("lock_acquisition", scope=scope, ttl_seconds=30, lock_id="first").items[0]
    waiting = over_redis.begin("lock_acquisition", scope=scope, ttl_seconds=600, lock_id="second")
    assert eventually(lambda: waiting.reached("Wait Before Poll"))
    assert not waiting.done
    assert redis("TTL", lock_key(scope)) <= 30
    assert redis("GET", lock_key(scope)) == "1"
    released = over_redis.call("lock_release", scope=scope, lock_id=first["lock_id"])
    assert released.items == [{"released": True, "idempotent": False, "scope": scope, "lock_id": "first"}]
    (got,) = waiting.result(WITHIN).items
    assert (got["acquired"], got["count"], got["lock_id"]) == (True, 1, "second")
    assert json.loads(redis("GET", meta_key(scope)))["lock_id"] == "second"
    assert redis("TTL", lock_key(scope)) > 500


def test_a_redis_wait_ends_after_max_wait(over_redis, redis, scope):
    holds(redis, scope)
    begun = time.monotonic()
    done = over_redis.call("lock_acquisition", scope=scope, max_wait_seconds=1.5)
    assert 1.5 <= time.monotonic() - begun < 20
    assert (done.status, done.message) == ("error", f'Lock "{scope}" was not free within 1.5 s (count 1).')
    assert redis("GET", lock_key(scope)) == "1"


def test_max_wait_of_zero_takes_a_free_lock_and_fails_on_a_held_one(over_redis, redis, scope):
    taken = over_redis.call("lock_acquisition", scope=scope, max_wait_seconds=0)
    assert taken.items[0]["acquired"]
    done = over_redis.call("lock_acquisition", scope=scope, max_wait_seconds=0)
    assert done.message == f'Lock "{scope}" was not free within 0 s (count 1).'
    (acquiring,) = done.of("lock_acquisition")
    assert "Wait Before Poll" not in acquiring.runs


def test_an_expired_lock_goes_to_the_waiter(over_redis, redis, scope):
    holds(redis, scope, ttl=1)
    (got,) = over_redis.call("lock_acquisition", scope=scope, max_wait_seconds=20).items
    assert got["acquired"]


def test_the_loser_of_an_acquire_race_waits(over_redis, redis, scope):
    """Another caller increments between GET and INCR: this one saw a free lock, and its count is 2."""
    racing = primitive("lock_acquisition", "redis").copy()
    racing.find("GET Lock").data["parameters"]["key"] = (
        "={{ $runIndex ? $('Build Lock Context').first().json.key : 'n8n-nobody' }}"
    )
    acquire = hydrated(racing, "lock_acquisition", over_redis.settings)
    holds(redis, scope, ttl=30)
    run = over_redis.lab.start(
        [caller(acquire["id"], {"scope": scope, "ttl_seconds": 60}), acquire], credentials=over_redis.credentials
    )
    assert eventually(lambda: redis("GET", lock_key(scope)) == "2")
    assert json.loads(redis("GET", meta_key(scope)))["lock_id"] == "theirs"
    # A limit of stock nodes: in a race, and only then, the loser's TTL replaces the holder's.
    assert eventually(lambda: redis("TTL", lock_key(scope)) > 30)
    redis("DEL", meta_key(scope), lock_key(scope))
    assert run.result(WITHIN).items[0]["count"] == 1


@pytest.mark.race
def test_concurrent_acquires_of_one_lock_are_granted_one_at_a_time(over_redis, scope):
    runs = [over_redis.begin("lock_acquisition", scope=scope, lock_id=f"w{n}", ttl_seconds=60) for n in range(8)]
    order = []
    while runs:
        assert eventually(lambda: [run for run in runs if run.done], 60)
        done = [run for run in runs if run.done]
        assert len(done) == 1, "two hold it at once"
        runs.remove(done[0])
        (got,) = done[0].result().items
        order.append(got["lock_id"])
        over_redis.call("lock_release", scope=scope, lock_id=got["lock_id"])
    assert sorted(order) == [f"w{n}" for n in range(8)]


def test_each_poll_costs_three_node_runs(over_redis, redis, scope):
    """n8n keeps the output of every node run, and a day of waiting is 86,400 polls."""
    holds(redis, scope)
    done = over_redis.call("lock_acquisition", scope=scope, max_wait_seconds=4.5)
    (acquiring,) = done.of("lock_acquisition")
    looks = len(acquiring.runs["Wait Before Poll"])
    assert looks >= 1
    assert len(acquiring.runs["GET Lock"]) == len(acquiring.runs["Keep Waiting?"]) == looks + 1
    assert len(acquiring.runs["Check Wait State"]) == 1


def test_a_stopped_waiting_execution_still_takes_the_lock(over_redis, redis, scope):
    """A limit of stock nodes: n8n does not stop the sub-workflow. Over http its grant expires unconfirmed."""
    holds(redis, scope)
    waiting = over_redis.begin("lock_acquisition", scope=scope, lock_id="stopped", ttl_seconds=60)
    assert eventually(lambda: waiting.reached("Keep Waiting?"))
    waiting.stop()
    assert waiting.result(WITHIN).status == "canceled"
    redis("DEL", meta_key(scope), lock_key(scope))
    assert eventually(lambda: "stopped" in str(redis("GET", meta_key(scope))), 20)
    assert redis("TTL", lock_key(scope)) <= 60


def test_an_acquire_from_an_unreachable_redis_ends_at_the_callers_timeout(over_redis, scope):
    """n8n's Redis nodes retry for a quarter of an hour before they fail."""
    over_redis.credentials = [{"id": "redis", "data": {"host": "127.0.0.1", "port": reserve_port(), "ssl": False}}]
    done = over_redis.run(chain("w", calling("Call", "lock_acquisition", {"scope": scope}), executionTimeout=1))
    assert done.status == "canceled"


# ── release ──


def test_a_second_release_succeeds_and_deletes_nothing(over_redis, redis, scope):
    over_redis.call("lock_acquisition", scope=scope, lock_id="mine")
    over_redis.call("lock_release", scope=scope, lock_id="mine")
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 0
    # Another caller is acquiring it: the counter exists, the identity does not yet.
    redis("SET", lock_key(scope), 1, "EX", 60)
    done = over_redis.call("lock_release", scope=scope, lock_id="mine")
    assert done.items == [{"released": True, "idempotent": True, "scope": scope, "lock_id": "mine"}]
    assert redis("GET", lock_key(scope)) == "1"


def test_releasing_a_foreign_lock_on_redis_fails_and_names_the_holder(over_redis, redis, scope):
    holds(redis, scope, workflow_name="Payroll", execution_id="17")
    done = over_redis.call("lock_release", scope=scope, lock_id="mine")
    assert done.status == "error"
    assert done.message.startswith("LOGIC ERROR:")
    for part in (scope, "Payroll", "17", "2026-01-01T00:00:00.000Z"):
        assert part in done.message
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 2


@pytest.mark.parametrize("word", ["preexisting", "ECONNREFUSED", "enoent getaddrinfo"])
def test_n8n_does_not_rewrite_errors_whose_scope_contains_an_error_code(over_redis, redis, scope, word):
    holds(redis, scope + word, workflow_name=word)
    done = over_redis.call("lock_release", scope=scope + word, lock_id="mine")
    assert done.message.startswith("LOGIC ERROR:")
    assert scope + word in done.message.replace("\u2060", "")


@pytest.mark.parametrize("meta", ["no json", "[]", '"mine"', "null", "{}", '{"lock_id": 7}'])
def test_a_lock_with_an_unreadable_identity_cannot_be_released(over_redis, redis, scope, meta):
    redis("SET", lock_key(scope), 1, "EX", 60)
    redis("SET", meta_key(scope), meta, "EX", 60)
    done = over_redis.call("lock_release", scope=scope, lock_id="7")
    assert done.message.startswith("LOGIC ERROR:")
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 2


# ── clean-up ──

STOP = node("Fail", "stopAndError", 1, {"errorMessage": "the body failed"})


def failing(scope, **settings):
    inputs = {"scope": scope, "execution_id": "={{ $execution.id }}", "lock_id": "mine"}
    return chain(
        "w", calling("Acquire", "lock_acquisition", inputs), STOP, errorWorkflow="error_handler_lo", **settings
    )


def test_clean_up_releases_only_the_locks_of_the_failed_execution(over_redis, redis, scope):
    other, free = f"{scope}-other", f"{scope}-free"
    over_redis.scopes = (other, scope, free)
    holds(redis, other, execution_id="1")
    done = over_redis.run(failing(scope))
    assert done.message == "the body failed"
    (cleaning,) = done.of("error_handler_lock_cleanup")
    assert cleaning.status == "success", cleaning.message
    reason = f"execution {done.id} failed"
    assert cleaning.items == [{"cleaned": True, "cleaned_count": 1, "scopes": [scope], "reason": reason}]
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 0
    assert redis("EXISTS", lock_key(other), meta_key(other)) == 2


def test_clean_up_releases_several_locks_of_one_execution(over_redis, redis, scope):
    over_redis.scopes = tuple(f"{scope}{n}" for n in range(3))
    inputs = [{"scope": one, "execution_id": "={{ $execution.id }}"} for one in over_redis.scopes]
    takes = [calling(f"Acquire {n}", "lock_acquisition", one) for n, one in enumerate(inputs)]
    done = over_redis.run(chain("w", *takes, STOP, errorWorkflow="error_handler_lo"))
    (cleaning,) = done.of("error_handler_lock_cleanup")
    assert (cleaning.items[0]["cleaned_count"], cleaning.items[0]["scopes"]) == (3, list(over_redis.scopes))
    assert redis("EXISTS", *(lock_key(one) for one in over_redis.scopes)) == 0


def test_clean_up_of_an_execution_without_locks_changes_no_key(over_redis, redis, scope):
    over_redis.scopes = (scope,)
    holds(redis, scope, execution_id="1")
    done = over_redis.run(chain("w", STOP, errorWorkflow="error_handler_lo"))
    (cleaning,) = done.of("error_handler_lock_cleanup")
    (got,) = cleaning.items
    assert (got["cleaned"], got["cleaned_count"], got["scopes"]) == (False, 0, [])
    assert "holds none" in got["reason"]
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 2


def test_clean_up_without_registered_scopes_reports_the_gap(over_redis, scope):
    done = over_redis.run(failing(scope))
    (cleaning,) = done.of("error_handler_lock_cleanup")
    (got,) = cleaning.items
    assert (got["cleaned"], got["cleaned_count"], got["scopes"]) == (False, 0, [])
    assert "lockScopes" in got["reason"]


def test_a_counter_without_an_identity_is_reported_and_not_deleted(over_redis, redis, scope):
    """The state that an n8n leaves which crashed between INCR and SET."""
    over_redis.scopes = (scope,)
    redis("SET", lock_key(scope), 1, "EX", 60)
    done = over_redis.run(chain("w", STOP, errorWorkflow="error_handler_lo"))
    (cleaning,) = done.of("error_handler_lock_cleanup")
    (got,) = cleaning.items
    assert not got["cleaned"]
    assert f"skipped, because the counter has no holder identity: {scope}" in got["reason"]
    assert redis("GET", lock_key(scope)) == "1"


def test_a_lock_taken_with_the_callers_execution_id_belongs_to_the_caller(over_redis, redis, scope):
    """A failure of the sub-workflow does not release it; a failure of the caller does."""
    over_redis.scopes = (scope,)
    called = node("Called", "executeWorkflowTrigger", 1.1, {"inputSource": "passthrough"})
    inner = chain("inner", STOP, errorWorkflow="error_handler_lo")
    inner["nodes"][0] = called
    inner["connections"] = {"Called": inner["connections"]["Start"]}
    outer = failing(scope)
    outer["nodes"][2] = calling("Fail", "inner", {})
    done = over_redis.lab.run([outer, inner, *over_redis.primitives()], credentials=over_redis.credentials)
    of_inner, of_outer = done.of("error_handler_lock_cleanup")
    assert [of_inner.items[0]["cleaned"], of_outer.items[0]["cleaned"]] == [False, True]
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 0


# ── limits ──


def test_a_limit_counts_per_window(over_redis, redis, scope):
    window = 10_000_000
    key = limit_key(scope, limit_bucket(int(time.time() * 1000), window))
    got = [over_redis.call("rate_limit_check", scope=scope, limit=2, windowSeconds=window).items for _ in range(3)]
    assert got == [[{"allowed": n <= 2, "scope": scope, "count": n, "limit": 2}] for n in (1, 2, 3)]
    assert redis("GET", key) == "3"
    assert window - 100 <= redis("TTL", key) <= window


def test_every_item_is_counted(over_redis, scope):
    inputs = {"scope": "={{ $json.scope }}", "limit": 2, "windowSeconds": 86_400}
    items = [{"json": {"scope": f"{scope}{n % 2}"}} for n in range(5)]
    done = over_redis.run(chain("w", calling("Call", "rate_limit_check", inputs)), items=items)
    assert [one["count"] for one in done.items] == [1, 1, 2, 2, 3]
    assert [one["allowed"] for one in done.items] == [True, True, True, True, False]


# ── bad input ──

BAD_LOCKS = [
    ({"scope": ""}, "scope is empty"),
    ({"scope": "  "}, "scope is empty"),
    ({"scope": None}, "scope is empty"),
    ({"scope": {"a": 1}}, "scope is empty or not a text"),
    ({"scope": True}, "scope is empty or not a text"),
    ({"scope": "={{ user-$json.id }}"}, "scope is empty or not a text"),  # NaN: all runs would share one lock
    ({"ttl_seconds": 0}, "ttl_seconds must be a whole number of seconds"),
    ({"ttl_seconds": -5}, "ttl_seconds must be a whole number"),
    ({"ttl_seconds": 1.5}, "ttl_seconds must be a whole number"),
    ({"ttl_seconds": "soon"}, "ttl_seconds must be a whole number"),
    ({"ttl_seconds": 10**12}, "ttl_seconds must be a whole number"),
    ({"max_wait_seconds": -1}, "max_wait_seconds must be a number of seconds"),
    ({"max_wait_seconds": "long"}, "max_wait_seconds must be a number of seconds"),
    ({"wait_till_lock_released": "perhaps"}, "wait_till_lock_released must be true or false"),
]


@pytest.mark.parametrize(("wrong", "message"), BAD_LOCKS)
def test_invalid_acquire_inputs_are_refused_before_any_command(over_redis, redis, scope, wrong, message):
    done = over_redis.call("lock_acquisition", **{"scope": scope, **wrong})
    assert done.status == "error"
    assert done.message.startswith("Bad input: ")
    assert message in done.message
    assert redis("EXISTS", lock_key(scope), meta_key(scope)) == 0


@pytest.mark.parametrize("given", [{"scope": "", "lock_id": "mine"}, {"scope": "a", "lock_id": ""}, {"scope": "a"}])
def test_a_release_needs_scope_and_lock_id(over_redis, given):
    assert over_redis.call("lock_release", **given).message.startswith("Bad input: ")


@pytest.mark.parametrize(
    "wrong",
    [
        {"scope": ""},
        {"scope": "={{ user-$json.id }}"},
        *({"limit": limit} for limit in ("many", 0, None, 1.5)),
        *({"windowSeconds": window} for window in (0, -1, "hour", None)),
    ],
)
def test_invalid_limit_inputs_are_refused(over_redis, redis, scope, wrong):
    done = over_redis.call("rate_limit_check", **{"scope": scope, "limit": 2, "windowSeconds": 60, **wrong})
    assert done.message.startswith("Bad input: ")
    assert redis("KEYS", f"n8n-ratelimit-{scope}*") == []


def test_an_acquire_with_several_items_is_refused(over_redis, scope):
    inputs = {"scope": scope}
    done = over_redis.run(chain("w", calling("Call", "lock_acquisition", inputs)), items=[{"json": {}}] * 3)
    assert done.message.startswith("Bad input: 3 items arrived")


def test_numbers_and_booleans_may_be_given_as_text(over_redis, redis, scope):
    given = {"ttl_seconds": "30", "max_wait_seconds": "0.5", "wait_till_lock_released": "false"}
    assert over_redis.call("lock_acquisition", scope=scope, **given).items[0]["acquired"]
    assert redis("TTL", lock_key(scope)) <= 30
    assert "is held" in over_redis.call("lock_acquisition", scope=scope, **given).message
