"""Plain data as YAML: in lines, or all on one."""

from __future__ import annotations

import json
import re
from typing import Any

from backstay.n8n.json_types import is_list, is_table
from backstay.n8n.workspace.json_layout import Literal

#: What may stand without quotes: no reader of YAML takes it for anything but text.
_BARE = re.compile(r"[A-Za-z_](?:[A-Za-z0-9_./-]*[A-Za-z0-9_/])?")
_WORDS = frozenset({"true", "false", "yes", "no", "on", "off", "null", "y", "n"})


def scalar(value: Any) -> str:
    if isinstance(value, (dict, list)) or value is None or isinstance(value, (bool, int)):
        return json.dumps(value)
    if isinstance(value, Literal):
        return value.text
    text = str(value)
    if _BARE.fullmatch(text) and text.lower() not in _WORDS:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def flow(value: Any) -> str:
    if is_table(value):
        return "{" + ", ".join(f"{scalar(key)}: {flow(item)}" for key, item in value.items()) + "}"
    if is_list(value):
        return "[" + ", ".join(flow(item) for item in value) + "]"
    return scalar(value)


def block(value: Any) -> list[str]:
    lines: list[str] = []
    if is_table(value):
        for key, item in value.items():
            if isinstance(item, (dict, list)) and item:
                lines.append(f"{scalar(key)}:")
                lines += ["  " + line for line in block(item)]
            else:
                lines.append(f"{scalar(key)}: {scalar(item)}")
    else:
        for item in value:
            inner = block(item) if isinstance(item, (dict, list)) and item else [scalar(item)]
            lines += [("- " if at == 0 else "  ") + line for at, line in enumerate(inner)]
    return lines
