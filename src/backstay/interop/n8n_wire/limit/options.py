"""Validate the options of a rate limit in n8n's windows."""

from __future__ import annotations

from msgspec.structs import replace

from backstay.errors import ConfigError
from backstay.interop.n8n_wire.limit import flows
from backstay.interop.n8n_wire.option import is_n8n
from backstay.limit.spec import ALGORITHM, LimitSpec, spec
from backstay.policy import OnUnavailable
from backstay.runtime.core import Core
from backstay.runtime.validation import Wire


def n8n_spec(
    core: Core,
    wire: Wire,
    name: str,
    rates: tuple[str, ...],
    algorithm: str,
    burst: int | None,
    on_unavailable: OnUnavailable | None,
) -> LimitSpec:
    """Validate the options of a limit in n8n's windows: it has one rate, with a period of whole seconds.
    `on_unavailable="local"` is rejected, because n8n would never see the hits that this process counts by itself. If
    the caller gives no `on_unavailable`, the value in the Backstay's policy is used, but "deny" instead of "local".
    """
    is_n8n(core.engine, wire)
    usual = core.policy.limit_on_unavailable
    if on_unavailable == "local":
        raise ConfigError(
            "on_unavailable='local' would count hits that n8n never sees: with wire='n8n' use deny or allow"
        )
    mode: OnUnavailable = on_unavailable if on_unavailable is not None else "deny" if usual == "local" else usual
    if algorithm not in (ALGORITHM, "fixed") or burst is not None:
        raise ConfigError("wire='n8n' counts in fixed windows: leave out algorithm= and burst=")
    found = spec(name, rates, "fixed", None, mode)
    if len(found.rates) != 1 or found.rates[0].window % 1000:
        raise ConfigError(f"wire='n8n' takes one rate of whole seconds, as in '100/minute'; got {', '.join(rates)}")
    return replace(found, wire=flows)
