"""Encrypted connections: what a URL says about certificates, and what a failed handshake means."""

from __future__ import annotations

import ssl

from backstay.engine.redis.address import Address
from backstay.errors import ConfigError, EngineRefused

#: What OpenSSL calls it when the other side wants a certificate, or dislikes ours.
OURS = ("CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "ALERT_BAD_CERTIFICATE", "ALERT_CERTIFICATE", "HANDSHAKE_FAILURE")
#: … and when it does not speak TLS at all.
PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def context(address: Address) -> ssl.SSLContext | None:
    """How to talk to a server; None: in the clear. A certificate is always checked, and its name unless the URL says
    `insecure_skip_hostname_check=yes`: then any holder of a certificate of that authority may pose as the server.
    """
    if not address.tls:
        return None
    try:
        made = ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca={address.ca}: no certificates can be read there ({why(error)})") from None
    made.check_hostname = address.check_hostname
    if address.cert:
        try:
            made.load_cert_chain(address.cert, address.key or None, password=locked)
        except (OSError, ValueError) as error:
            files = f"cert={address.cert}" + (f" and key={address.key}" if address.key else "")
            raise ConfigError(f"{files}: not a certificate with its key ({why(error)})") from None
    return made


def locked() -> str:
    """OpenSSL would ask at the terminal, and a service would hang."""
    raise ValueError("the key has a passphrase; use one without, in a file that only its user can read")


def why(error: Exception) -> str:
    return (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", "") or str(error)


def refusal(error: BaseException | None, address: Address) -> EngineRefused | None:
    """What waiting will not heal: certificates that do not match. None: any other trouble."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return EngineRefused(
            f"the certificate of {address} is not accepted: {error.verify_message}. "
            "Name the authority that signed it with ?ca=FILE, and the server as its certificate does"
        )
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or str(error)
    if any(word in reason for word in OURS):
        return EngineRefused(
            f"{address} wants a certificate from us that it can check: add ?cert=FILE&key=FILE ({reason})"
        )
    if any(word in reason for word in PLAIN):
        return EngineRefused(f"{address} does not speak TLS: use redis:// there ({reason})")
    return None
