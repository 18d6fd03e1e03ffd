"""`wire="n8n"` for limits: one count for Python and for n8n's rate_limit_check, hit by hit."""

from __future__ import annotations

import asyncio

import pytest
from redis import Redis

from backstay import Backstay, ConfigError, OutcomeUnknown, RateLimited
from backstay.engine.redis.address import parse
from backstay.engine.redis.engine import RedisEngine
from backstay.errors import EngineUnavailable
from backstay.interop.n8n_wire import keys
from backstay.interop.n8n_wire.limit.machine import Hit
from backstay.policy import MAX_AVAILABILITY
from support.n8n.nodes import Nodes

pytestmark = pytest.mark.redis


class Clock:
    """A settable clock in place of the Redis server's."""

    def __init__(self, now):
        self.now = now

    def __call__(self):
        return self.now


@pytest.fixture
def url(backstay_redis):
    return backstay_redis.url


@pytest.fixture
def redis(url):
    with Redis.from_url(url, decode_responses=True) as client:
        yield client


@pytest.fixture
def nodes(url):
    made = Nodes(url)
    yield made
    made.redis.close()


@pytest.fixture
def clock():
    return Clock(1_800_000_000_500_000)


@pytest.fixture
def stay(url, namespace, clock, connect):
    engine = RedisEngine(parse(url), namespace=namespace, clock=clock)
    yield connect(engine=engine)
    engine.close_blocking()


