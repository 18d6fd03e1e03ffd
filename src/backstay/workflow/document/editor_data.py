"""Read the keys `metadata` and `ports` of a job: data of editors, which Backstay stores and returns, and ignores
otherwise. Their size is limited, also after a matrix has multiplied the job: responses contain them once per job.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from backstay.workflow.definition import JobSpec, Port
from backstay.workflow.document.fields import MOST_PORTS, PORT
from backstay.workflow.document.nodes import DocumentNode, MappingNode, ScalarNode
from backstay.workflow.document.value_reader import ValueReader, describe_node
from backstay.workflow.planning import matrix as matrices

#: The largest size of `metadata` and `ports` of one job, as JSON in bytes, and the largest sum over the jobs that a
#: matrix makes of it.
LARGEST_DATA, LARGEST_SUM = 64 * 1024, 1024 * 1024
#: Characters of one text of a port.
LONGEST_TEXT = 200


def read_metadata(values: ValueReader, node: DocumentNode, what: str) -> dict[str, Any]:
    if not isinstance(node, MappingNode):
        values.add_problem(node, f"metadata of {what} must be a mapping; got {describe_node(node)}")
        return {}
    return {name: values.read_data(value) for name, (_, value) in node.items.items()}


def read_ports(values: ValueReader, node: DocumentNode, what: str) -> tuple[Port, ...]:
    listed = values.read_list(node, f"ports of {what}")
    if len(listed) > MOST_PORTS:
        values.add_problem(node, f"{what} has {len(listed)} ports, but at most {MOST_PORTS} are allowed")
        return ()
    return tuple(_read_port(values, one, f"a port of {what}") for one in listed)


def _read_port(values: ValueReader, node: DocumentNode, what: str) -> Port:
    found = values.read_mapping(node, what, PORT)

    def read_text(word: str, *, empty: bool = True) -> str:
        return (
            values.read_text(found[word], f"{word} of {what}", most=LONGEST_TEXT, empty=empty) if word in found else ""
        )

    color = found.get("color")
    return Port(
        id=read_text("id", empty=False),
        label=read_text("label"),
        direction=_read_direction(values, found.get("direction"), what),
        port_type=read_text("port_type"),
        color=None if isinstance(color, ScalarNode) and color.value is None else read_text("color") or None,
    )


def _read_direction(values: ValueReader, node: DocumentNode | None, what: str) -> Literal["input", "output"]:
    value = node.value if isinstance(node, ScalarNode) else None
    if node is not None and value not in ("input", "output"):
        values.add_problem(node, f"direction of {what} must be input or output; got {describe_node(node)}")
    return "output" if value == "output" else "input"


def check_size(values: ValueReader, node: DocumentNode, what: str, job: JobSpec) -> None:
    """Add a problem if `metadata` and `ports` of a job are too large."""
    if not job.metadata and not job.ports:
        return
    size = len(msgspec.json.encode((job.metadata, job.ports)))
    if size > LARGEST_DATA:
        values.add_problem(
            node, f"metadata and ports of {what} have {size} bytes as JSON, but at most {LARGEST_DATA} are allowed"
        )
        return
    copies = matrices.count_combinations(job.matrix) if job.matrix is not None else 1
    if size * copies > LARGEST_SUM:
        values.add_problem(
            node,
            f"metadata and ports of {what} have {size} bytes as JSON in each of its {copies} jobs,"
            f" but at most {LARGEST_SUM} in all are allowed",
        )
