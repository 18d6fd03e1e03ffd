"""A command with its texts filled in."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from backstay.workflow.command.spec import CommandSpec
from backstay.workflow.expressions.expression import Context
from backstay.workflow.expressions.interpolation import OPEN, fill, fill_all, template


def fit(spec: CommandSpec, context: Context) -> CommandSpec:
    """Its variables first, one after another; then its steps, which may speak of them. Conditions of steps, and
    outputs, stay as they are: they are asked while and after it runs. To be done once: what was filled in is text.
    """
    env = fill_all(spec.env, context)
    outside = replace(context, env=env)
    steps = tuple(
        replace(
            step,
            env=own,
            run=fill(step.run, inside),
            name=fill(step.name, inside),
            working_directory=fill(step.working_directory, inside),
        )
        for step in spec.steps
        for own in (fill_all(step.env, outside),)
        for inside in (replace(outside, env={**env, **own}),)
    )
    return replace(spec, env=env, steps=steps, working_directory=fill(spec.working_directory, outside))


def speaks_of_needs(spec: CommandSpec) -> bool:
    """Whether it can be filled in only once the jobs before it have ended."""
    texts = [*spec.env.values(), spec.working_directory]
    for step in spec.steps:
        texts += [*step.env.values(), step.run, step.name, step.working_directory]
    return speak_of_needs(texts)


def speak_of_needs(texts: Iterable[str]) -> bool:
    """Whether one of these texts has something of another job in it."""
    return any(
        reference.path[0] == "needs"
        for text in texts
        if OPEN in text
        for expression in template(text).expressions
        for reference in expression.references
    )
