"""Templates: text with `${{ … }}` expressions, parsed once and rendered when the values are known."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from backstay.errors import BadExpression, RunTooLarge
from backstay.workflow.expressions.expression import Context, Expression, as_text, parse

OPEN, CLOSE = "${{", "}}"
#: Limit of expressions per text.
MOST = 1000
#: Limit of the rendered texts of one job, in characters together. A text may repeat a variable that repeats another one
#: (exponential growth), so the limit is checked before a text is built.
LARGEST_RENDERED = 1024 * 1024
#: An expression counts for this many characters even if its value is empty, since evaluating it takes time.
EXPRESSION_COST = 200


class TextBudget:
    """Counts the characters that the templates of one job, or of one run, render to. What is spent here is spent from
    the budget `whole`, too. `what` names the job or the run in the error.
    """

    __slots__ = ("_left", "_limit", "_what", "_whole")

    def __init__(self, what: str = "a text", limit: int = LARGEST_RENDERED, whole: TextBudget | None = None) -> None:
        self._what = what
        self._limit = self._left = limit
        self._whole = whole

    def spend(self, characters: int) -> None:
        """Count characters of a text that is about to be built. Raises RunTooLarge."""
        self._left -= characters
        if self._left < 0:
            raise RunTooLarge(what=f"the text of {self._what} after its expressions are filled in", limit=self._limit)
        if self._whole is not None:
            self._whole.spend(characters)


class Template(Struct, frozen=True):
    """Literal text and expressions, in order."""

    parts: tuple[str | Expression, ...]

    @property
    def expressions(self) -> tuple[Expression, ...]:
        return tuple(part for part in self.parts if isinstance(part, Expression))

    def render(self, context: Context, budget: TextBudget) -> str:
        """Evaluate the expressions and join the parts. Raises RunTooLarge."""
        texts: list[str] = []
        for part in self.parts:
            if isinstance(part, str):
                text = part
            else:
                budget.spend(EXPRESSION_COST)
                text = as_text(part.evaluate(context))
            budget.spend(len(text))
            texts.append(text)
        return "".join(texts)


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
    """Return the part of a template that an error message quotes: the text around an offset, or all of a short text."""
    return text if len(text) <= 80 else "…" + text[max(0, at - 20) : at + 40] + "…"  # noqa: PLR2004 - one line of a terminal


def interpolate(text: str, context: Context, budget: TextBudget | None = None) -> str:
    """Render a text. A text without expressions is returned unchanged. Texts that belong together share a budget; a
    text without one may have LARGEST_RENDERED characters. Raises RunTooLarge.
    """
    budget = budget or TextBudget()
    if OPEN in text:
        return parse_template(text).render(context, budget)
    budget.spend(len(text))
    return text


def interpolate_env(env: Mapping[str, str], context: Context, budget: TextBudget | None = None) -> dict[str, str]:
    """Render variables in order: a later one may refer to an earlier one as `env.<name>`. Raises RunTooLarge."""
    budget = budget or TextBudget()
    filled: dict[str, str] = {}
    known = replace(context, env=ChainMap(filled, cast("dict[str, str]", context.env)))
    for name, value in env.items():
        filled[name] = interpolate(value, known, budget)
    return filled
