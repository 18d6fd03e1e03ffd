"""Build TLS contexts from a URL's options, and explain failed TLS handshakes."""

from __future__ import annotations

import ssl

from backstay.engine.redis.address import Address
from backstay.errors import ConfigError, EngineRefused

#: OpenSSL's error reasons if the server requires a client certificate, or rejects the one that was sent.
CLIENT_CERTIFICATE = (
    "CERTIFICATE_REQUIRED",
    "ALERT_UNKNOWN_CA",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE",
    "HANDSHAKE_FAILURE",
)
#: OpenSSL's error reasons if the server does not speak TLS.
PLAIN = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG")


def context(address: Address) -> ssl.SSLContext | None:
    """Return the TLS context of an address; None without TLS. The certificate is always verified, and so is its host
    name unless the URL has `insecure_skip_hostname_check=yes`: then anyone with a certificate of the same authority can
    impersonate the server.
    """
    if not address.tls:
        return None
    try:
        made = ssl.create_default_context(cafile=address.ca or None)
    except (OSError, ValueError) as error:
        raise ConfigError(f"ca={address.ca}: no certificates can be read there ({failure_reason(error)})") from None
    made.check_hostname = address.check_hostname
    if address.cert:
        try:
            made.load_cert_chain(address.cert, address.key or None, password=reject_passphrase)
        except (OSError, ValueError) as error:
            files = f"cert={address.cert}" + (f" and key={address.key}" if address.key else "")
            raise ConfigError(f"{files}: not a certificate with its key ({failure_reason(error)})") from None
    return made


def reject_passphrase() -> str:
    """Raise for an encrypted key: OpenSSL would prompt at the terminal, and a service would hang."""
    raise ValueError("the key has a passphrase; use one without, in a file that only its user can read")


def failure_reason(error: Exception) -> str:
    return (isinstance(error, ssl.SSLError) and error.reason) or getattr(error, "strerror", "") or str(error)


def tls_refusal(error: BaseException | None, address: Address) -> EngineRefused | None:
    """Return the error for a certificate problem, which a retry does not solve; None for other errors."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return EngineRefused(
            f"the certificate of {address} is not accepted: {error.verify_message}. "
            "Pass the authority that signed it with ?ca=FILE, and use the host name of the certificate"
        )
    if not isinstance(error, ssl.SSLError):
        return None
    reason = error.reason or str(error)
    if any(word in reason for word in CLIENT_CERTIFICATE):
        return EngineRefused(
            f"{address} requires a client certificate that it trusts: add ?cert=FILE&key=FILE ({reason})"
        )
    if any(word in reason for word in PLAIN):
        return EngineRefused(f"{address} does not speak TLS: use redis:// there ({reason})")
    return None
