"""Parsing of rates and options; an invalid one is refused with a valid example."""

from __future__ import annotations

import pytest

from backstay import ConfigError, sync
from backstay.limit.rates import Rate, parse

DAY = 86_400_000


@pytest.fixture(scope="module")
def stay():
    with sync.Backstay("memory://") as stay:
        yield stay


@pytest.mark.parametrize(
    ("text", "limit", "window"),
    [
        ("100/minute", 100, 60_000),
        ("10/second", 10, 1000),
        ("10/s", 10, 1000),
        ("1000/hour", 1000, 3_600_000),
        ("1000/12 hours", 1000, 12 * 3_600_000),
        ("5 per 15 minutes", 5, 15 * 60_000),
        (" 5/15min ", 5, 15 * 60_000),
        ("3/250ms", 3, 250),
        ("7/Day", 7, DAY),
        ("7/2weeks", 7, 14 * DAY),
        ("1000000000/366 days", 1_000_000_000, 366 * DAY),
    ],
)
def test_a_rate_is_parsed(text, limit, window):
    assert parse(text) == Rate(limit, window)
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        *("", "100", "/minute", "100/", "a/minute", "-1/minute", "1.5/second", "1e3/s", "٣/minute"),
        *("100/fortnight", "100/minute/hour", "1/ss", "1/mss", "0/minute", "1000000001/second"),
        *("10/0 seconds", "10/367 days", "10/99999999999999999 s"),
        *(100, None, b"1/s", ("1/s",), ["1/s"]),
    ],
)
def test_a_malformed_rate_is_refused_with_a_valid_example(stay, text):
    with pytest.raises(ConfigError, match="100/minute"):
        stay.limit("api", text)


def test_a_limit_has_one_to_eight_rates_with_distinct_windows(stay):
    with pytest.raises(ConfigError, match="1 to 8 rates"):
        stay.limit("api")
    with pytest.raises(ConfigError, match="1 to 8 rates"):
        stay.limit("api", *(f"1/{n}s" for n in range(1, 10)))
    with pytest.raises(ConfigError, match="same window"):
        stay.limit("api", "1/minute", "2/60s")


@pytest.mark.parametrize("algorithm", ["slide", "", None, 3, [], "Sliding"])
def test_an_unknown_algorithm_is_refused_with_the_known_ones(stay, algorithm):
    with pytest.raises(ConfigError, match="fixed, gcra, sliding, sliding-counter, token-bucket"):
        stay.limit("api", "1/s", algorithm=algorithm)


def test_an_exact_window_that_is_too_large_is_refused_with_an_alternative(stay):
    with pytest.raises(ConfigError, match="sliding-counter"):
        stay.limit("api", "10001/minute")
    stay.limit("api", "10000/minute")
    stay.limit("api", "1000000/second")  # one run per millisecond: a thousand runs


@pytest.mark.parametrize(
    ("algorithm", "rate"), [("sliding-counter", "999999999/366 days"), ("gcra", "999999937/366 days")]
)
def test_a_rate_beyond_exact_integer_arithmetic_is_refused(stay, algorithm, rate):
    with pytest.raises(ConfigError, match="whole numbers"):
        stay.limit("api", rate, algorithm=algorithm)


@pytest.mark.parametrize("burst", [0, -1, 1.5, True, "2", [], 2**40])
def test_a_burst_is_a_whole_number_above_zero(stay, burst):
    with pytest.raises(ConfigError, match="burst"):
        stay.limit("api", "1/s", algorithm="gcra", burst=burst)


def test_a_burst_is_accepted_for_the_bucket_algorithm_only(stay):
    with pytest.raises(ConfigError, match="token-bucket"):
        stay.limit("api", "5/s", burst=2)


@pytest.mark.parametrize("mode", ["raise", "", None.__class__, 1])
def test_an_unknown_policy_is_refused(stay, mode):
    with pytest.raises(ConfigError, match="deny, allow, local"):
        stay.limit("api", "1/s", on_unavailable=mode)


@pytest.mark.parametrize("name", ["", "x" * 513, None, 7, "\ud800"])
def test_a_name_and_a_key_are_text_of_at_most_512_bytes(stay, name):
    with pytest.raises(ConfigError, match="name"):
        stay.limit(name, "1/s")
    api = stay.limit("api", "1/s")
    for call in (api.hit, api.peek, api.wait, api.refund, api.reset):
        with pytest.raises(ConfigError, match="key"):
            call(name)


@pytest.mark.parametrize("cost", [0, -1, 1.0, True, "1", None, 2**64])
def test_a_cost_is_a_whole_number_above_zero(stay, cost):
    api = stay.limit("api", "5/s")
    for call in (api.hit, api.peek, api.wait, api.refund):
        with pytest.raises(ConfigError, match="cost"):
            call("k", cost)
    assert api.peek("k").count == 0


def test_a_cost_that_can_never_be_admitted_is_refused(stay):
    with pytest.raises(ConfigError, match="at most 3"):
        stay.limit("api", "5/s", "3/minute").hit("k", 4)
    with pytest.raises(ConfigError, match="at most 2"):
        stay.limit("api", "5/s", algorithm="token-bucket", burst=2).hit("k", 3)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "5", True, 1e12])
def test_a_timeout_is_zero_or_more_seconds(stay, timeout):
    with pytest.raises(ConfigError, match="timeout"):
        stay.limit("api", "5/s").wait("k", timeout=timeout)