def test_python_and_n8n_agree_count_by_count(stay, nodes, namespace, clock, redis):
    limit = stay.limit("api", "5/60s", wire="n8n")
    scope = f"{namespace}-user"
    now_ms = clock.now // 1000
    key = keys.limit_key(scope, now_ms // 60_000)
    for count in range(1, 9):
        if count % 2:
            result = limit.hit(scope)
            assert (result.count, result.allowed, result.scope, result.limit) == (count, count <= 5, scope, 5)
        else:
            assert nodes.hit(scope, 60, now_ms) == count
        assert redis.get(key) == str(count)
    assert limit.peek(scope).count == 9
    assert redis.get(key) == "8"


def test_every_hit_counts_and_refreshes_the_ttl(stay, namespace, clock, redis):
    limit = stay.limit("api", "1/60s", wire="n8n")
    key = keys.limit_key(namespace, clock.now // 60_000_000)
    assert limit.hit(namespace)
    for count in (2, 3, 4):
        redis.expire(key, 10)
        result = limit.hit(namespace)
        assert (result.allowed, result.count, result.remaining) == (False, count, 0)
        assert 58 <= redis.ttl(key) <= 60


def test_a_denial_reports_the_end_of_the_window(stay, namespace, clock):
    limit = stay.limit("api", "1/minute", wire="n8n")
    limit.hit(namespace)
    result = limit.hit(namespace)
    left = 60 - clock.now / 1_000_000 % 60
    assert result.retry_after == pytest.approx(left)
    assert result.window == 60
    clock.now += int(result.retry_after * 1_000_000) + 1
    assert limit.hit(namespace).count == 1


def test_the_window_follows_the_servers_clock(url, namespace, connect, redis):
    """A client whose clock is an hour behind counts in the server's window."""
    stay = connect(url)
    limit = stay.limit("api", "10/60s", wire="n8n")
    limit.hit(namespace)
    stay.engine.correct_clock(stay.engine.now() - 3_600_000_000)
    result = limit.hit(namespace)
    seconds, _ = redis.time()
    assert abs(result.at - seconds) < 30
    found = redis.keys(f"{keys.LIMIT_PREFIX}{namespace}-*")
    assert sum(int(redis.get(key)) for key in found) == 2
    assert len(found) <= 2  # two when a minute ended between the hits


def test_the_scope_is_the_key_or_defaults_to_the_limits_name(stay, namespace, redis, clock):
    assert stay.limit(namespace, "3/60s", wire="n8n").hit().scope == namespace
    assert redis.exists(keys.limit_key(namespace, clock.now // 60_000_000))


@pytest.mark.parametrize("scope", ["", " ", "\t\n"])
def test_a_blank_scope_is_refused_and_not_counted(stay, namespace, redis, scope):
    """A missing user id must not count under the limit's own name; n8n's primitive refuses it as well."""
    limit = stay.limit(namespace, "3/60s", wire="n8n")
    for ask in (limit.hit, limit.peek, limit.reset):
        with pytest.raises(ConfigError, match="key"):
            ask(scope)
    assert redis.keys(f"{keys.LIMIT_PREFIX}{namespace}*") == []


def test_a_cost_of_n_counts_as_n_hits(stay, namespace):
    limit = stay.limit("api", "5/60s", wire="n8n")
    assert limit.hit(namespace, cost=4).count == 4
    result = limit.hit(namespace, cost=4)
    assert (result.allowed, result.count) == (False, 8)


def test_reset_clears_the_current_window(stay, namespace):
    limit = stay.limit("api", "1/60s", wire="n8n")
    limit.hit(namespace)
    limit.reset(namespace)
    assert limit.hit(namespace)


def test_the_async_api_and_the_decorator_count_the_same(url, namespace, redis):
    async def main():
        async with Backstay(url, namespace=namespace) as stay:

            @stay.limited("2/10000000s", key="{scope}", wire="n8n")
            async def call(scope):
                return "done"

            result = await stay.limit("x", "2/10000000s", wire="n8n").hit(namespace)
            assert result.count == 1
            assert await call(namespace) == "done"
            with pytest.raises(RateLimited) as caught:
                await call(namespace)
            assert caught.value.decision.count == 3

    asyncio.run(main())


def test_a_hit_whose_reply_is_lost_is_not_counted_twice(stay, namespace, redis, clock):
    engine = stay.engine
    apply = engine.apply

    def lose(op):
        apply(op)
        if isinstance(op.command, Hit):
            raise OutcomeUnknown("lost")

    engine.apply = lose
    with pytest.raises(OutcomeUnknown):
        stay.limit("api", "5/60s", wire="n8n").hit(namespace)
    assert redis.get(keys.limit_key(namespace, clock.now // 60_000_000)) == "1"
    assert stay.limit("api", "5/60s", wire="n8n", on_unavailable="allow").hit(namespace).by == "allow"


def test_the_policy_decides_during_an_engine_outage(stay, namespace):
    def away(op):
        raise EngineUnavailable("away")

    stay.engine.apply = away
    denied = stay.limit("api", "5/60s", wire="n8n").hit(namespace)
    assert (denied.allowed, denied.by, denied.trouble) == (False, "deny", "away")
    assert stay.limit("api", "5/60s", wire="n8n", on_unavailable="allow").hit(namespace).allowed


def test_the_local_fallback_is_refused_on_this_wire(url, connect, namespace):
    stay = connect(url, profile=MAX_AVAILABILITY)
    limit = stay.limit("api", "5/60s", wire="n8n")
    assert limit.spec.on_unavailable == "deny"
    with pytest.raises(ConfigError, match="local"):
        stay.limit("api", "5/60s", wire="n8n", on_unavailable="local")


@pytest.mark.parametrize(
    ("rates", "options"),
    [
        (("5/60s", "10/hour"), {}),
        (("5/500ms",), {}),
        (("0/60s",), {}),
        (("5/0s",), {}),
        ((), {}),
        (("5/60s",), {"algorithm": "gcra"}),
        (("5/60s",), {"burst": 3}),
        (("5/60s",), {"wire": "other"}),
    ],
)
def test_bad_limits_are_refused_at_once(stay, rates, options):
    with pytest.raises(ConfigError):
        stay.limit("api", *rates, **{"wire": "n8n", **options})


def test_wait_refund_and_zero_cost_are_refused(stay, namespace):
    limit = stay.limit("api", "5/60s", wire="n8n")
    with pytest.raises(ConfigError, match="wait"):
        limit.wait(namespace)
    with pytest.raises(ConfigError, match="refund"):
        limit.refund(namespace)
    with pytest.raises(ConfigError, match="cost"):
        limit.hit(namespace, cost=0)


def test_only_redis_has_this_wire(connect):
    with pytest.raises(ConfigError, match="Redis"):
        connect("memory://").limit("api", "5/60s", wire="n8n")
