"""Build a TLS context from the settings of a redis-py client. Certificate verification is always on."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

from backstay.engine.redis.link.tls import failure_reason, reject_passphrase
from backstay.errors import ConfigError

#: The supported settings. `client_settings.py` rejects any other setting that begins with `ssl_`.
TLS_SETTINGS = {
    "ssl_ca_certs",
    "ssl_ca_data",
    "ssl_ca_path",
    "ssl_cert_reqs",
    "ssl_certfile",
    "ssl_check_hostname",
    "ssl_ciphers",
    "ssl_exclude_verify_flags",
    "ssl_include_verify_flags",
    "ssl_keyfile",
    "ssl_min_version",
    "ssl_password",
}
#: Values of ssl_cert_reqs that switch verification off. (For a client, "optional" is as strict as "required".)
UNCHECKED = ("none", None, ssl.CERT_NONE)


def build_context(options: Mapping[str, Any]) -> ssl.SSLContext:
    """Return the TLS context. Raises a ConfigError that names the unusable setting."""
    if options.get("ssl_cert_reqs", "required") in UNCHECKED:
        raise ConfigError(
            "this client uses ssl_cert_reqs='none', which allows any host to impersonate the server; Backstay always"
            " verifies certificates. Pass the authority with ssl_ca_certs=FILE; ssl_check_hostname=False is supported"
        )
    made = ssl.create_default_context()
    made.check_hostname = bool(options.get("ssl_check_hostname", True))
    for flag in options.get("ssl_include_verify_flags") or ():
        made.verify_flags |= flag
    for flag in options.get("ssl_exclude_verify_flags") or ():
        made.verify_flags &= ~flag
    authority = {name: options.get(f"ssl_{name}") for name in ("ca_certs", "ca_path", "ca_data")}
    if any(authority.values()):
        file, folder, data = authority.values()
        _try(lambda: made.load_verify_locations(file, folder, data), "ssl_ca_certs, ssl_ca_path or ssl_ca_data")
    if cert := options.get("ssl_certfile"):
        password = options.get("ssl_password") or reject_passphrase
        key = options.get("ssl_keyfile")
        _try(lambda: made.load_cert_chain(cert, key, password), "ssl_certfile, ssl_keyfile or ssl_password")
    elif options.get("ssl_keyfile"):
        raise ConfigError("this client's ssl_keyfile needs its certificate: ssl_certfile")
    if lowest := options.get("ssl_min_version"):
        made.minimum_version = lowest
    if ciphers := options.get("ssl_ciphers"):
        _try(lambda: made.set_ciphers(ciphers), "ssl_ciphers")
    return made


def _try(load: Callable[[], None], settings: str) -> None:
    try:
        load()
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"this client's {settings} cannot be used: {failure_reason(error)}") from None
