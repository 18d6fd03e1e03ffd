"""The output file of a command: named values, and the problems reported for lines that cannot be parsed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.workflow.command.outputs import KEY, LARGEST_FILE, LARGEST_TOTAL, LARGEST_VALUE, MOST_KEYS, Outputs

keys = st.from_regex(KEY, fullmatch=True)
values = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


def read(raw: bytes) -> Outputs:
    outputs = Outputs()
    outputs.read(raw, "BACKSTAY_OUTPUT")
    return outputs


@given(st.dictionaries(keys, values, max_size=6))
def test_values_written_in_blocks_are_read_back(given_values):
    raw = "".join(f"{key}<<E0F-x\n{value}\nE0F-x\n" for key, value in given_values.items())
    got = read(raw.encode())
    assert got.problems == []
    assert got.values == {
        key: "\n".join(line.removesuffix("\r") for line in value.split("\n")) for key, value in given_values.items()
    }


@given(st.dictionaries(keys, values.filter(lambda v: not set(v) & {"\n", "\r"}), max_size=6))
def test_values_written_in_lines_are_read_back(given_values):
    raw = "".join(f"{key}={value}\n" for key, value in given_values.items())
    assert read(raw.encode()).values == given_values


@given(st.binary(max_size=200))
def test_any_file_is_read_or_refused_with_reasons(raw):
    got = read(raw)
    for key, value in got.values.items():
        assert KEY.fullmatch(key)
        assert "\0" not in value
    if not got.values and raw.decode(errors="replace").strip():
        assert got.problems


def test_lines_and_blocks_and_blank_lines_mix():
    got = read(b"a=1\n\nb<<END\none\ntwo=2\n\nEND\r\nurl=http://x/?a=b<<c\n")
    assert got.values == {"a": "1", "b": "one\ntwo=2\n", "url": "http://x/?a=b<<c"}
    assert got.problems == []


def test_a_later_value_replaces_an_earlier_one():
    assert read(b"a=1\na=2\n").values == {"a": "2"}


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"ok=1\nnonsense\n", "line 2 of BACKSTAY_OUTPUT: 'nonsense' is not an output; write key=value"),
        (b"1a=1\n", "line 1 of BACKSTAY_OUTPUT: '1a' is not a valid key"),
        (b"a b=1\n", "'a b' is not a valid key"),
        (b"=1\n", "'' is not a valid key"),
        (b"a<<END\nx\n", "line 1 of BACKSTAY_OUTPUT: the value of a has no end: no line is 'END'"),
        (b"a<<\nx\n", "a<< has no end word"),
        (b"a=\xff\n", "is not UTF-8"),
        (b"a=x\0y\n", "contains a NUL"),
        (b"a=" + b"x" * (LARGEST_VALUE + 1), f"has {LARGEST_VALUE + 1} bytes"),
        (b"x" * (LARGEST_FILE + 1), f"has {LARGEST_FILE + 1} bytes"),
        (b"".join(b"k%d=\n" % n for n in range(MOST_KEYS + 1)), "k1000 exceeds the limit"),
        (b"".join(b"k%d=%s\n" % (n, b"x" * 60_000) for n in range(9)), f"at most {LARGEST_TOTAL} are allowed"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_a_bad_line_is_named(raw, problem):
    assert any(problem in message for message in read(raw).problems)


def test_many_bad_lines_are_reported_briefly():
    got = read(b"bad line " + b"y" * 1000 + b"\n" + b"bad\n" * 1000)
    assert len(got.problems) == 6
    assert got.problems[-1] == "and more"
    assert all(len(message) < 250 for message in got.problems)
