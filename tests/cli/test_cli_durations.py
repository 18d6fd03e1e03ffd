import pytest
import typer

from backstay.cli.durations import FOREVER, duration, duration_or_forever, span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30),
        ("1.5", 1.5),
        (".5", 0.5),
        ("30s", 30),
        ("5m", 300),
        ("2h", 7200),
        ("1.5h", 5400),
        (" 2 M ", 120),
        ("0", 0),
    ],
)
def test_a_duration_is_a_number_with_an_optional_unit(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-1", "1d", "5 minutes", "1e3", "nan", "inf", "1m30s", "٣", "1..5"])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(typer.BadParameter, match=r"30, 1\.5, 30s, 5m or 2h"):
        duration(text)


def test_forever_is_a_valid_wait():
    assert duration_or_forever("forever") == FOREVER
    assert duration_or_forever("5m") == 300


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0s"),
        (0.44, "0.4s"),
        (12.4, "12s"),
        (59.7, "1m 0s"),
        (192, "3m 12s"),
        (7500, "2h 5m"),
        (273_600, "3d 4h"),
    ],
)
def test_a_duration_is_shown_in_two_units(seconds, text):
    assert span(seconds) == text
