"""A server with tokens, and its clients: one per token."""

from __future__ import annotations

import contextlib

import httpx

from backstay.job.flows import send
from backstay.server.http.auth import new_token
from backstay.server.settings import ServerSettings
from support.server.site import serving

SETTINGS = ServerSettings(access_log=False, auth_failure_rate="1000/minute")


class Client:
    """An HTTP client with a token of its own."""

    def __init__(self, url, token):
        self.token = token
        self._elsewhere = []
        self.http = httpx.Client(base_url=url, timeout=30, headers={"authorization": f"Bearer {token}"})

    def post(self, path, body=None):
        return self.http.post(path, json={} if body is None else body)

    def put(self, path, content):
        return self.http.put(path, content=content, headers={"content-type": "application/octet-stream"})

    def get(self, path):
        return self.http.get(path)

    def delete(self, path):
        return self.http.delete(path)

    def at(self, site):
        """Return a client with the same token for another server."""
        self._elsewhere.append(Client(site.url, self.token))
        return self._elsewhere[-1]

    def close(self):
        for client in self._elsewhere:
            client.close()
        self.http.close()


@contextlib.contextmanager
def serving_clients(url, roles, *, namespace=None):
    """Run a server with a token for each entry of `roles`: name → role, or name → (role, owner). Yields the site and
    the clients by name.
    """
    tokens = {}

    async def prepare(server):
        await server.stay.open()
        for name, given in roles.items():
            role, owner = given if isinstance(given, tuple) else (given, "")
            tokens[name], record = new_token(role, name, owner=owner)
            await send(server.core, server.store.put_token(record))

    with serving(url, namespace=namespace, settings=SETTINGS, prepare=prepare) as site, contextlib.ExitStack() as stack:
        clients = {name: Client(site.url, token) for name, token in tokens.items()}
        for client in clients.values():
            stack.callback(client.close)
        yield site, clients
