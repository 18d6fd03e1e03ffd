"""Parse scope expressions, which name what a lock or limit protects, into the form that n8n evaluates."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from backstay.errors import PatchRefused
from backstay.n8n.analysis.expressions import PLACEHOLDER, has_dangling_path
from backstay.n8n.json_types import as_list, as_mapping
from backstay.n8n.model import N8nNode

_PIECE = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
_QUOTED = re.compile(r"""^\s*(?:'((?:[^'\\])*)'|"((?:[^"\\])*)"|`((?:[^`\\$])*)`|(\d+))\s*$""")
#: Signs that a scope without `{{ }}` is meant as JavaScript and not as plain text.
_CODE = re.compile(r"""\$[A-Za-z_(]|['"`]\s*\+|\+\s*['"`$]""")
#: Unquoted text directly before a variable, such as `user-$json.id`. As JavaScript it would read an undefined name.
_TEXT_BEFORE = re.compile(r"([\w.:/-]+)(\$[A-Za-z_(].*)", re.DOTALL)
#: Values that differ in every run, so executions never contend for the scope.
_UNIQUE = re.compile(r"\$execution\.id|\$now\b|Date\.now\(|new Date\(|Math\.random\(|\$runIndex")
_FIELD = re.compile(r"""\$json(?:\.([A-Za-z_]\w*)|\[\s*['"]([^'"]+)['"]\s*\])""")
_NODE = re.compile(r"""\$\(\s*(['"`])(.*?)\1\s*\)|\$node\[\s*(['"`])(.*?)\3\s*\]""")

_SCHEDULE = frozenset(
    [
        *("timestamp", "Readable date", "Readable time", "Day of week", "Year", "Month", "Day of month"),
        *("Hour", "Minute", "Second", "Timezone"),
    ]
)
#: The fields that n8n's own triggers send. Other triggers may send anything.
_SENT = {
    "webhook": frozenset(["headers", "params", "query", "body", "webhookUrl", "executionMode"]),
    "scheduleTrigger": _SCHEDULE,
    "manualTrigger": frozenset[str](),
    "cron": _SCHEDULE,
    "interval": frozenset[str](),
    "errorTrigger": frozenset(["execution", "workflow", "trigger"]),
}


@dataclass(frozen=True, slots=True)
class Scope:
    """A parsed scope: the name that is locked or limited.

    text: the scope as the value of an n8n parameter, plain text or an n8n expression.
    static: the scope if it is the same for every item and run, else None.
    """

    text: str
    static: str | None
    warnings: tuple[str, ...] = ()


def read_scope(text: str, triggers: Iterable[N8nNode] = ()) -> Scope:
    """Parse the user's scope. Raise PatchRefused when it is empty, or when n8n could not evaluate it directly after the
    trigger, where the patch uses it.
    """
    given = text.strip()
    expression, warnings = _to_expression(given)
    if not expression.startswith("="):
        return Scope(_require_text(expression), expression, tuple(warnings))
    inner = expression[1:]
    if inner.count("{{") != inner.count("}}"):
        raise PatchRefused(f"the scope {given!r} has braces that do not close")
    if _PIECE.search(inner) is None:
        return Scope(_require_text(inner), inner, tuple(warnings))
    if any(not piece.strip() for piece in _PIECE.findall(inner)):
        raise PatchRefused(f"the scope {given!r} has an empty expression")
    static = _evaluate_literals(inner)
    if static is not None:
        return Scope(expression, _require_text(static), tuple(warnings))
    if has_dangling_path(expression):
        raise PatchRefused(
            f"the scope {given!r} has a path with nothing before it, which n8n cannot evaluate. If it was $json, the "
            "shell expanded it as a shell variable: write \\$json, or use single quotes"
        )
    triggers = list(triggers)
    _refuse_unknown_nodes(inner, triggers)
    if found := _UNIQUE.search(inner):
        warnings.append(
            f"the scope reads {found[0]}, which differs in every run, so executions never contend for it. "
            "Name the protected resource instead"
        )
    elif "$" not in inner and PLACEHOLDER.search(inner) is None:
        warnings.append(
            f"the scope {given!r} reads nothing from the execution, so it is the same in every run. If it read"
            " $json, the shell expanded that as a shell variable: write \\$json"
        )
    warnings += _missing_fields(inner, triggers)
    return Scope(expression, None, tuple(warnings))


