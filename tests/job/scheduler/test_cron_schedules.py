"""Moments of cron schedules in time zones and across daylight saving changes."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backstay import ConfigError
from backstay.job.scheduler.cron import Cron


def at(text):
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("schedule", "after", "following"),
    [
        ("* * * * *", "2026-01-01 00:00", "2026-01-01 00:01"),
        ("*/15 * * * *", "2026-01-01 00:14", "2026-01-01 00:15"),
        ("0 9-17/4 * * *", "2026-01-01 09:00", "2026-01-01 13:00"),
        ("0 0 1 * *", "2026-01-01 00:00", "2026-02-01 00:00"),
        ("0 0 29 2 *", "2026-01-01 00:00", "2028-02-29 00:00"),
        ("0 0 29 2 *", "2097-01-01 00:00", "2104-02-29 00:00"),
        ("30 2 * * mon-fri", "2026-01-02 03:00", "2026-01-05 02:30"),
        ("0 0 * * 7", "2026-01-01 00:00", "2026-01-04 00:00"),
        ("0 0 * * sun", "2026-01-01 00:00", "2026-01-04 00:00"),
        ("0 0 * * fri-sun", "2026-01-03 00:00", "2026-01-04 00:00"),
        ("0 0 * JAN,JUL *", "2026-01-31 00:00", "2026-07-01 00:00"),
        ("5/20 * * * *", "2026-01-01 00:06", "2026-01-01 00:25"),
        ("0 0 13 * 5", "2026-02-01 00:00", "2026-02-06 00:00"),  # both day fields restricted: either may match
        ("0 0 */2 * 5", "2026-02-01 00:00", "2026-02-13 00:00"),  # one day field starts with a star: both must match
        ("@hourly", "2026-01-01 00:00", "2026-01-01 01:00"),
        ("@weekly", "2026-01-01 00:00", "2026-01-04 00:00"),
    ],
)
def test_next_returns_the_following_moment(schedule, after, following):
    assert Cron(schedule).next(at(after)) == at(following)
    assert Cron(schedule).previous(at(following)) == at(following)
    assert Cron(schedule).previous(at(following) - timedelta(seconds=1)) <= at(after)


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "* * * *",
        "* * * * * *",
        "60 * * * *",
        "* 24 * * *",
        "* * 0 * *",
        "* * 32 * *",
        "* * * 13 *",
        "* * * * 8",
        "* * * foo *",
        "*/0 * * * *",
        "5-1 * * * *",
        "*-5 * * * *",
        "1,, * * * *",
        "-1 * * * *",
        "1.5 * * * *",
        "* * L * *",
        "0 0 30 2 *",
        "@sometimes",
        None,
        5,
    ],
    ids=str,
)
def test_a_bad_schedule_is_refused_with_a_valid_example(wrong):
    with pytest.raises(ConfigError, match=r"\*/5 \* \* \* \*"):
        Cron(wrong)


@pytest.mark.parametrize("zone", ["Mars/Olympus", "", "../etc", 7])
def test_an_unknown_time_zone_is_refused_with_a_valid_example(zone):
    with pytest.raises(ConfigError, match="Europe/Berlin"):
        Cron("* * * * *", zone)


def test_a_schedule_follows_the_local_time_of_its_zone():
    assert Cron("0 9 * * *", "America/New_York").next(at("2026-01-01 00:00")) == at("2026-01-01 14:00")
    assert Cron("0 9 * * *", "America/New_York").next(at("2026-07-01 00:00")) == at("2026-07-01 13:00")


def moments(schedule, zone, after, until):
    return [str(moment)[:16] for moment in Cron(schedule, zone).between(at(after), at(until))]


def test_a_time_skipped_by_daylight_saving_is_shifted_by_the_skipped_hour():
    found = moments("30 2 * * *", "Europe/Berlin", "2026-03-28 00:00", "2026-03-30 12:00")
    assert found == ["2026-03-28 01:30", "2026-03-29 01:30", "2026-03-30 00:30"]  # 03:30 local time that night


def test_a_time_repeated_by_daylight_saving_runs_once():
    found = moments("30 2 * * *", "Europe/Berlin", "2026-10-24 00:00", "2026-10-26 12:00")
    assert found == ["2026-10-24 00:30", "2026-10-25 00:30", "2026-10-26 01:30"]


@pytest.mark.parametrize(("after", "until"), [("2026-03-28", "2026-03-30"), ("2026-10-24", "2026-10-26")])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "Australia/Lord_Howe", "UTC"])
def test_a_quarter_hourly_schedule_is_even_across_daylight_saving_changes(zone, after, until):
    found = list(Cron("*/15 * * * *", zone).between(at(after), at(until)))
    assert len(found) == 2 * 24 * 4
    assert {later - earlier for earlier, later in itertools.pairwise(found)} == {timedelta(minutes=15)}


def test_two_scheduled_hours_that_coincide_run_once():
    found = moments("30 2,3 * * *", "Europe/Berlin", "2026-03-29 00:00", "2026-03-29 12:00")
    assert found == ["2026-03-29 01:30"]


FIELDS = st.tuples(
    st.sampled_from(["*", "*/7", "0", "5,35", "10-20"]),
    st.sampled_from(["*", "*/5", "2", "1-3", "0,23"]),
    st.sampled_from(["*", "1", "15,31", "*/9"]),
    st.sampled_from(["*", "3,10", "feb"]),
    st.sampled_from(["*", "sun", "1-5"]),
)
ZONES = st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"])


@settings(max_examples=150, deadline=None)
@given(FIELDS, ZONES, st.datetimes(datetime(2026, 1, 1), datetime(2026, 12, 31)))  # noqa: DTZ001 - made aware below
def test_next_and_previous_agree(fields, zone, moment):
    cron = Cron(" ".join(fields), zone)
    moment = moment.replace(tzinfo=UTC)
    following = cron.next(moment)
    assert following > moment
    assert cron.previous(following) == following
    before = cron.previous(following - timedelta(microseconds=1))
    assert before is None or before <= moment
    assert cron.next(before) == following
