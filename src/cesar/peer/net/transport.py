"""Links to all neighbours: one gRPC stream over mutual TLS for each. It does not matter who opened the connection.

Who may speak. TLS admits only certificates of the network's authority. A dialler pins the very certificate that the
roster lists; a listener compares the one that it was shown. So a revoked certificate is useless from the moment
that a peer holds the newer roster, and nobody can use a certificate under another id.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import grpc

from cesar.base.errors import ConfigError, Refusal
from cesar.base.types import Buffer, NodeId, RoundNo
from cesar.peer.net.chunks import CHUNK, Message
from cesar.peer.net.door import Door, worth_a_line
from cesar.peer.net.grpc_errors import explain
from cesar.peer.net.link import Hub, Link, Room
from cesar.peer.trust.certificates import fingerprint, read_certificate
from cesar.peer.trust.foreign import MOST, escaped
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.member import Member
from cesar.peer.trust.roster import Roster

log = logging.getLogger("cesar.peer")

SERVICE = "/cesar.Link/Talk"
HELLO_SECONDS = 10.0
MOST_CONNECTIONS = 512
"""Beyond the neighbours': strangers who only connect must not use up the descriptors that a round's files need."""

MOST_STREAMS = 4
"""At once, on one connection: a neighbour needs one, and another while it comes back."""

BACKOFF = (0.2, 5.0)
FAREWELL_SECONDS = 2.0
SENDING_AT_ONCE = 32 << 20
"""The next frame is made when no more than this is waiting to leave, so that few shares are in memory at once."""

STILL_SECONDS, SLOW = 2.0, 2.0
"""Nobody waits for a neighbour that reads nothing for this time, or takes longer than others by this factor."""

OPTIONS = (
    # Masked values do not compress, and a megabyte that unpacks to a gigabyte is a weapon: nothing is packed or unpacked.
    ("grpc.compression_enabled_algorithms_bitset", 1),  # 1 is "as it is"; a sender that packs is refused
    ("grpc.per_message_compression", 0),
    ("grpc.per_message_decompression", 0),
    ("grpc.max_receive_message_length", CHUNK + 64),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.server_handshake_timeout_ms", int(1000 * HELLO_SECONDS)),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 200),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


def _end(link: Link, dialling: asyncio.Task[None] | None) -> list[asyncio.Task[None]]:
    """End a conversation and the attempts at one; what is left to wait for."""
    if dialling is not None:
        dialling.cancel()
    return [task for task in (dialling, link.end()) if task is not None]


class Transport:
    """Listens, dials, and keeps one link to each neighbour.

    Args:
        listen: host:port, or None where no port can be opened.
        proxy: whether to dial through the HTTP proxy that the environment names.
        now: the time of day by which certificates end.
    """

    def __init__(
        self,
        identity: Identity,
        roster: Roster,
        listen: str | None,
        hub: Hub,
        *,
        proxy: bool = False,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._proxy, self._now = int(proxy), now
        self._identity, self._hub, self._listen_at = identity, hub, listen
        self._roster = roster
        self._server: grpc.aio.Server | None = None
        self._dialling: dict[NodeId, asyncio.Task[None]] = {}
        self._parting: list[asyncio.Task[None]] = []
        self._dates: asyncio.Task[None] | None = None
        self.links: dict[NodeId, Link] = {}
        self._room = Room()
        self._door = Door(time.monotonic)
        _link_up(self.links, roster.graph[identity.id], self._room, hub)

    async def start(self) -> None:
        """Open the port and start to dial.

        Raises:
            OSError: the port cannot be opened.
        """
        await self._listen()
        self._dates = asyncio.create_task(self._watch_dates(), name="dates")
        self._dial_all()

    async def renew(self, identity: Identity) -> None:
        """Show another certificate from now on; conversations begin anew with it."""
        log.info("node %d shows its new certificate from now on", identity.id)
        self._identity = identity
        if self._server is not None:
            await self._server.stop(0.2)
            await self._listen()
        for peer in tuple(self._dialling):
            self.cut_off(peer)

    async def _listen(self) -> None:
        if self._listen_at is not None:
            pairs = [(self._identity.tls_key, self._identity.certificate)]
            credentials = grpc.ssl_server_credentials(pairs, self._identity.ca, require_client_auth=True)
            options = [
                *OPTIONS,
                ("grpc.so_reuseport", 0),
                ("grpc.max_allowed_incoming_connections", 2 * len(self.links) + MOST_CONNECTIONS),
                ("grpc.max_connection_idle_ms", int(2000 * HELLO_SECONDS)),
                ("grpc.max_concurrent_streams", MOST_STREAMS),
            ]
            # Streams whose refusal is held back must not take the places of neighbours: connections are what is bounded.
            server = grpc.aio.server(options=options)
            server.add_generic_rpc_handlers((Handler(self._answer),))
            try:
                server.add_secure_port(self._listen_at, credentials)
            except RuntimeError:
                raise OSError(f"cannot listen on {self._listen_at}: is another peer running there?") from None
            await server.start()
            self._server = server

    async def _watch_dates(self) -> None:
        """End links when a neighbour's certificate ends: TLS looks at dates in the handshake only."""
        before = self._now()
        while True:
            now = self._now()
            ends = []
            for peer, link in tuple(self.links.items()):
                member = self._roster.members[peer]
                ends += [end - now for end in (member.expires, member.until) if end is not None]
                if link.up and not member.valid(now):
                    log.warning("node %d: its certificate has ended", peer, extra={"peer_id": peer})
                    self._hub.failed(peer, "its certificate has ended")
                    self.cut_off(peer)
                elif link.up and member.until is not None and before <= member.until < now:
                    self.cut_off(peer)  # it may have shown its former certificate
            before = now
            wait = min((end.total_seconds() for end in ends if end > timedelta()), default=60.0)
            await asyncio.sleep(min(60.0, wait + 0.01))

    def use(self, roster: Roster) -> None:
        """Talk to the neighbours of a newer roster from now on, and to nobody with an older certificate."""
        changed = {
            peer
            for peer in self.links
            if peer not in roster.graph[self._identity.id]
            or not _continues(self._roster.members[peer], roster.members[peer], self._now())
        }
        self._roster = roster
        self._door.forget()
        for peer in changed:
            if peer in roster.members:
                _end(self.links.pop(peer), self._dialling.pop(peer, None))
            else:
                self._part(peer, roster.raw)
        _link_up(self.links, roster.graph[self._identity.id], self._room, self._hub)
        if self._server is not None or self._listen_at is None:
            self._dial_all()

    def tell(self, kind: Message, payload: bytes) -> None:
        """Say something to everybody who is connected."""
        for link in self.links.values():
            link.send(kind, payload)

    def greet(self) -> None:
        """Say to everybody who is connected what this peer is now."""
        for peer, link in self.links.items():
            link.send(Message.HELLO, self._hub.hello(peer))

    async def send(
        self, payload: Buffer, recipients: Iterable[NodeId], round_: RoundNo, deadline: float
    ) -> None:
        """Queue a frame, and wait until there is room for the next one, or until the deadline.

        From then on frames are dropped for which there is no room: they would come too late, and memory is bounded.
        """
        clock = asyncio.get_running_loop().time
        if clock() < deadline or self._room_left(round_):
            for to in recipients:
                if to in self.links:
                    self.links[to].send(Message.FRAME, payload, round_)
        while not self._room_left(round_) and clock() < deadline:  # noqa: ASYNC110  (time decides, too)
            await asyncio.sleep(0.01)

    def _room_left(self, round_: RoundNo) -> bool:
        """Whether another frame of this round can be made.

        A neighbour that does not read, or takes much longer over a large frame than half of the others, does not keep them waiting:
        its own frame is all that it holds up.
        """
        now, links = asyncio.get_running_loop().time(), self.links.values()
        usual = statistics.median([link.took for link in links if link.took] or [math.inf])
        whole = max(STILL_SECONDS, SLOW * usual)
        left = (link.outstanding(round_, now, still=STILL_SECONDS, whole=whole) for link in links)
        return sum(left) <= SENDING_AT_ONCE

    def cut_off(self, peer: NodeId) -> None:
        """End the conversation with a neighbour; the side that dials may begin another."""
        if peer in self.links:
            self.links[peer].end()
        dialling = self._dialling.pop(peer, None)
        if dialling is not None:
            dialling.cancel()  # the conversation was part of it
            self._dial_all(BACKOFF[0])

    def forget_before(self, round_: RoundNo) -> None:
        """Drop frames of earlier rounds that have not begun to leave: nobody waits for them any more."""
        for link in self.links.values():
            link.forget_before(round_)

    def forget_like(self, head: bytes, recipients: Iterable[NodeId]) -> None:
        """Drop frames with this header that have not begun to leave for these: another one takes their place."""
        for to in recipients:
            if to in self.links:
                self.links[to].forget_like(head)

    async def drain(self, patience: float) -> None:
        """Wait until what is queued has been handed to the network, for `patience` seconds at most."""
        deadline = asyncio.get_running_loop().time() + patience
        while any(link.up and link.busy for link in self.links.values()):
            if asyncio.get_running_loop().time() > deadline:
                return
            await asyncio.sleep(0.02)

    async def close(self, patience: float = 5.0) -> None:
        """Send what is queued, for `patience` seconds at most, and end."""
        await self.drain(patience)
        tasks = [
            task
            for peer in tuple(self.links)
            for task in _end(self.links.pop(peer), self._dialling.pop(peer, None))
        ]
        for task in (*self._parting, *([] if self._dates is None else [self._dates])):
            task.cancel()
            tasks.append(task)
        if self._server is not None:
            await self._server.stop(0.2)
        await asyncio.gather(*tasks, return_exceptions=True)

    def bar(self, removed: frozenset[NodeId], roster: bytes) -> None:
        """Have nothing more to do with those whom a roster removes, though this peer does not go by it yet."""
        for peer in removed & self.links.keys():
            log.warning("node %d was removed; its link ends now", peer, extra={"peer_id": peer})
            self._part(peer, roster)

    def _part(self, peer: NodeId, roster: bytes) -> None:
        """Let go of a neighbour that was removed, once it has been told so: an honest one stops then."""
        link, dialling = self.links.pop(peer), self._dialling.pop(peer, None)
        link.send(Message.ROSTER, roster)

        async def end() -> None:
            await asyncio.sleep(FAREWELL_SECONDS)  # it hangs up itself when it has read this
            if dialling is not None:
                dialling.cancel()
            link.end()

        self._parting = [task for task in self._parting if not task.done()]
        self._parting.append(asyncio.create_task(end(), name=f"part {peer}"))

    def _dial_all(self, pause: float = 0.0) -> None:
        for peer in self.links:
            if peer not in self._dialling and self._roster.dials(self._identity.id, peer):
                job = self._keep_dialling(peer, pause)
                self._dialling[peer] = asyncio.create_task(job, name=f"dial {peer}")

    # ── the side that dials ─────────────────────────────────────────────────────────────────────────────

    async def _keep_dialling(self, peer: NodeId, pause: float) -> None:
        delay, said = BACKOFF[0], ""
        await asyncio.sleep(pause)
        while self._dialling.get(peer) is asyncio.current_task():
            link, member = self.links[peer], self._roster.members[peer]
            begin = asyncio.get_running_loop().time()
            pinned = b"".join(member.accepted(self._now()))
            why = await self._dial(link, member.address or "", member.host_name, pinned)
            if why:
                self._hub.failed(peer, why)
            if why and why != said:
                log.info("node %d at %s: %s", peer, member.address, why, extra={"peer_id": peer})
                said = why
            if asyncio.get_running_loop().time() - begin > 2 * BACKOFF[1]:
                delay, said = BACKOFF[0], ""
            pause = delay * random.uniform(0.5, 1.5)  # noqa: S311  (no secret: it spreads the load)
            await asyncio.sleep(max(pause, link.left_out(time.monotonic())))
            delay = min(2 * delay, BACKOFF[1])

    async def _dial(self, link: Link, address: str, host_name: str, pinned: bytes) -> str:
        """Talk to a neighbour until the connection ends; returns why it did, unless the hub knows already."""
        credentials = grpc.ssl_channel_credentials(pinned, self._identity.tls_key, self._identity.certificate)
        options = [
            *OPTIONS,
            ("grpc.ssl_target_name_override", host_name),
            ("grpc.enable_http_proxy", self._proxy),
        ]
        async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
            call = channel.stream_stream(SERVICE)()

            async def greet() -> None:
                await call.write(bytes([Message.HELLO]) + self._hub.hello(link.peer))
                async with asyncio.timeout(HELLO_SECONDS):
                    first = await call.read()
                link.where = address
                link.read_hello(first)

            why = "no answer in time"
            try:
                why = "the connection ended" if await link.talk(call, greet) else ""
            except* Exception as group:  # noqa: BLE001  (the library's errors of a broken link are many)
                log.debug("node %d: the connection broke: %r", link.peer, group.exceptions[0])
            if not why or not call.done():
                call.cancel()
                return why
            return escaped(explain(await call.details() or ""), MOST) or why

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
        shown = context.auth_context().get("x509_pem_cert", [b""])[0]
        try:
            link = self._let_in(shown)
            first = await link.first_message(context, HELLO_SECONDS)
        except TimeoutError:
            log.warning("%s said nothing for %.0f seconds and was sent away", context.peer(), HELLO_SECONDS)
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "say hello first")
        except (Refusal, ConfigError) as refusal:
            count, hold = self._door.refused(shown)
            if worth_a_line(count):
                log.warning("refused %s, %d time(s): %s", context.peer(), count, refusal)
            await asyncio.sleep(hold)
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(refusal))

        async def greet() -> None:
            await context.write(bytes([Message.HELLO]) + self._hub.hello(link.peer))
            link.where = _address(context.peer())
            link.read_hello(first)

        try:
            await link.talk(context, greet)
        except* Exception as group:  # noqa: BLE001  (as above)
            log.debug("node %d: the connection broke: %r", link.peer, group.exceptions[0])

    def _let_in(self, shown: bytes) -> Link:
        """The link to the neighbour whose certificate (PEM) was shown, unless it has to wait."""
        link = self.links[self._who_is_there(shown)]
        if (seconds := link.left_out(time.monotonic())) > 0:
            raise Refusal(
                f"node {link.peer} is left out for {seconds:.0f} more seconds, since it kept no rule"
            )
        if not self._door.begins(shown):
            raise Refusal(f"node {link.peer} begins too many conversations")
        return link

    def _who_is_there(self, shown: bytes) -> NodeId:
        """The neighbour whose certificate (PEM) was shown; its hello must say the same id."""
        certificate = read_certificate(shown, "the certificate that was shown")
        mark = fingerprint(certificate)
        now = self._now()
        names = [m for m in self._roster.members.values() if m.accepts(mark, now)]
        subject = escaped(certificate.subject.rfc4514_string(), MOST)
        if not names:
            raise Refusal(
                f"the certificate of {subject} is not in version {self._roster.version} of the roster: "
                "revoked, replaced or never listed"
            )
        if not names[0].valid(now):
            raise Refusal(f"the certificate of node {names[0].id} is not valid now; its site must renew it")
        if names[0].id not in self.links:
            raise Refusal(f"node {names[0].id} is in the roster, but not a neighbour of this peer")
        return names[0].id


def _address(peer: str) -> str:
    """Where a caller is, as the library says it ("ipv4:10.0.0.7:40212"), without the port, which is another each time."""
    return escaped(peer.rpartition(":")[0], MOST)


def _link_up(links: dict[NodeId, Link], neighbours: Iterable[NodeId], room: Room, hub: Hub) -> None:
    """A link for each neighbour that has none yet."""
    for peer in map(NodeId, neighbours):
        links.setdefault(peer, Link(peer, room, hub))


def _continues(old: Member, new: Member, now: datetime) -> bool:
    """Whether a conversation can go on under a newer roster: the same place, and a certificate that still counts."""
    return old.address == new.address and new.accepts(old.fingerprint, now)


class Handler(grpc.GenericRpcHandler):  # type: ignore[misc]
    """Routes the one method that there is."""

    def __init__(self, answer: Callable[..., Awaitable[None]]) -> None:
        self._handler = grpc.stream_stream_rpc_method_handler(answer)

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._handler if handler_call_details.method == SERVICE else None
