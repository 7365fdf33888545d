"""One that speaks to an honest peer with raw messages, with keys of the network or others."""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any

import grpc

from cesar.peer.driver.runtime import AsyncPeer
from cesar.peer.net.chunks import Message
from cesar.peer.net.transport import SERVICE, Handler
from cesar.peer.trust import identity, keyfiles
from cesar.peer.trust.authority import Authority
from cesar.peer.trust.certificates import Request
from cesar.peer.trust.folder import Network
from cesar.peer.trust.identity import Identity
from support.waiting import until


class Enemy:
    """A connection to one honest peer, with somebody's keys."""

    def __init__(
        self,
        keys: Identity | None,
        target: AsyncPeer,
        node: int = 0,
        compression: grpc.Compression = grpc.Compression.NoCompression,
    ) -> None:
        self.keys, self.target, self.node, self.compression = keys, target, node, compression

    async def __aenter__(self):
        member = self.target.roster.members[self.target.id]
        chain = (None, None) if self.keys is None else (self.keys.tls_key, self.keys.certificate)
        credentials = grpc.ssl_channel_credentials(member.certificate, *chain)
        options = [
            ("grpc.ssl_target_name_override", member.host_name),
            ("grpc.use_local_subchannel_pool", 1),
            ("grpc.max_send_message_length", -1),
        ]
        self.channel = grpc.aio.secure_channel(
            member.address, credentials, options=options, compression=self.compression
        )
        self.call = self.channel.stream_stream(SERVICE)()
        return self

    async def __aexit__(self, *_):
        self.call.cancel()
        await self.channel.close()

    async def send(self, kind: int, body: bytes = b"") -> None:
        await self.call.write(bytes([kind]) + body)

    async def hello(self, **changes) -> None:
        """As an honest node would say it, but for the changes."""
        words = {**json.loads(self.target.reception.hello()), "node": self.node, **changes}
        await self.send(Message.HELLO, json.dumps(words).encode())

    async def enter(self) -> None:
        """Be let in."""
        await self.hello()
        assert (await self.call.read())[0] == Message.HELLO
        await until(lambda: self.target.transport.links[self.node].up, 10)

    async def fate(self) -> str:
        """How the conversation ends, in the peer's words."""
        words = ""
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.CancelledError):
            async with asyncio.timeout(20):
                while (message := await self.call.read()) is not grpc.aio.EOF:
                    if message[0] == Message.REFUSED:
                        words = message[1:].decode()
        return words or (await self.call.details() or "")


def keys_of(network: Network, node: int) -> Identity:
    return Identity.load(network.folder / f"peer-{node}")


def issue(authority: Authority, folder, node: int, now: datetime) -> Identity:
    """Keys that an authority has signed, whether or not the roster lists them."""
    csr = identity.make_keys(folder, authority.network, node)
    certificate = authority.issue(Request(csr=csr), now=now, days=1)
    (folder / keyfiles.CERTIFICATE).write_bytes(certificate)
    (folder / keyfiles.CA_CERTIFICATE).write_bytes(authority.certificate)
    return Identity.load(folder)


async def frames(enemy: Enemy, payloads) -> None:
    for payload in payloads:
        await enemy.send(Message.FRAME, struct.pack("<Q", len(payload)) + payload)


@contextlib.asynccontextmanager
async def listening(
    network: Network,
    node: int,
    answer: Callable[[Any, Any], Awaitable[None]],
    compression: grpc.Compression = grpc.Compression.NoCompression,
) -> AsyncIterator[None]:
    """At a node's address, with its keys, something answers whoever dials."""
    keys = keys_of(network, node)
    credentials = grpc.ssl_server_credentials(
        [(keys.tls_key, keys.certificate)], keys.ca, require_client_auth=True
    )
    server = grpc.aio.server(compression=compression)
    server.add_generic_rpc_handlers((Handler(answer),))
    server.add_secure_port(network.roster.members[node].address, credentials)
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)
