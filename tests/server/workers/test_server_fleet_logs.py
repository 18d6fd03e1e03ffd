"""A job's log sent to several servers has each chunk once and in order."""

from __future__ import annotations

import pytest

from support.server.site import serving


@pytest.fixture
def server_pair(shared_url, namespace):
    with serving(shared_url, namespace=namespace) as one, serving(shared_url, namespace=namespace) as other:
        yield one, other


def claim(site):
    site.enqueue()
    found = site.claim()
    return found["job"]["uid"], found["lease"]["lease_id"]


def post_logs(site, lease, *chunks):
    body = {"chunks": [{"sequence": number, "data": text} for number, text in chunks]}
    return site.post(f"/api/jobs/{lease}/logs", body).status_code


def log_of(site, job):
    return [(one["sequence"], one["data"]) for one in site.get(f"/api/workflows/-/jobs/{job}/logs").json()]


def test_a_batch_resent_to_another_server_is_stored_once(server_pair):
    one, other = server_pair
    job, lease = claim(one)
    for site in server_pair:
        assert post_logs(site, lease, (0, "a"), (1, "b")) == 200
    # Neither server mistakes a new chunk for a duplicate.
    assert post_logs(one, lease, (2, "c")) == 200
    assert post_logs(other, lease, (3, "d")) == 200
    assert post_logs(one, lease, (4, "e")) == 200
    for site in server_pair:
        assert post_logs(site, lease, (3, "d"), (4, "e"), (5, "f")) == 200
    assert log_of(other, job) == [(number, text) for number, text in enumerate("abcdef")]


def test_a_server_that_starts_later_appends_to_the_same_log(shared_url, namespace):
    with serving(shared_url, namespace=namespace) as first:
        job, lease = claim(first)
        assert post_logs(first, lease, (0, "same"), (1, "same")) == 200
    with serving(shared_url, namespace=namespace) as second:
        assert post_logs(second, lease, (1, "same"), (2, "same")) == 200
        assert log_of(second, job) == [(0, "same"), (1, "same"), (2, "same")]


def test_the_next_attempt_appends_to_the_log_of_the_previous_one(server_pair):
    one, other = server_pair
    job, lease = claim(one)
    assert post_logs(one, lease, (0, "first")) == 200
    assert one.post(f"/api/jobs/{lease}/release").status_code == 200
    again = other.claim()["lease"]["lease_id"]
    assert post_logs(other, again, (0, "second")) == 200
    assert post_logs(one, again, (0, "second"), (1, "third")) == 200
    assert post_logs(one, lease, (1, "too late")) == 409
    assert log_of(one, job) == [(0, "first"), (1, "second"), (2, "third")]


def test_chunks_without_numbers_overwrite_nothing(server_pair):
    one, other = server_pair
    job, lease = claim(one)
    for site, text in ((one, "a"), (other, "b"), (one, "c"), (other, "d")):
        assert site.post(f"/api/jobs/{lease}/logs", {"chunks": [{"data": text}]}).status_code == 200
    assert [text for _, text in log_of(one, job)] == ["a", "b", "c", "d"]
