"""Who answers at an address, and what to say of it: ports that are open, forwarded, or brought out through a relay.

A site that can open no port reaches a relay host with a tunnel, and the roster has the relay's address for it. Two things go
wrong then: the tunnel does not run, or it ends at another peer. Both look like a firewall from the outside.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
import tempfile
from collections.abc import Mapping
from enum import Enum

from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from cesar.base.types import NodeId
from cesar.peer.trust.address import is_this_machine, split
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.member import Member

SECONDS = 10.0
"""For a handshake: a machine that is busy may take a few."""
GUIDE = "docs/firewalls.md"


class Answer(Enum):
    """What is found at a peer's own address."""

    THIS_PEER = "this peer"
    ANOTHER = "another"
    CLOSED = "closed at once"
    NOTHING = "nothing"


async def who_answers(address: str, identity: Identity) -> Answer:
    """Dial an address with this peer's certificate, and compare the one that is shown there with it."""
    host, port = split(address)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # it is compared below, byte for byte
    context.set_alpn_protocols(["h2"])
    _show(context, identity)
    mine = ssl.PEM_cert_to_DER_cert(identity.certificate.decode("ascii"))
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(host, port)
            writer.close()
    except (OSError, TimeoutError):
        return Answer.NOTHING
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except (OSError, TimeoutError):
        return Answer.CLOSED
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return Answer.THIS_PEER if shown == mine else Answer.ANOTHER


def _show(context: ssl.SSLContext, identity: Identity) -> None:
    """Have a context show this peer's certificate. It reads files only, and a key that has a passphrase must not lie open in
    one: so it is closed by another, which lasts as long as this call.
    """
    secret = secrets.token_hex(32)
    key = load_pem_private_key(identity.tls_key, None)
    closed = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(secret.encode()))
    with tempfile.NamedTemporaryFile() as file:
        file.write(identity.certificate + closed)
        file.flush()
        context.load_cert_chain(file.name, password=secret)


def own_port(listen: str, address: str, answer: Answer, callers: str) -> tuple[bool | None, str]:
    """Whether this peer can be reached, as `Check` says it; `callers` are those who dial it."""
    tunnelled = is_this_machine(split(listen)[0]) and not is_this_machine(split(address)[0])
    match answer:
        case Answer.THIS_PEER:
            return True, f"listens at {listen} and answers at {address}" + (
                ", so its tunnel runs" if tunnelled else ""
            )
        case Answer.ANOTHER:
            return False, (
                f"at {address} another peer or service answers, not this one; the tunnel or the forwarded port leads "
                "elsewhere: compare its port with the roster's"
            )
        case _ if tunnelled:
            found = (
                "accepts connections and drops them"
                if answer is Answer.CLOSED
                else "does not answer from here"
            )
            return None, (
                f"listens at {listen}, which only this machine reaches, and {address} {found}: is the tunnel to the relay "
                f"running, and does it end at {listen}? ({GUIDE})"
            )
        case _:
            return None, (
                f"listens at {listen}, but {address} does not answer from here; some routers do not allow that. "
                f"Node(s) {callers or 'none'} must reach it: is the port forwarded? Where no port can be opened, a "
                f"tunnel to a relay host helps ({GUIDE})"
            )


def behind_relay(members: Mapping[NodeId, Member], member: Member) -> str:
    """What to add to an error if a neighbour's address may be a relay's: others have the same host."""
    if member.address is None or is_this_machine(split(member.address)[0]):
        return ""
    host = split(member.address)[0]
    others = [i for i, m in members.items() if m.address is not None and split(m.address)[0] == host]
    if len(others) < 2:
        return ""
    who = ", ".join(map(str, sorted(others)))
    return f" ({host} stands for nodes {who}: if it is a relay, does the tunnel of node {member.id} run? {GUIDE})"
