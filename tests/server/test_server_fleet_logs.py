"""A job's log through several servers: each chunk once, in its place, whichever of them it was sent to."""

from __future__ import annotations

import pytest
from site_of_tests import serving


@pytest.fixture
def fleet(shared_url, namespace):
    with serving(shared_url, namespace=namespace) as one, serving(shared_url, namespace=namespace) as other:
        yield one, other


def claim(site):
    site.enqueue()
    found = site.claim()
    return found["job"]["uid"], found["lease"]["lease_id"]


def say(site, lease, *chunks):
    body = {"chunks": [{"sequence": number, "data": text} for number, text in chunks]}
    return site.post(f"/api/jobs/{lease}/logs", body).status_code


def log_of(site, job):
    return [(one["sequence"], one["data"]) for one in site.get(f"/api/workflows/-/jobs/{job}/logs").json()]


def test_a_batch_that_is_sent_again_to_another_server_is_stored_once(fleet):
    one, other = fleet
    job, lease = claim(one)
    for site in fleet:
        assert say(site, lease, (0, "a"), (1, "b")) == 200
    # Neither server takes what is new for something that it has.
    assert say(one, lease, (2, "c")) == 200
    assert say(other, lease, (3, "d")) == 200
    assert say(one, lease, (4, "e")) == 200
    for site in fleet:
        assert say(site, lease, (3, "d"), (4, "e"), (5, "f")) == 200
    assert log_of(other, job) == [(number, text) for number, text in enumerate("abcdef", 1)]


def test_a_server_that_starts_later_goes_on_in_the_same_log(shared_url, namespace):
    with serving(shared_url, namespace=namespace) as first:
        job, lease = claim(first)
        assert say(first, lease, (0, "same"), (1, "same")) == 200
    with serving(shared_url, namespace=namespace) as second:
        assert say(second, lease, (1, "same"), (2, "same")) == 200
        assert log_of(second, job) == [(1, "same"), (2, "same"), (3, "same")]


def test_the_next_attempt_writes_behind_the_one_before(fleet):
    one, other = fleet
    job, lease = claim(one)
    assert say(one, lease, (0, "first")) == 200
    assert one.post(f"/api/jobs/{lease}/release").status_code == 200
    again = other.claim()["lease"]["lease_id"]
    assert say(other, again, (0, "second")) == 200
    assert say(one, again, (0, "second"), (1, "third")) == 200
    assert say(one, lease, (1, "too late")) == 409
    assert log_of(one, job) == [(1, "first"), (2, "second"), (3, "third")]


def test_chunks_without_numbers_overwrite_nothing(fleet):
    one, other = fleet
    job, lease = claim(one)
    for site, text in ((one, "a"), (other, "b"), (one, "c"), (other, "d")):
        assert site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": text}]}).status_code == 200
    assert [text for _, text in log_of(one, job)] == ["a", "b", "c", "d"]
