"""Who owns what was taken over HTTP. A lock or a running call belongs to the owner of the token that took it: its
ticket starts with the owner's tag, so every server knows the owner without a record of its own.

Ids that others can see never suffice: to renew or release a lock, a client needs a token of its owner, or the role
admin. Without tokens all clients are one principal, which has all roles.
"""

from __future__ import annotations

import hashlib

from backstay.server.http.auth import Principal

#: The hexadecimal digits of an owner tag.
TAG_LENGTH = 16


def owner_tag(principal: Principal) -> str:
    """Return the text that stands for an owner in tickets and records; "" without tokens."""
    if not principal.owner:
        return ""
    return hashlib.sha256(f"owner\0{principal.owner}".encode()).hexdigest()[:TAG_LENGTH]


def ticket_prefix(principal: Principal) -> str:
    """Return the start of all tickets of a principal. No ticket of a Python program starts with `h`."""
    return f"h{owner_tag(principal)}-"


def make_ticket(principal: Principal, name: str, request_id: str) -> str:
    """Derive a ticket from a request id, so that any server recognizes a repeated request. Another owner that sends the
    same request id gets another ticket. The name is part of the hash: clients may reuse a request id for another name.
    """
    return ticket_prefix(principal) + hashlib.sha256(f"{name}\0{request_id}".encode()).hexdigest()[:32]


def owns(principal: Principal, ticket: str) -> bool:
    return ticket.startswith(ticket_prefix(principal))


def may_control(principal: Principal, ticket: str) -> bool:
    """Whether a principal may see the lock_id of a ticket, and renew and release its lock: its owner and admins."""
    return principal.is_admin or owns(principal, ticket)


def execution_tag(principal: Principal, execution_id: str) -> str:
    """Return the tag under which the engine lists the locks that an owner acquired for an execution. Execution ids are
    small numbers in n8n, so two owners may use the same one.
    """
    return f"{ticket_prefix(principal)} {execution_id}"
