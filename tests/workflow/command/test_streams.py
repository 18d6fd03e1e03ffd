"""The output of a command becomes log chunks: complete, in order and masked, at any chunk boundary."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backstay.workflow.command.chunks import LONGEST, PARTIAL_LINE_DELAY, Chunker
from backstay.workflow.command.line_commands import LONGEST_LINE, LineCommands
from backstay.workflow.command.masking import MASK, Secrets
from backstay.workflow.command.outputs import LARGEST_VALUE, Outputs
from backstay.workflow.command.streams import STDERR, STDOUT, Streams

words = st.sampled_from(
    ["a", "\n", ":", "::", "::add-mask::", "::set-output ", "k=v", "tok", "token1", "\r\n", " ", "é", "\0", "long" * 40]
)
writing = st.lists(words, max_size=30).map("".join)
cuts = st.lists(st.integers(0, 400), max_size=12)


def pieces(raw: bytes, places: list[int]) -> list[bytes]:
    edges = sorted({min(place, len(raw)) for place in places} | {0, len(raw)})
    return [raw[a:b] for a, b in pairwise(edges)]


def shown(streams: Streams, stream: str = STDOUT) -> str:
    return "".join(chunk.data for chunk in streams.take() if chunk.stream == stream)


def streams(*secrets: str, **options: int) -> Streams:
    return Streams(Secrets(secrets), Outputs(), **options)


# ── chunks ──


@given(st.lists(st.tuples(st.sampled_from([STDOUT, STDERR]), writing, st.booleans()), max_size=20))
def test_the_chunks_of_a_stream_are_its_text(fed):
    chunker, now, got = Chunker(), 0, []
    for stream, text, wait in fed:
        chunker.feed(stream, text, now)
        now += PARTIAL_LINE_DELAY if wait else 1
        chunker.flush(now)
        got += chunker.take()
    chunker.end()
    got += chunker.take()
    for stream in (STDOUT, STDERR):
        assert "".join(c.data for c in got if c.stream == stream) == "".join(t for s, t, _ in fed if s == stream)
    assert all(0 < len(c.data) <= LONGEST for c in got)


def test_chunks_end_with_their_line_unless_it_is_too_long():
    chunker = Chunker()
    chunker.feed(STDOUT, "short line\n" * 5000 + "x" * (2 * LONGEST) + "\ny\n", 0)
    got = chunker.take()
    assert all(c.data.endswith("\n") or len(c.data) == LONGEST for c in got)
    assert max(len(c.data) for c in got) <= LONGEST


def test_a_partial_line_is_shown_after_a_bounded_delay():
    chunker = Chunker()
    chunker.feed(STDOUT, "Name? ", 1000)
    assert chunker.take() == []
    assert chunker.due == 1000 + PARTIAL_LINE_DELAY
    chunker.flush(1000 + PARTIAL_LINE_DELAY - 1)
    assert chunker.take() == []
    chunker.flush(1000 + PARTIAL_LINE_DELAY)
    assert [c.data for c in chunker.take()] == ["Name? "]
    assert chunker.due is None


def test_lines_of_two_streams_keep_the_order_of_their_arrival():
    chunker = Chunker()
    for n in range(5):
        chunker.feed(STDOUT if n % 2 else STDERR, f"{n}\n", n)
    assert [c.data for c in chunker.take()] == ["0\n", "1\n", "2\n", "3\n", "4\n"]


# ── line commands (::add-mask::, ::set-output) ──


def run_line_commands(text: str, cut: list[int]) -> tuple[str, list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []
    commands = LineCommands(
        add_mask=lambda value: found.append(("mask", value)), set_output=lambda value: found.append(("output", value))
    )
    edges = sorted({min(place, len(text)) for place in cut} | {0, len(text)})
    passed = "".join([commands.feed(text[a:b]) for a, b in pairwise(edges)])
    return passed + commands.end(), found


def model(text: str) -> tuple[str, list[tuple[str, str]]]:
    found: list[tuple[str, str]] = []
    lines = text.split("\n")
    for number, line in enumerate(lines):
        content = line.removesuffix("\r")
        if content.startswith("::add-mask::"):
            found.append(("mask", content[12:]))
            lines[number] = "::add-mask::" + MASK
        elif content.startswith("::set-output "):
            found.append(("output", content[13:]))
    return "\n".join(lines), found


@given(writing, cuts)
def test_line_commands_are_found_at_any_chunk_boundary(text, cut):
    assert run_line_commands(text, cut) == model(text)


@given(writing)
def test_line_commands_are_found_one_character_at_a_time(text):
    assert run_line_commands(text, list(range(len(text)))) == model(text)


def test_a_mask_that_is_too_long_to_buffer_is_never_shown():
    found: list[str] = []
    commands = LineCommands(add_mask=found.append, set_output=found.append)
    secret = "s3cr" * LONGEST_LINE
    passed = commands.feed("::add-mask::" + secret[:1000])
    passed += commands.feed(secret[1000:]) + commands.feed("more") + commands.feed("\nafter\n")
    assert passed == "::add-mask::***\nafter\n"
    assert len(found) == 1


def test_ordinary_text_passes_at_once():
    commands = LineCommands(add_mask=print, set_output=print)
    assert commands.feed("a::set-output k=v") == "a::set-output k=v"
    assert commands.feed("\n::se") == "\n"
    assert commands.feed("rial") == "::serial"


# ── streams end to end ──


@given(writing, cuts)
def test_log_and_outputs_do_not_depend_on_chunk_boundaries(text, cut):
    whole, parts = streams("token1"), streams("token1")
    whole.feed(STDOUT, text.encode(), 0)
    for piece in pieces(text.encode(), cut):
        parts.feed(STDOUT, piece, 0)
    whole.end(0)
    parts.end(0)
    assert whole.outputs.values == parts.outputs.values
    assert whole.outputs.problems == parts.outputs.problems
    if "::add-mask::" not in text:  # a mask applies from its line on and to text read in the same chunk
        assert shown(whole) == shown(parts)


@given(st.binary(max_size=300), cuts)
def test_any_bytes_become_text_that_every_store_accepts(raw, cut):
    some = streams()
    for piece in pieces(raw, cut):
        some.feed(STDERR, piece, 0)
    some.end(0)
    text = shown(some, STDERR)
    assert text == raw.decode(errors="replace").replace("\0", "\u2400")
    text.encode()


def test_a_secret_split_over_two_reads_is_masked():
    some = streams("hunter22")
    some.feed(STDOUT, b"pass: hunt", 0)
    some.flush_partial(10 * PARTIAL_LINE_DELAY)
    assert shown(some) == "pass: "
    some.feed(STDOUT, b"er22\n", 0)
    assert shown(some) == "***\n"


def test_a_mask_applies_to_both_streams_from_its_line_on():
    some = streams()
    some.feed(STDOUT, b"::add-mask::hunter22\nhunter22\n", 0)
    some.feed(STDERR, b"it was hunter22\n", 0)
    assert [c.data for c in some.take()] == ["::add-mask::***\n***\n", "it was ***\n"]


def test_the_beginning_of_a_mask_is_not_shown_while_its_line_is_unfinished():
    some = streams()
    some.feed(STDOUT, b"::add-mask::hunt", 0)
    some.flush_partial(10 * PARTIAL_LINE_DELAY)
    assert shown(some) == ""
    some.feed(STDOUT, b"er22\n", 0)
    assert shown(some) == "::add-mask::***\n"


def test_a_mask_that_is_too_short_is_reported():
    some = streams()
    some.feed(STDOUT, b"::add-mask::ab\n", 0)
    assert any("at least 4 characters" in c.data for c in some.take())


def test_outputs_are_taken_from_standard_output_alone():
    some = streams()
    some.feed(STDOUT, b"::set-output a=1=2\n::set-output name=b::3\n", 0)
    some.feed(STDERR, b"::set-output c=4\n", 0)
    some.end(0)
    assert some.outputs.values == {"a": "1=2", "b": "3"}


def test_an_output_without_a_value_is_a_problem_with_a_hint():
    some = streams()
    some.feed(STDOUT, b"::set-output version\n", 0)
    assert some.outputs.problems == ["::set-output: it has no value; write ::set-output key=value"]


def test_an_output_that_is_too_large_is_a_problem_and_its_line_is_shown():
    some = streams()
    some.feed(STDOUT, b"::set-output big=" + b"x" * (2 * LARGEST_VALUE) + b"\n", 0)
    some.end(0)
    assert "at most 65536 are allowed" in some.outputs.problems[0]
    assert len(shown(some)) == 2 * LARGEST_VALUE + len("::set-output big=\n")


def test_a_log_above_its_limit_is_truncated_and_outputs_are_still_read():
    some = streams(limit=1000)
    for _ in range(100):
        some.feed(STDOUT, b"x" * 99 + b"\n", 0)
    some.feed(STDOUT, b"::set-output late=1\n", 0)
    some.end(0)
    got = some.take()
    assert sum(len(c.data) for c in got if c.stream == STDOUT) == 1000
    assert "9020 characters were dropped" in got[-1].data
    assert some.outputs.values == {"late": "1"}


def test_partial_lines_do_not_carry_over_to_the_next_step():
    some = streams("hunter22")
    some.feed(STDOUT, b"hunt", 0)
    some.end_step(0)
    some.feed(STDOUT, b"::set-output a=1", 0)
    some.end_step(0)
    assert shown(some) == "hunt::set-output a=1"
    assert some.outputs.values == {"a": "1"}