def _require_text(text: str) -> str:
    if not text.strip():
        raise PatchRefused("the scope is empty: name the protected resource, as in ={{ 'excel-' + $json.fileId }}")
    return text


def _to_expression(given: str) -> tuple[str, list[str]]:
    """Return the user's scope as the value of an n8n parameter, and warnings about what was changed. JavaScript without
    `{{ }}`, which n8n would read as plain text, is wrapped in `={{ }}`.
    """
    if "{{" in given:
        if given.startswith("="):
            return given, []
        return f"={given}", [f"the scope {given!r} has no leading =, so n8n would read it as plain text: = was added"]
    inner = given.removeprefix("=").strip()
    if mixed := _TEXT_BEFORE.fullmatch(inner):
        raise PatchRefused(
            f"the scope {given!r} has text before an expression, but no braces: write ={mixed[1]}{{{{ {mixed[2]} }}}}"
        )
    if _CODE.search(inner):
        wrapped = f"={{{{ {inner} }}}}"
        return wrapped, [f"the scope {given!r} has no braces, so n8n would read it as plain text: {wrapped} is used"]
    if given.startswith("=") and _QUOTED.match(inner):
        wrapped = f"={{{{ {inner} }}}}"
        return wrapped, [
            f"the scope {given!r} has no braces, so its quotes would be part of the scope: {wrapped} is used"
        ]
    return inner, []


def _evaluate_literals(inner: str) -> str | None:
    """Return the value of a text whose expressions are all literals, such as `{{ 'a' }}-b`; None for any other text."""
    parts: list[str] = []
    end = 0
    for piece in _PIECE.finditer(inner):
        literal = _QUOTED.match(piece[1])
        if literal is None:
            return None
        parts += [inner[end : piece.start()], next(group for group in literal.groups() if group is not None)]
        end = piece.end()
    return "".join([*parts, inner[end:]])


def _refuse_unknown_nodes(inner: str, triggers: list[N8nNode]) -> None:
    known = {node.name for node in triggers}
    for found in _NODE.finditer(inner):
        name = found[2] or found[4]
        if known and name not in known:
            raise PatchRefused(
                f"the scope reads $({name!r}), which has not run when the scope is evaluated: read a trigger instead"
            )


def _missing_fields(inner: str, triggers: list[N8nNode]) -> list[str]:
    fields = list(dict.fromkeys(found[1] or found[2] for found in _FIELD.finditer(inner)))
    warnings: list[str] = []
    for trigger in triggers:
        sent = fields_sent_by(trigger)
        if sent is None:
            continue
        for field in fields:
            if field not in sent:
                hint = f"; did you mean $json.body.{field}?" if trigger.kind == "webhook" else ""
                warnings.append(
                    f"the scope reads $json.{field}, which the trigger {trigger.name!r} does not send{hint}"
                )
    return warnings


def fields_sent_by(trigger: N8nNode) -> frozenset[str] | None:
    """Return the fields that a trigger sends; None when they are unknown."""
    if trigger.kind == "executeWorkflowTrigger":
        named = as_list(as_mapping(trigger.parameters.get("workflowInputs")).get("values"))
        if trigger.parameters.get("inputSource") not in (None, "workflowInputs") or not named:
            return None
        return frozenset(str(as_mapping(value).get("name", "")) for value in named)
    if trigger.kind == "formTrigger":
        values = as_list(as_mapping(trigger.parameters.get("formFields")).get("values"))
        labels = {str(as_mapping(value).get("fieldLabel", "")) for value in values}
        return frozenset(labels | {"submittedAt", "formMode", "formQueryParameters"}) if labels else None
    return _SENT.get(trigger.kind)
