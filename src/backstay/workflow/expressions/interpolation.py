"""Text with `${{ … }}` in it: read once, filled in when its values are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from backstay.errors import BadExpression
from backstay.workflow.expressions.expression import Context, Expression, as_text, parse

OPEN, CLOSE = "${{", "}}"
#: Expressions in one text.
MOST = 1000


class Template(Struct, frozen=True):
    """Plain text and expressions, in turn."""

    parts: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if isinstance(part, Expression))

    def fill(self, context: Context) -> str:
        return "".join(part if isinstance(part, str) else as_text(part.value(context)) for part in self.parts)


def template(text: str) -> Template:
    """Raises BadExpression, the first of them, with the position in the whole text."""
    parts: list[str | Expression] = []
    for _, part in pieces(text):
        if isinstance(part, BadExpression):
            raise part
        parts.append(part)
    return Template(tuple(parts))


def pieces(text: str) -> Iterator[tuple[int, str | Expression | BadExpression]]:
    """Plain text, expressions and what is none, in turn, each with where it begins."""
    place = seen = 0
    while (start := text.find(OPEN, place)) >= 0:
        end = _end(text, start + len(OPEN))
        if end < 0:
            yield start, _bad(f"{OPEN} is open; close it with {CLOSE}", text, start)
            return
        if start > place:
            yield place, text[place:start]
        yield start, _read(text, start + len(OPEN), end)
        seen += 1
        if seen > MOST:
            yield start, BadExpression(f"a text has at most {MOST} expressions", text="…", position=start)
            return
        place = end + len(CLOSE)
    if place < len(text):
        yield place, text[place:]


def _read(text: str, start: int, end: int) -> Expression | BadExpression:
    try:
        return parse(text[start:end])
    except BadExpression as error:
        return _bad(error.message, text, start + error.position)


def _bad(message: str, text: str, at: int) -> BadExpression:
    return BadExpression(message, text=_near(text, at), position=at)


def _end(text: str, place: int) -> int:
    """Where the expression ends: braces inside its quotes do not count."""
    quote = ""
    while place < len(text):
        char = text[place]
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif text.startswith(CLOSE, place):
            return place
        place += 1
    return -1


def _near(text: str, at: int) -> str:
    """What stands around a place; all of it, if it is short."""
    return text if len(text) <= 80 else "…" + text[max(0, at - 20) : at + 40] + "…"  # noqa: PLR2004 - a line


def fill(text: str, context: Context) -> str:
    """A text with its expressions filled in. Most have none."""
    return template(text).fill(context) if OPEN in text else text


def fill_all(env: Mapping[str, str], context: Context) -> dict[str, str]:
    """Variables, filled in one after another: a later one may speak of an earlier one as `env.<name>`."""
    known = dict(context.env)
    filled: dict[str, str] = {}
    for name, value in env.items():
        filled[name] = known[name] = fill(value, replace(context, env=known))
    return filled
