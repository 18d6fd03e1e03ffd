"""Validation of the arguments that callers pass."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace

import pytest

from backstay import ConfigError
from backstay.runtime import validation
from backstay.runtime.validation import KeyTemplate


@pytest.mark.parametrize(("given", "seconds"), [(30, 30.0), (0.5, 0.5), (timedelta(minutes=2), 120.0)])
def test_a_duration_is_seconds_or_a_timedelta(given, seconds):
    assert validation.to_seconds(given, "ttl") == seconds


@pytest.mark.parametrize("given", [0, -1, float("nan"), float("inf"), "30", None, True, timedelta(0), 10**12])
def test_a_bad_duration_is_refused_and_named(given):
    with pytest.raises(ConfigError, match="ttl"):
        validation.to_seconds(given, "ttl")


def test_a_zero_duration_is_allowed_only_where_stated():
    assert validation.to_seconds(0, "wait", zero=True) == 0.0
    with pytest.raises(ConfigError, match="wait"):
        validation.to_seconds(-1, "wait", zero=True)


def test_microseconds_are_never_rounded_down_to_zero():
    assert validation.to_micros(1e-9) == 1
    assert validation.to_micros(1.5) == 1_500_000


@pytest.mark.parametrize("given", ["", "x" * 513, "é" * 257, "\ud800", 7, None, b"bytes"])
def test_a_bad_name_is_refused(given):
    with pytest.raises(ConfigError, match="name"):
        validation.check_name(given)


@pytest.mark.parametrize("given", ["a", "x" * 512, "{}:%\n\0", "日本語", "é" * 256])
def test_any_other_text_is_a_name(given):
    assert validation.check_name(given) == given


@pytest.mark.parametrize("given", ["", "a{b", "a}b", "50%", "line\nbreak"])
def test_a_bad_namespace_is_refused(given):
    with pytest.raises(ConfigError, match="namespace"):
        validation.check_namespace(given)


@pytest.mark.parametrize("given", [0, -3, 1.5, "4", None, True])
def test_a_bad_count_is_refused(given):
    with pytest.raises(ConfigError, match="permits"):
        validation.check_count(given, "permits")


def work(user_id, order, *rest, size=100, **more):
    pass


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("user:{user_id}", "user:7"),
        ("resource:{0}", "resource:7"),
        ("{order.id}", "o1"),
        ("{order.lines[0]}", "first"),
        ("{size}", "100"),
        ("{2}", "extra"),
        ("{colour}", "red"),
        ("{{literal}}:{user_id}", "{literal}:7"),
    ],
)
def test_a_key_template_accepts_names_positions_and_attributes(text, key):
    order = SimpleNamespace(id="o1", lines=["first"])
    assert KeyTemplate(text, work).key((7, order, "extra"), {"colour": "red"}) == key


def test_a_key_template_gives_the_same_key_for_positional_and_keyword_arguments():
    def move(source, target="b"):
        pass

    template = KeyTemplate("{source}->{target}", move)
    keys = {template.key(("a", "b"), {}), template.key(("a",), {}), template.key((), {"target": "b", "source": "a"})}
    assert keys == {"a->b"}


@pytest.mark.parametrize("text", ["{nobody}", "{3}", "{user", "{}}"])
def test_an_invalid_key_template_is_refused_when_the_function_is_decorated(text):
    def plain(user_id):
        pass

    with pytest.raises(ConfigError, match="template"):
        KeyTemplate(text, plain)


@pytest.mark.parametrize("text", ["{nobody}", "{order.nothing}", "{order.lines[9]}", "{4}", "{size:no}"])
def test_a_key_template_that_does_not_fit_a_call_is_named_in_the_error(text):
    order = SimpleNamespace(id="o1", lines=["first"])
    with pytest.raises(ConfigError, match="does not fit this call") as refused:
        KeyTemplate(text, work).key((7, order, "extra"), {"colour": "red"})
    assert text in str(refused.value)
