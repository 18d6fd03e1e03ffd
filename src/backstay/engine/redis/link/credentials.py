"""Fetch credentials from a redis-py credential provider for every connection, so that tokens can rotate."""

from __future__ import annotations

import asyncio
from typing import Any

from backstay.errors import ConfigError, EngineUnavailable


class Credentials:
    """Fetches username and password. Neither they nor the provider's error text ever appear in messages."""

    def __init__(self, provider: Any) -> None:
        self._provider = provider
        self._name = type(provider).__name__
        if not _defines(provider, "get_credentials"):
            raise ConfigError(
                f"credential_provider: {self._name} has no get_credentials(); leases are renewed by a thread, which"
                " cannot await get_credentials_async()"
            )

    def fetch(self) -> tuple[str, str]:
        try:
            return self._read(self._provider.get_credentials())
        except Exception as error:
            raise self._provider_error(error) from error

    async def fetch_async(self) -> tuple[str, str]:
        """Call the provider's async method if it has one; otherwise call the blocking one in a thread."""
        provider = self._provider
        try:
            if _defines(provider, "get_credentials_async"):
                return self._read(await provider.get_credentials_async())
            return self._read(await asyncio.to_thread(provider.get_credentials))
        except Exception as error:
            raise self._provider_error(error) from error

    def _read(self, found: Any) -> tuple[str, str]:
        match found:
            case [str() as password]:
                return "", password
            case [str() | None as username, str() | None as password]:
                return username or "", password or ""
            case _:
                raise TypeError("neither (password,) nor (username, password)")

    def _provider_error(self, error: Exception) -> EngineUnavailable:
        return EngineUnavailable(f"cannot sign in: the credential provider {self._name} raised {type(error).__name__}")


def _defines(provider: Any, method: str) -> bool:
    """Whether a class other than redis-py's abstract CredentialProvider defines the method."""
    for kind in type(provider).__mro__:
        if method in vars(kind):
            return kind.__name__ != "CredentialProvider"
    return False
