"""Templates: text with `${{ … }}` expressions, parsed once and rendered when the values are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from backstay.errors import BadExpression
from backstay.workflow.expressions.expression import Context, Expression, as_text, parse

OPEN, CLOSE = "${{", "}}"
#: Limit of expressions per text.
MOST = 1000


class Template(Struct, frozen=True):
    """Literal text and expressions, in order."""

    parts: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if isinstance(part, Expression))

    def render(self, context: Context) -> str:
        return "".join(part if isinstance(part, str) else as_text(part.value(context)) for part in self.parts)


def parse_template(text: str) -> Template:
    """Parse a template. Raises the first BadExpression, with its position in the whole text."""
    parts: list[str | Expression] = []
    for _, part in split_template(text):
        if isinstance(part, BadExpression):
            raise part
        parts.append(part)
    return Template(tuple(parts))


def split_template(text: str) -> Iterator[tuple[int, str | Expression | BadExpression]]:
    """Yield literal text, expressions and syntax errors in order, each with its offset."""
    place = seen = 0
    while (start := text.find(OPEN, place)) >= 0:
        end = _find_end(text, start + len(OPEN))
        if end < 0:
            yield start, _error_at(f"{OPEN} is not closed; close it with {CLOSE}", text, start)
            return
        if start > place:
            yield place, text[place:start]
        yield start, _parse_part(text, start + len(OPEN), end)
        seen += 1
        if seen > MOST:
            yield start, BadExpression(f"a text may have at most {MOST} expressions", text="…", position=start)
            return
        place = end + len(CLOSE)
    if place < len(text):
        yield place, text[place:]


def _parse_part(text: str, start: int, end: int) -> Expression | BadExpression:
    try:
        return parse(text[start:end])
    except BadExpression as error:
        return _error_at(error.message, text, start + error.position)


def _error_at(message: str, text: str, at: int) -> BadExpression:
    return BadExpression(message, text=_excerpt(text, at), position=at)


def _find_end(text: str, place: int) -> int:
    """Return the offset of the closing braces; braces inside quotes do not count. -1: there are none."""
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


def _excerpt(text: str, at: int) -> str:
    """Return the text around an offset, or all of a short text."""
    return text if len(text) <= 80 else "…" + text[max(0, at - 20) : at + 40] + "…"  # noqa: PLR2004 - one line of a terminal


def interpolate(text: str, context: Context) -> str:
    """Render a text. Most texts have no expression and are returned as they are."""
    return parse_template(text).render(context) if OPEN in text else text


def interpolate_env(env: Mapping[str, str], context: Context) -> dict[str, str]:
    """Render variables in order: a later one may refer to an earlier one as `env.<name>`."""
    known = dict(context.env)
    filled: dict[str, str] = {}
    for name, value in env.items():
        filled[name] = known[name] = interpolate(value, replace(context, env=known))
    return filled
