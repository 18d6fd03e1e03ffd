"""The clean-up primitive over Redis: it checks every lock scope in the workspace's settings (`lockScopes`), and
releases the locks that a failed execution holds.
"""

from __future__ import annotations

from backstay.interop.n8n_wire.keys import LOCK_PREFIX, META_SUFFIX
from backstay.n8n.primitives import shared
from backstay.n8n.primitives.builder import WorkflowBuilder, first, js
from backstay.n8n.primitives.over_redis import META, VALUE, get, lock_keys, parse_identity

NO_SCOPES = "no scopes are registered (lockScopes): locks of a failed execution expire with their TTL"
#: The clean-up's own execution timeout: without it, a Redis node of n8n retries an unreachable server for 15 minutes.
TIMEOUT_SECONDS = 300


def lock_cleanup(d: WorkflowBuilder) -> None:
    """Build the clean-up workflow. It releases the locks whose identity, the JSON that the holder stored beside the
    lock, contains the id of the failed execution. If a sub-workflow acquired the lock, the id in the identity is that
    of the execution that called the sub-workflow.
    """
    prepared = first("Prepare Scope List")
    d.settings["executionTimeout"] = TIMEOUT_SECONDS
    d.error_trigger("Error Trigger", (0, 0))
    name = "Prepare Scope List"
    d.rows(
        name,
        (1, 0),
        [
            d.literal_row(name, "scopes", "array", "{{@:env:lockScopes}}"),
            d.code_row(name, "failed_execution_id", "string", shared.FAILED_EXECUTION),
        ],
    )
    d.condition("Has Scopes?", (2, 0), "$json.scopes.length > 0 && $json.failed_execution_id !== ''")
    d.node(
        "Each Scope", "splitOut", 1, (3, 0), {"fieldToSplitOut": "scopes", "options": {"destinationFieldName": "scope"}}
    )
    scope = "String($json.scope)"
    get(d, "GET Scope Meta", (4, 0), f"{js(LOCK_PREFIX)} + {scope} + {js(META_SUFFIX)}", META)
    of_scope = f"String($({js('Each Scope')}).all()[$itemIndex].json.scope)"
    get(d, "GET Scope Counter", (5, 0), f"{js(LOCK_PREFIX)} + {of_scope}", VALUE)
    meta = f"$({js('GET Scope Meta')}).all()[$itemIndex].json.{META}"
    owner = f"String(({parse_identity(meta)} ?? {{ }}).execution_id ?? '')"
    d.fields(
        "Filter Owned Scopes",
        (6, 0),
        {
            "scope": ("string", of_scope),
            **lock_keys(of_scope),
            "should_release": ("boolean", f"{owner} === {prepared}.failed_execution_id"),
            "unowned": ("boolean", f"({meta} ?? '') === '' && ($json.{VALUE} ?? '') !== ''"),
        },
    )
    d.condition("Owned?", (7, 0), "$json.should_release")
    d.redis("DEL Owned Meta", (8, -1), "delete", "$json.meta_key")
    d.redis("DEL Owned Counter", (9, -1), "delete", "$json.key")
    d.node("Every Scope", "merge", 3, (10, 0), {"mode": "append", "numberInputs": 2})
    _log(d, prepared)
    d.chain("Error Trigger", "Prepare Scope List", "Has Scopes?")
    d.fork("Has Scopes?", "Each Scope", "Log Nothing To Clean")
    d.chain("Each Scope", "GET Scope Meta", "GET Scope Counter", "Filter Owned Scopes", "Owned?")
    d.connect("Owned?", "DEL Owned Meta")
    d.connect("Owned?", "Every Scope", output=1, index=1)
    d.chain("DEL Owned Meta", "DEL Owned Counter", "Every Scope", "Log Cleanup")


def _log(d: WorkflowBuilder, prepared: str) -> None:
    every = f"$({js('Filter Owned Scopes')}).all().map((one) => one.json)"
    owned = f"{every}.filter((one) => one.should_release).map((one) => one.scope)"
    unowned = f"{every}.filter((one) => one.unowned).map((one) => one.scope)"
    execution = f"{js('execution ')} + {prepared}.failed_execution_id"
    none = f"{execution} + {js(' holds none of the registered scopes (lockScopes)')}"
    left = (
        f"{js('; skipped, because the counter has no holder identity: ')} + {unowned}.join({js(', ')})"
        f" + {js(' (an execution is acquiring it now, or ended while acquiring it; it expires with its TTL)')}"
    )
    reason = f"({owned}.length ? {execution} + {js(' failed')} : {none}) + ({unowned}.length ? {left} : '')"
    shared.add_cleanup_output(
        d, (11, 0), cleaned=f"{owned}.length > 0", count=f"{owned}.length", scopes=owned, reason=reason, once=True
    )
    shared.add_nothing_to_clean_output(
        d, f"$json.failed_execution_id === '' ? {js(shared.NO_EXECUTION)} : {js(NO_SCOPES)}"
    )
