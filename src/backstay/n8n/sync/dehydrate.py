"""Convert n8n's content back to a template: values that did not change in n8n keep their placeholders, changed values
become literals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from backstay.n8n.json_types import is_list, is_mapping


def dehydrate(template: Any, built: Any, changed: Any, ids: Mapping[str, str]) -> Any:
    """Return a new template which, once its placeholders are resolved, equals `changed` (the content that n8n has now).
    `template` is the old template, and `built` is the old template with resolved placeholders.

    `ids` maps known workflow ids to their placeholders. Where `changed` contains such an id as a new value, the
    template gets the placeholder.
    """
    if changed == built:
        return template
    if is_mapping(changed):
        below, before = _table(template), _table(built)
        names = [*(name for name in below if name in changed), *(name for name in changed if name not in below)]
        return {name: dehydrate(below.get(name), before.get(name), changed[name], ids) for name in names}
    if is_list(changed):
        return _dehydrate_items(template if is_list(template) else [], built if is_list(built) else [], changed, ids)
    if isinstance(changed, str):
        return ids.get(changed, changed)
    return changed


def _table(value: Any) -> dict[str, Any]:
    return value if is_mapping(value) else {}


def _dehydrate_items(template: list[Any], built: list[Any], changed: list[Any], ids: Mapping[str, str]) -> list[Any]:
    """Dehydrate a list. Items with a name (nodes) are matched by name, other items by index."""
    known = {_name(item): at for at, item in enumerate(built) if _name(item)}
    made: list[Any] = []
    for at, item in enumerate(changed):
        before = known.get(_name(item), -1) if _name(item) else at
        paired = 0 <= before < min(len(built), len(template))
        made.append(dehydrate(template[before] if paired else None, built[before] if paired else None, item, ids))
    return made


def _name(item: Any) -> str:
    return str(item.get("name", "")) if is_mapping(item) else ""
