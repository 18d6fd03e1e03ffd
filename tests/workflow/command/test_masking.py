"""Secrets are masked at any position and at any chunk boundary."""

from __future__ import annotations

import base64
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backstay.workflow.command.masking import MASK, Masker, Secrets, encoded_variants

LETTERS = "abc"
texts = st.text(alphabet=LETTERS, max_size=60)
secrets = st.lists(st.text(alphabet=LETTERS, min_size=4, max_size=9), max_size=4)


def model(text: str, given_secrets: list[str]) -> str:
    """Replace every maximal run of characters that belong to an occurrence of a secret by one mask."""
    covered = [False] * len(text)
    for secret in set().union(*map(encoded_variants, given_secrets)):
        for start in range(len(text) - len(secret) + 1):
            if text[start : start + len(secret)] == secret:
                covered[start : start + len(secret)] = [True] * len(secret)
    shown = ""
    for place, character in enumerate(text):
        if not covered[place]:
            shown += character
        elif place == 0 or not covered[place - 1]:
            shown += MASK
    return shown


def cut(text: str, places: list[int]) -> list[str]:
    edges = sorted({min(place, len(text)) for place in places} | {0, len(text)})
    return [text[a:b] for a, b in pairwise(edges)]


@given(texts, secrets, st.lists(st.integers(0, 60), max_size=12))
def test_masked_text_does_not_depend_on_chunk_boundaries(text, hidden, places):
    masker = Masker(Secrets(hidden))
    shown = "".join([masker.feed(piece) for piece in cut(text, places)]) + masker.end()
    assert shown == model(text, hidden)


@given(texts, secrets)
def test_masking_one_character_at_a_time_gives_the_same_text(text, hidden):
    masker = Masker(Secrets(hidden))
    assert "".join(masker.feed(character) for character in text) + masker.end() == model(text, hidden)


@given(texts, secrets)
def test_a_complete_text_is_masked_in_one_call(text, hidden):
    assert Secrets(hidden).hide(text) == model(text, hidden)


@given(texts, secrets, st.lists(st.integers(0, 60), max_size=12))
def test_no_secret_is_shown_at_any_time(text, hidden, places):
    masker = Masker(Secrets(hidden))
    shown = ""
    for piece in cut(text, places):
        shown += masker.feed(piece)
        assert not any(secret in shown for secret in hidden)


def test_masked_text_stays_masked_when_it_could_start_another_secret():
    masker = Masker(Secrets(["aaaa", "abaa"]))
    assert "".join(masker.feed(character) for character in "aaaaba") + masker.end() == f"{MASK}ba"


def test_overlapping_secrets_are_masked_completely():
    assert Secrets(["abcdef", "defghi"]).hide("xabcdefghiy") == f"x{MASK}y"


def test_a_secret_that_is_a_prefix_of_another_waits_for_the_rest():
    masker = Masker(Secrets(["token", "token-of-all"]))
    assert masker.feed("the token") == "the "
    assert masker.feed("-of-all.") == f"{MASK}."


def test_text_that_cannot_become_a_secret_is_shown_at_once():
    masker = Masker(Secrets(["hunter2secret"]))
    assert masker.feed("no such thin") == "no such thin"
    assert masker.feed("g h") == "g "
    assert masker.feed("at") == "hat"


def test_an_added_mask_applies_to_text_that_is_held_back():
    known = Secrets(["aaaabbbb"])
    masker = Masker(known)
    assert masker.feed("aaaab") == ""
    known.add("aaaab")
    assert masker.feed("!") == f"{MASK}!"


def test_each_line_of_a_secret_is_masked_by_itself():
    hidden = Secrets(["-----BEGIN KEY-----\nMIIEabcdef\nghijkl\n-----END KEY-----\n"])
    assert "MIIEabcdef" not in hidden.hide("indented: MIIEabcdef, ghijkl")
    assert "ghijkl" not in hidden.hide("indented: MIIEabcdef, ghijkl")


def test_a_secret_is_hidden_in_urls_json_and_base64():
    secret = 'p@ss/w"ord'
    hidden = Secrets([secret])
    for form in ("p%40ss%2Fw%22ord", 'p@ss/w\\"ord', base64.b64encode(secret.encode()).decode().rstrip("=")):
        assert form not in hidden.hide(f"x{form}x")


def test_a_secret_that_is_too_short_is_refused():
    hidden = Secrets()
    assert not hidden.add("abc")
    assert not hidden.add("a\nb")
    assert hidden.hide("abc") == "abc"


@pytest.mark.timed
def test_masking_does_not_slow_a_flood_of_ordinary_text():
    masker = Masker(Secrets([f"secret-number-{n}-of-many" for n in range(20)]))
    piece = "an ordinary line of a log, with some words in it\n" * 1300
    began = time.perf_counter()
    for _ in range(50):
        masker.feed(piece)
    assert time.perf_counter() - began < 5, "3 MB with 100 patterns"
