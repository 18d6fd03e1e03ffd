"""Generate the JSON Schema of workflow documents, for editors. Backstay's own reader of documents (`yaml.py`) is
stricter: it also checks the references in expressions.
"""

from __future__ import annotations

from typing import Any

from backstay.workflow.document.fields import TABLES, Field

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Build the JSON schema of workflow files from the tables of known keys that the YAML reader uses."""
    made = {name: _object(fields) for name, fields in TABLES.items()}
    made["job"]["oneOf"] = [{"required": ["run"]}, {"required": ["steps"]}]
    shorthand = {"type": ["string", "number", "boolean", "null"]}
    made["input"] = {"anyOf": [shorthand, made["input"]]}
    whole = made.pop("workflow")
    return {"$schema": DIALECT, "title": "Backstay workflow", **whole, "$defs": made}


def _object(fields: tuple[Field, ...]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {field.name: {"description": field.doc, **field.schema} for field in fields},
        "required": [field.name for field in fields if field.required],
        "additionalProperties": False,
    }


def reference_table(name: str) -> str:
    """Format one table of the reference page in Markdown."""
    lines = ["| key | what | example |", "|---|---|---|"]
    for field in TABLES[name]:
        needed = " **Required.**" if field.required else ""
        example = f"`{field.example}`" if field.example else ""
        lines.append(f"| `{field.name}` | {field.doc}{needed} | {example} |".replace("||", "\\|\\|"))
    return "\n".join(lines)
