"""Links to neighbours: one gRPC stream over mutual TLS for each, whoever opened the connection.

A stream carries messages in both directions, one kind byte and a body each:

    HELLO    JSON: who speaks, with which version, roster and settings; the first message of either side
    STATUS   where the speaker stands (see `runtime.Status`)
    FRAME    u64 length of a frame, then its first bytes
    ROSTER   the same for a signed roster, for a peer whose own is older
    MORE     further bytes of what was begun
    REFUSED  why the speaker ends this conversation, in words

Who may speak. TLS admits only certificates of the network's authority. A dialler pins the very certificate that the
roster lists; a listener compares the one that it was shown. So a revoked certificate is useless from the moment
that a peer holds the newer roster, and nobody can use a certificate under another id.

Memory. A frame is cut into chunks as it is sent; gRPC's flow control holds the sender back. A receiver knows how
long a frame can be, and takes in large ones one after the other (`Room`), as long as they flow.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import struct
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Protocol

import grpc
import numpy as np

from cesar import memory
from cesar.peer.claims import fingerprint, read_certificate
from cesar.peer.identity import Identity
from cesar.peer.roster import LIMIT as ROSTER_LIMIT
from cesar.peer.roster import Roster
from cesar.peer.troubles import explain
from cesar.types import Buffer, ByteArray, NodeId, RoundNo

log = logging.getLogger("cesar.peer")

SERVICE = "/cesar.Link/Talk"
CHUNK = 1 << 20
HELLO_SECONDS = 10.0
HELLO_LIMIT = 64 << 10
MOST_CONNECTIONS = 512
"""Beyond the neighbours': strangers who only connect must not use up the descriptors that a round's files need."""

BACKOFF = (0.2, 5.0)
LARGE = 8 << 20
STALLED_SECONDS, PLACE_SECONDS = 2.0, 20.0
_LENGTH = struct.Struct("<Q")
OPTIONS = (
    ("grpc.max_receive_message_length", CHUNK + 64),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", int(1000 * HELLO_SECONDS)),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Message(IntEnum):
    HELLO = 1
    STATUS = 2
    FRAME = 3
    MORE = 4
    ROSTER = 5
    REFUSED = 6


class Refusal(Exception):  # noqa: N818  (it is how a conversation ends, not a fault of ours)
    """This conversation ends, and the other side is told why."""


class Hub(Protocol):
    """The owner of the links: decides whom to believe and what to do with what they say."""

    async def largest_frame(self) -> int:
        """No frame is longer; waits until that is known."""

    def hello(self) -> bytes:
        """What to say first."""

    def meet(self, peer: NodeId, hello: bytes) -> None:
        """Look at what a neighbour says first, and when it knows more; raises `Refusal`."""

    async def frame(self, peer: NodeId, payload: Buffer) -> None:
        """Take in a frame."""

    def status(self, peer: NodeId, body: bytes) -> None:
        """A neighbour says where it stands; raises `Refusal`."""

    def roster_from(self, peer: NodeId, data: bytes) -> None:
        """A neighbour sends its roster; raises `Refusal`."""

    def connected(self, peer: NodeId, up: bool) -> None:
        """A link has come up, or gone."""

    def failed(self, peer: NodeId, why: str) -> None:
        """A link could not be made, or was ended for this reason."""


_LONG = (Message.FRAME, Message.ROSTER)


@dataclass(slots=True)
class _Parcel:
    kind: Message
    payload: Buffer = field(repr=False)
    round_: RoundNo | None = None

    def messages(self) -> Iterator[bytes]:
        """The gRPC messages that carry it."""
        if self.kind not in _LONG:
            yield bytes([self.kind]) + self.payload
            return
        view = memoryview(self.payload).cast("B")
        yield bytes([self.kind]) + _LENGTH.pack(len(view)) + view[:CHUNK]
        for start in range(CHUNK, len(view), CHUNK):
            yield bytes([Message.MORE]) + view[start : start + CHUNK]


class Room:
    """Lets one large frame come in at a time; whoever stops in the middle, or dawdles, does not keep the others out."""

    def __init__(self) -> None:
        self._inside = 0
        self._left = asyncio.Event()
        self._pulse = 0

    def beat(self) -> None:
        """Some bytes of a large frame have come."""
        self._pulse += 1

    async def enter(self, length: int) -> bool:
        """Wait for a place for so many bytes; whether one was taken, to be given back with `leave`."""
        if length < LARGE:
            return False
        end = asyncio.get_running_loop().time() + PLACE_SECONDS
        while self._inside and asyncio.get_running_loop().time() < end:
            pulse = self._pulse
            self._left.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._left.wait(), STALLED_SECONDS)
            if self._pulse == pulse:
                break
        self._inside += 1
        return True

    def leave(self) -> None:
        self._inside -= 1
        self._left.set()


class _Stream(Protocol):
    """What the two ends of a gRPC stream have in common."""

    async def read(self) -> Any: ...
    async def write(self, message: bytes) -> None: ...


class Link:
    """What is to be sent to one neighbour, and whether it can be."""

    def __init__(self, peer: NodeId, room: Room) -> None:
        self.peer, self._room = peer, room
        self.up = False
        self.outstanding = 0
        self.delivered = 0
        self._queue: deque[_Parcel] = deque()
        self._wake = asyncio.Event()
        self._conversation: asyncio.Task[None] | None = None
        self._refused = ""
        self._silent: asyncio.Task[None] | None = None

    def send(self, kind: Message, payload: Buffer, round_: RoundNo | None = None) -> None:
        """Queue something; it is dropped if the link is down."""
        if self.up:
            self._queue.append(_Parcel(kind, payload, round_))
            self.outstanding += len(payload)
            self._wake.set()

    def forget_before(self, round_: RoundNo) -> None:
        """Drop frames of earlier rounds that have not begun to leave: nobody waits for them any more."""
        kept = deque(parcel for parcel in self._queue if parcel.round_ is None or parcel.round_ >= round_)
        self.outstanding -= sum(len(p.payload) for p in self._queue) - sum(len(p.payload) for p in kept)
        self._queue = kept

    async def first_message(self, stream: _Stream) -> Any:
        """What a neighbour that has dialled says first. A newer stream replaces one that is still silent."""
        if self._silent is not None:
            self._silent.cancel()
        task = self._silent = asyncio.current_task()
        try:
            return await asyncio.wait_for(stream.read(), HELLO_SECONDS)
        finally:
            if self._silent is task:
                self._silent = None

    async def talk(self, stream: _Stream, hub: Hub, greet: Callable[[], Awaitable[None]]) -> bool:
        """Greet, then send and listen until the stream ends. A newer conversation replaces an older one.

        Returns whether it ended without a refusal by this side; the hub is told of one.
        """
        task = asyncio.current_task()
        assert task is not None
        reason = ""
        try:
            await greet()
            if self._conversation is not None:
                self._conversation.cancel()
            self._conversation = task
            self._queue.clear()
            self.outstanding, self.up, self._refused = 0, True, ""
            hub.connected(self.peer, True)
            async with asyncio.TaskGroup() as group:
                sender = group.create_task(self._send_all(stream))
                await self._listen(stream, hub)
                sender.cancel()
        except* Refusal as group:
            reason = str(group.exceptions[0])
            again, self._refused = reason == self._refused, reason  # it will dial again, and again
            level = logging.DEBUG if again else logging.WARNING
            log.log(level, "node %d: %s", self.peer, reason, extra={"peer_id": self.peer})
            hub.failed(self.peer, reason)
            with contextlib.suppress(Exception):
                await asyncio.wait_for(stream.write(bytes([Message.REFUSED]) + reason.encode()), 2)
        finally:
            if self._conversation is task:
                self._conversation, self.up, self.outstanding = None, False, 0
                self._queue.clear()
                hub.connected(self.peer, False)
        return not reason

    async def _send_all(self, stream: _Stream) -> None:
        while True:
            while not self._queue:
                self._wake.clear()
                await self._wake.wait()
            await self._send_one(stream, self._queue.popleft())

    async def _send_one(self, stream: _Stream, parcel: _Parcel) -> None:
        for message in parcel.messages():
            await stream.write(message)
            self.delivered += 1
        self.outstanding -= len(parcel.payload)

    async def _listen(self, stream: _Stream, hub: Hub) -> None:
        begun: Message | None = None
        buffer, filled, inside = memoryview(b""), 0, False
        try:
            while (message := await stream.read()) is not grpc.aio.EOF:
                kind, body = _split(message)
                if kind in _LONG and begun is None:
                    if len(body) < _LENGTH.size:
                        raise Refusal(f"a {kind.name} begins without its length")
                    length, first = _LENGTH.unpack_from(body)[0], body[_LENGTH.size :]
                    most = ROSTER_LIMIT if kind is Message.ROSTER else await hub.largest_frame()
                    if not length <= most:
                        raise Refusal(f"a {kind.name} of {length} bytes; none here has over {most}")
                    if len(first) != min(length, CHUNK):
                        raise Refusal(f"a {kind.name} that does not come in whole chunks")
                    inside = await self._room.enter(length)
                    begun, buffer, filled = kind, _memory(length), len(first)
                    buffer[:filled] = first
                elif kind is Message.MORE and begun and len(body) == min(CHUNK, len(buffer) - filled):
                    buffer[filled : filled + len(body)] = body
                    filled += len(body)
                    self._room.beat()
                elif kind is Message.STATUS:
                    hub.status(self.peer, bytes(body))
                elif kind is Message.HELLO and len(body) <= HELLO_LIMIT:
                    hub.meet(self.peer, bytes(body))
                elif kind is Message.REFUSED:
                    log.warning("node %d: %s", self.peer, _refusal_of(body), extra={"peer_id": self.peer})
                    hub.failed(self.peer, _refusal_of(body))
                    return
                else:
                    raise Refusal(f"a {kind.name} message where none can be")
                if begun is not None and filled == len(buffer):
                    if begun is Message.ROSTER:
                        hub.roster_from(self.peer, bytes(buffer))
                    else:
                        await hub.frame(self.peer, buffer)
                    begun, buffer = None, memoryview(b"")  # a frame can be large: nothing here may keep it
                    if inside:
                        inside = False
                        self._room.leave()
        finally:
            if inside:
                self._room.leave()


def _memory(length: int) -> memoryview:
    """Room for a frame. It ends at a multiple of four, so that words at the end of a share are read in place."""
    buffer: ByteArray = memory.empty(length + -length % 4, np.uint8)
    return buffer[-length % 4 :].data


def _split(message: bytes) -> tuple[Message, memoryview]:
    try:
        return Message(message[0]), memoryview(message)[1:]
    except (IndexError, ValueError):
        raise Refusal("it sends something that is not a message of this protocol") from None


def _refusal_of(body: memoryview) -> str:
    return f"it refuses this peer: {bytes(body[:2000]).decode(errors='replace')}"


class Transport:
    """Listens, dials, and keeps one link to each neighbour.

    Args:
        listen: host:port, or None where no port can be opened.
    """

    def __init__(self, identity: Identity, roster: Roster, listen: str | None, hub: Hub) -> None:
        self._identity, self._hub, self._listen_at = identity, hub, listen
        self._roster = roster
        self._server: grpc.aio.Server | None = None
        self._dialling: dict[NodeId, asyncio.Task[None]] = {}
        self.links: dict[NodeId, Link] = {}
        self._room = Room()
        self._set_links()

    async def start(self) -> None:
        """Open the port and start to dial.

        Raises:
            OSError: the port cannot be opened.
        """
        if self._listen_at is not None:
            pairs = [(self._identity.tls_key, self._identity.certificate)]
            credentials = grpc.ssl_server_credentials(pairs, self._identity.ca, require_client_auth=True)
            options = [
                *OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", 2 * len(self.links) + MOST_CONNECTIONS),
                ("grpc.max_connection_idle_ms", int(2000 * HELLO_SECONDS)),
            ]
            server = grpc.aio.server(options=options, maximum_concurrent_rpcs=2 * len(self.links) + 64)
            server.add_generic_rpc_handlers((Handler(self._answer),))
            try:
                server.add_secure_port(self._listen_at, credentials)
            except RuntimeError:
                raise OSError(f"cannot listen on {self._listen_at}: is another peer running there?") from None
            await server.start()
            self._server = server
        self._dial_all()

    def use(self, roster: Roster) -> None:
        """Talk to the neighbours of a newer roster from now on, and to nobody with an older certificate."""
        changed = {
            peer
            for peer in self.links
            if peer not in roster.graph[self._identity.id]
            or roster.members[peer] != self._roster.members.get(peer)
        }
        self._roster = roster
        for peer in changed:
            self._drop(peer)
        self._set_links()
        if self._server is not None or self._listen_at is None:
            self._dial_all()

    async def drain(self, patience: float) -> None:
        """Wait until what is queued has been handed to the network, for so many seconds at most."""
        deadline = asyncio.get_running_loop().time() + patience
        while any(link.up and link.outstanding for link in self.links.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def close(self, patience: float = 5.0) -> None:
        """Send what is queued, for so many seconds at most, and end."""
        await self.drain(patience)
        tasks = [task for peer in tuple(self.links) for task in self._drop(peer)]
        if self._server is not None:
            await self._server.stop(0.2)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _set_links(self) -> None:
        for peer in self._roster.graph[self._identity.id]:
            self.links.setdefault(NodeId(peer), Link(NodeId(peer), self._room))

    def _drop(self, peer: NodeId) -> list[asyncio.Task[None]]:
        link = self.links.pop(peer)
        tasks = [t for t in (link._conversation, self._dialling.pop(peer, None)) if t is not None]  # noqa: SLF001
        for task in tasks:
            task.cancel()
        return tasks

    def _dial_all(self) -> None:
        for peer in self.links:
            if peer not in self._dialling and self._roster.dials(self._identity.id, peer):
                self._dialling[peer] = asyncio.create_task(self._keep_dialling(peer), name=f"dial {peer}")

    # ── the side that dials ─────────────────────────────────────────────────────────────────────────────

    async def _keep_dialling(self, peer: NodeId) -> None:
        delay, said = BACKOFF[0], ""
        while True:
            link, member = self.links[peer], self._roster.members[peer]
            begin = asyncio.get_running_loop().time()
            why = await self._dial(link, member.address or "", member.host_name, member.certificate)
            if why:
                self._hub.failed(peer, why)
            if why and why != said:
                log.info("node %d at %s: %s", peer, member.address, why, extra={"peer_id": peer})
                said = why
            if asyncio.get_running_loop().time() - begin > 2 * BACKOFF[1]:
                delay, said = BACKOFF[0], ""
            await asyncio.sleep(delay * random.uniform(0.5, 1.5))  # noqa: S311  (no secret: it spreads the load)
            delay = min(2 * delay, BACKOFF[1])

    async def _dial(self, link: Link, address: str, host_name: str, pinned: bytes) -> str:
        """Talk to a neighbour until the connection ends; returns why it did, unless the hub knows already."""
        credentials = grpc.ssl_channel_credentials(pinned, self._identity.tls_key, self._identity.certificate)
        options = [*OPTIONS, ("grpc.ssl_target_name_override", host_name)]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = channel.stream_stream(SERVICE)()

            async def greet() -> None:
                await call.write(bytes([Message.HELLO]) + self._hub.hello())
                self._meet(link.peer, await asyncio.wait_for(call.read(), HELLO_SECONDS))

            why = "no answer in time"
            try:
                why = "the connection ended" if await link.talk(call, self._hub, greet) else ""
            except* Exception as group:  # noqa: BLE001  (the library's errors of a broken link are many)
                log.debug("node %d: the connection broke: %r", link.peer, group.exceptions[0])
            if not why or not call.done():
                call.cancel()
                return why
            return explain(await call.details() or "") or why

    def _meet(self, peer: NodeId, message: object) -> None:
        if not isinstance(message, bytes):
            raise Refusal("it ended the connection before it said who it is")
        kind, body = _split(message)
        if kind is Message.REFUSED:
            raise Refusal(_refusal_of(body))
        if kind is not Message.HELLO or len(body) > HELLO_LIMIT:
            raise Refusal("it does not begin with a hello")
        self._hub.meet(peer, bytes(body))

    # ── the side that listens ───────────────────────────────────────────────────────────────────────────

    async def _answer(self, _: AsyncIterator[bytes], context: Any) -> None:
        try:
            await self._converse(context)
        except asyncio.CancelledError:
            # A newer conversation or roster has replaced this one; the library would leave the stream open.
            with contextlib.suppress(Exception):
                await context.abort(grpc.StatusCode.ABORTED, "this conversation is over")
            raise

    async def _converse(self, context: Any) -> None:
        try:
            peer = self._who_is_there(context)
            first = await self.links[peer].first_message(context)
        except TimeoutError:
            log.warning("%s said nothing for %.0f seconds and was sent away", context.peer(), HELLO_SECONDS)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "say hello first")
        except Refusal as refusal:
            log.warning("refused %s: %s", context.peer(), refusal)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))

        async def greet() -> None:
            await context.write(bytes([Message.HELLO]) + self._hub.hello())
            self._meet(peer, first)

        try:
            await self.links[peer].talk(context, self._hub, greet)
        except* Exception as group:  # noqa: BLE001  (as above)
            log.debug("node %d: the connection broke: %r", peer, group.exceptions[0])

    def _who_is_there(self, context: Any) -> NodeId:
        """The neighbour whose certificate was shown; its hello must say the same id."""
        shown = context.auth_context().get("x509_pem_cert", [b""])[0]
        certificate = read_certificate(shown, "the certificate that was shown")
        mark = fingerprint(certificate)
        names = [m for m in self._roster.members.values() if m.fingerprint == mark]
        subject = certificate.subject.rfc4514_string()
        if not names:
            raise Refusal(
                f"the certificate of {subject} is not in version {self._roster.version} of the roster: "
                "revoked, replaced or never listed"
            )
        if names[0].id not in self.links:
            raise Refusal(f"node {names[0].id} is in the roster, but not a neighbour of this peer")
        return names[0].id


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Routes the one method that there is."""

    def __init__(self, answer: Callable[..., Awaitable[None]]) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler if handler_call_details.method == SERVICE else None
