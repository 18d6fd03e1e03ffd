"""The public names, and the modules that importing them loads."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import backstay
from backstay import sync
from backstay.job.api.definition import BlockingJobType, JobType
from backstay.job.api.handle import BlockingJobHandle
from backstay.workflow.api.blocking import BlockingRunHandle
from backstay.workflow.api.decorator import BlockingWorkflowType, WorkflowType

OPTIONAL = ["typer", "rich", "fastapi", "psycopg", "uvloop", "ruamel", "django", "opentelemetry", "redis"]


def test_all_is_exactly_the_public_names():
    values = {name: getattr(backstay, name) for name in dir(backstay) if not name.startswith("_")}
    public = {
        name
        for name, value in values.items()
        if getattr(value, "__module__", "").startswith("backstay") and not isinstance(value, ModuleType)
    }
    assert sorted(backstay.__all__) == sorted(public)
    assert len(set(backstay.__all__)) == len(backstay.__all__)


def test_a_name_that_does_not_exist_is_an_attribute_error():
    with pytest.raises(AttributeError, match="Lokc"):
        _ = backstay.Lokc


def test_every_public_class_has_a_docstring():
    for name in backstay.__all__:
        value = getattr(backstay, name)
        if isinstance(value, type):
            assert value.__doc__, name


@pytest.mark.parametrize(
    "pair",
    [
        (backstay.Backstay, sync.Backstay),
        (backstay.Lease, sync.Lease),
        (type(backstay.Backstay("memory://").lock("x")), sync.Lock),
        (type(backstay.Backstay("memory://").locks), sync.Locks),
        (type(backstay.Backstay("memory://").hub), sync.Channels),
        (type(backstay.Backstay("memory://").limit("x", "1/s")), sync.Limit),
        (type(backstay.Backstay("memory://").limits), sync.Limits),
        (type(backstay.Backstay("memory://").idempotency), sync.Idempotency),
        (type(backstay.Backstay("memory://").jobs), type(sync.Backstay("memory://").jobs)),
        (type(backstay.Backstay("memory://").jobs.dead), type(sync.Backstay("memory://").jobs.dead)),
        (type(backstay.Backstay("memory://").queues), type(sync.Backstay("memory://").queues)),
        (type(backstay.Backstay("memory://").workflows), type(sync.Backstay("memory://").workflows)),
        (type(backstay.Backstay("memory://").runs), type(sync.Backstay("memory://").runs)),
        (backstay.RunHandle, BlockingRunHandle),
        (WorkflowType, BlockingWorkflowType),
        (backstay.JobHandle, BlockingJobHandle),
        (JobType, BlockingJobType),
    ],
    ids=lambda pair: pair[1].__name__,
)
def test_both_apis_offer_the_same_names(pair):
    of_async, of_sync = ({name for name in dir(kind) if not name.startswith("_")} for kind in pair)
    assert of_async == of_sync


@pytest.mark.parametrize("module", ["backstay", "backstay.sync"])
def test_importing_loads_no_optional_dependency(module):
    probe = f"import sys, {module}; print(*[name for name in {OPTIONAL!r} if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert found.stdout.split() == []
