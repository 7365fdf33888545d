"""AsyncPeer: drives a node over real links. Rounds, deadlines, dropouts, rejoining, and what is durable.

*Which round.* Peers average at their own pace; a round has a number, and frames name it. Each peer tells its
neighbours where it stands (`Status`) whenever that changes, in order with its frames. A peer begins the latest round
that a neighbour can still be joined in, so one that was away comes back where the others are.

*Who is awaited.* A round waits for a neighbour until the deadline, except when that neighbour will surely not send: its
link is down, it has gone on to a later round, or it kept us waiting in vain last time and has not been heard since.
So a dead peer costs nothing, and a hanging one costs one deadline. If all that are connected kept us waiting, it is
this peer that is out of step: it waits for them again instead of running ahead alone.

*Threads.* Links live on the event loop. Everything that touches the engine runs on one thread of its own, one call
at a time; a link reads on when its frame has been taken in, so a neighbour cannot flood this peer.
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import logging
import os
import struct
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np

from cesar import files, memory
from cesar.crypto.keys import VERSION, PairSecret
from cesar.errors import ConfigError, DataError, EncodingError, Reason, RemoteProtocolError
from cesar.indices import codecs
from cesar.methods import Cesar, SecureAggregation
from cesar.node import Node
from cesar.peer import roster as rosters
from cesar.peer.config import FILE, PeerConfig, Purpose, differences, session_of
from cesar.peer.identity import Identity
from cesar.peer.pace import Pace
from cesar.peer.roster import Roster
from cesar.peer.state import FILE as STATE_FILE
from cesar.peer.state import StateFile, lock
from cesar.peer.transcript import Transcript
from cesar.peer.transport import Message, Refusal, Transport
from cesar.protocol import AggregateReady, FrameRejected, Outbound
from cesar.sparsify import TopK
from cesar.topology import Neighbourhood
from cesar.types import Buffer, Entropy, NodeId, RoundNo, Vector
from cesar.wire import CATEGORIES, Frame, read_header

log = logging.getLogger("cesar.peer")
_T = TypeVar("_T")
RELEASE = version("cesar")

SENDING_AT_ONCE = 32 << 20
"""The next frame is made when less than this is waiting to leave, so that few shares are in memory at once."""

MOST_REFUSALS = 200
"""A neighbour that sent so many bad frames in one conversation is sent away."""

LINGER_SECONDS = 30.0
"""A peer that ends waits so long at most for neighbours that are still in its last round."""

CHECK_SECONDS = (1.0, 4.0)
"""A round of a check may take so long, at least and at most: nobody trains meanwhile."""

HARMLESS = (Reason.TOO_EARLY, Reason.STALE_ATTEMPT, Reason.DUPLICATE, Reason.SESSION)
"""Refusals that an honest neighbour can cause when it restarts, runs ahead or changes its roster."""


@dataclass(frozen=True, slots=True)
class Status:
    """Where a peer stands.

    Attributes:
        current: the round that it is in or begins next: frames of earlier ones never come again.
        joinable: the first round that one can still join with it.
    """

    current: int = 0
    joinable: int = 0

    _LAYOUT = struct.Struct("<II")

    def to_bytes(self) -> bytes:
        return self._LAYOUT.pack(self.current, self.joinable)

    @classmethod
    def from_bytes(cls, body: bytes) -> Status:
        try:
            current, joinable = cls._LAYOUT.unpack(body)
        except struct.error:
            raise Refusal("a status of the wrong length") from None
        if not current <= joinable <= current + 1 or joinable >= 1 << 31:
            raise Refusal("a status that cannot be")
        return cls(current, joinable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one call of `average` has brought.

    Attributes:
        contributors: the neighbours whose shares are in the new model.
        missing: the other neighbours.
        shared: the mean fraction of its parameters that this peer sent to a neighbour.
        lost: parameters that kept their own value because a mask on them did not cancel.
        bytes: what this peer sent, by category.
        seconds: how long it took.
    """

    round: int
    contributors: tuple[int, ...]
    missing: tuple[int, ...]
    shared: float
    lost: int
    bytes: dict[str, int]
    seconds: float

    @property
    def total_bytes(self) -> int:
        return sum(self.bytes.values())


@dataclass(slots=True)
class Neighbour:
    """What is known of one neighbour at this moment.

    Attributes:
        size: of its model, once it has one.
        purpose: what it is there for; only peers with the same purpose average with one another.
        clock: by how many seconds its clock is ahead of this one's.
        satisfied: it has checked all that it wanted to check.
        suspected: it kept this peer waiting, and nobody waits for it until it is heard again.
    """

    status: Status = field(default_factory=Status)
    size: int | None = None
    purpose: str = ""
    roster: int = 0
    release: str = ""
    clock: float = 0.0
    satisfied: bool = False
    suspected: bool = False
    refusals: int = 0
    last_error: str = ""


class AsyncPeer:
    """One participant, for code that runs in an event loop; `Peer` is the same for everybody else.

    Args:
        entropy: attempt counter → fresh randomness; only tests replace it.
        session: only tests replace it.
    """

    def __init__(
        self,
        config: PeerConfig,
        identity: Identity,
        roster: Roster,
        *,
        purpose: Purpose = "train",
        state: StateFile | None = None,
        entropy: Callable[[int], Entropy] | None = None,
        session: bytes | None = None,
    ) -> None:
        self.config, self.identity, self.roster = config, identity, roster
        self.id, self._purpose, self._fixed_session = identity.id, purpose, session
        if config.tables.peer.id != identity.id:
            raise ConfigError(
                f"{config.folder}: peer.toml says node {config.tables.peer.id}, but the certificate is that of node "
                f"{identity.id}"
            )
        self._method = self._method_on(roster)
        self._hood = self._check_membership(roster)
        self._state = state or StateFile(config.folder / STATE_FILE)
        self._entropy = entropy or partial(fresh_entropy, self.id)
        rounds = config.tables.rounds
        self._pace = Pace(rounds.floor, rounds.ceiling) if purpose == "train" else Pace(*CHECK_SECONDS)
        self._lock: int | None = None
        self.satisfied = False
        self._size: int | None = None
        self._node: Node | None = None
        self._node_made = asyncio.Event()
        self._status = Status(self._state.state.next_round, self._state.state.next_round)
        self._running: RoundNo | None = None
        self._newer: Roster | None = None
        self.reference: Vector | None = None  # the model after the last round: TopK ranks what changed since
        self._changed = asyncio.Event()
        self._turn = asyncio.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"cesar engine {self.id}")
        self.neighbours: dict[NodeId, Neighbour] = {peer: Neighbour() for peer in self._hood.view}
        self.transport = Transport(identity, roster, config.tables.peer.listen, self)
        self._ended = 0.0
        self._heard = 0.0
        self._late = False
        transcript = config.tables.peer.transcript
        self._transcript = None if transcript is None else Transcript(config.folder / transcript)
        self.last_report: Report | None = None
        self.rounds_done, self.dropouts = 0, 0
        self.bytes_sent = dict.fromkeys(CATEGORIES, 0)
        self.figures: dict[str, float] = {}
        """What the training code wants to show on the status page."""

    @classmethod
    def load(cls, path: str | Path, *, purpose: Purpose = "train") -> Self:
        """Read and check everything that peer.toml refers to; nothing is opened yet.

        Raises:
            ConfigError: says which file is wrong and what to do.
        """
        config = PeerConfig.load(path)
        identity = Identity.load(config.folder)
        state = StateFile(config.folder / STATE_FILE)
        roster = Roster.load(config.folder / rosters.FILE, identity.ca, at_least=state.state.roster)
        return cls(config, identity, roster, purpose=purpose, state=state)

    @classmethod
    async def join(cls, path: str | Path, *, wait: float | None = None) -> Self:
        """Load, open the port, and wait for the neighbours: `wait` seconds at most, else until the ceiling."""
        peer = cls.load(path)
        await peer.start()
        await peer.wait_for_neighbours(peer.config.tables.rounds.ceiling if wait is None else wait)
        return peer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the port and dial the neighbours.

        Raises:
            ConfigError: another process runs this peer, or has its port.
        """
        self._lock = lock(self.config.folder)
        self._state.change(roster=max(self.roster.version, self._state.state.roster))
        self._ended = self._now()
        try:
            await self.transport.start()
        except OSError as error:
            self._unlock()
            raise ConfigError(f"{error}; peer.listen in {self.config.folder / FILE} names the port") from None
        where = self.config.tables.peer.listen
        log.info("node %d %s", self.id, f"listens at {where}" if where else "only dials")

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def wait_for_neighbours(self, seconds: float) -> None:
        """Until all are connected, or the time is over."""
        deadline = self._now() + seconds
        while missing := [peer for peer, link in self.transport.links.items() if not link.up]:
            if not await self._wait(deadline):
                names = ", ".join(map(str, sorted(missing)))
                log.warning("node %d goes on without neighbour(s) %s", self.id, names)
                return

    async def close(self) -> None:
        """Send what is still to be sent, close the port and forget all secrets of the round."""
        await self._linger()
        await self.transport.close()
        if self._node is not None:
            await self._on_engine(self._node.close)
        self._thread.shutdown()
        memory.clear()
        if self._transcript is not None:
            self._transcript.close()
        self._unlock()

    async def _linger(self) -> None:
        """Until the neighbours have ended the round that this peer has just ended: its shares may still be on their
        way, and would be lost with the connection.
        """
        deadline, last = self._now() + min(self.patience, LINGER_SECONDS), self._status.current - 1
        while self._running is None and self.rounds_done and self._still_in(last):
            if not await self._wait(deadline):
                return

    def _still_in(self, round_: int) -> bool:
        """Whether somebody who is awaited at all has this round to end."""
        known = [self.neighbours[peer] for peer in self._up() if self._takes_part(peer)]
        return any(other.status.current == round_ and not other.suspected for other in known)

    @property
    def next_round(self) -> int:
        """The number of the round that comes next, as far as this peer knows."""
        return max([self._status.joinable, *self._joinable()])

    def _joinable(self) -> list[int]:
        """The rounds in which the neighbours can still be joined."""
        return [self.neighbours[peer].status.joinable for peer in self._up() if self._takes_part(peer)]

    @property
    def patience(self) -> float:
        """The longest that the next round can take, in seconds."""
        return self._pace.limit

    # ── one round ───────────────────────────────────────────────────────────────────────────────────────

    async def average_vector(self, vector: Vector) -> Report:
        """Average a model with the neighbours', in place.

        Raises:
            DataError: NaN, infinity or another size than before; nothing was sent.
        """
        async with self._turn:
            begin = self._now()
            node = await self._prepare(vector)
            round_ = RoundNo(max([self._state.state.next_round, *self._joinable()]))
            attempt = self._state.state.attempts
            self._state.change(attempts=attempt + 1, next_round=round_ + 1)
            out: Vector = memory.empty(len(vector), np.float32)
            await self._on_engine(
                partial(
                    node.begin_round,
                    round_,
                    self._hood,
                    vector,
                    reference=self.reference,
                    out=out,
                    entropy=self._entropy(attempt),
                    deadlines=self._pace.deadlines(begin),
                )
            )
            self._running, self._heard, self._late = round_, begin, False
            for link in self.transport.links.values():
                link.forget_before(round_)
            outcome = await self._run(node, round_)
            vector[:] = out
            if self._ranks_by_change():
                self.reference = out
            return self._conclude(node, outcome, begin)

    async def _run(self, node: Node, round_: RoundNo) -> AggregateReady:
        """Send, receive and wait until the round has ended and all its frames are on their way."""
        outcome: AggregateReady | None = None
        while True:
            self._changed.clear()
            gone = self._gone(round_)
            out, events, deadline, joinable = await self._on_engine(partial(self._step, node, gone))
            self._say(Status(round_, round_ if joinable else round_ + 1))
            for event in events:
                if isinstance(event, FrameRejected):
                    self._refused(event.error)
                else:
                    outcome = event
            if out is not None:
                await self._send(out, round_)
                del out  # a share is large; it lives on in the links alone
            elif outcome is not None:
                await self._on_engine(node.close)  # its secrets and its memory are not needed any more
                self._running = None
                self._say(Status(round_ + 1, round_ + 1))
                return outcome
            elif deadline is not None and not await self._wait(deadline):
                self._suspect(await self._on_engine(lambda: node.awaiting))

    def _step(
        self, node: Node, gone: frozenset[NodeId]
    ) -> tuple[Outbound | None, list[AggregateReady | FrameRejected], float | None, bool]:
        """On the engine's thread: end what need not or can not be waited for, and make the next frame."""
        while (deadline := node.next_deadline()) is not None and (
            node.awaiting <= gone or self._now() >= deadline
        ):
            node.tick(deadline)
        out = next(node.outbound(self._leaves), None)
        events = []
        while (event := node.next_event()) is not None:
            events.append(event)
        return out, events, node.next_deadline(), node.joinable

    def _leaves(self, to: NodeId, frame: Frame) -> bool:
        link = self.transport.links.get(to)
        return link is not None and link.up and self._takes_part(to)

    def _takes_part(self, peer: NodeId) -> bool:
        """Whether a neighbour is there for the same thing: one that is being checked does not train."""
        known = self.neighbours.get(peer)
        return known is not None and known.purpose == self._purpose

    async def _send(self, out: Outbound, round_: RoundNo) -> None:
        links = self.transport.links
        for to in out.recipients:
            if to in links:
                links[to].send(Message.FRAME, out.frame.payload, round_)
                if self._transcript is not None:
                    self._transcript.sent(to, out.frame.payload)
        moved, seen = self._now(), -1
        while sum(link.outstanding for link in links.values()) > SENDING_AT_ONCE:
            delivered = sum(link.delivered for link in links.values())
            if delivered != seen:
                moved, seen = self._now(), delivered
            elif self._now() > moved + max(1.0, self.patience / 20):
                return  # whoever does not read must not keep the others waiting
            await asyncio.sleep(0.01)

    def _gone(self, round_: RoundNo) -> frozenset[NodeId]:
        """Neighbours that will surely send nothing of use in this round, or are not worth waiting for."""
        here = {
            peer
            for peer in self._up() & self.neighbours.keys()
            if self._takes_part(peer)
            and self.neighbours[peer].roster == self.roster.version
            and self.neighbours[peer].status.current <= round_
        }
        awaited = {peer for peer in here if not self.neighbours[peer].suspected} or here
        return frozenset(self.neighbours.keys() - awaited)

    def _suspect(self, late: frozenset[NodeId]) -> None:
        for peer in late & self._up():
            self._late = True
            if not self.neighbours[peer].suspected:
                log.warning("node %d keeps this peer waiting; it goes on without it", peer)
                self.neighbours[peer].suspected = True

    def _conclude(self, node: Node, outcome: AggregateReady, begin: float) -> Report:
        now, ledger = self._now(), node.ledger
        if self._late:
            self._pace.measured(now - self._ended)
        elif outcome.contributors:  # else there was nobody to measure
            self._pace.measured(max(self._heard, begin) - self._ended)
        self._ended = now
        shares = max(1, ledger.shares) * max(1, self._size or 1)
        report = Report(
            round=outcome.round_,
            contributors=outcome.contributors,
            missing=tuple(sorted(set(self._hood.view) - set(outcome.contributors))),
            shared=ledger.parameters / shares,
            lost=outcome.lost,
            bytes=dict(ledger.sent),
            seconds=now - begin,
        )
        self.last_report = report
        self.rounds_done += 1
        self.dropouts += len(report.missing)
        for category, count in report.bytes.items():
            self.bytes_sent[category] += count
        log.info(
            "round %d: %d of %d neighbours, %d bytes, %.2f s",
            report.round,
            len(report.contributors),
            len(self._hood.view),
            report.total_bytes,
            report.seconds,
            extra={"peer_id": self.id, "report": dataclasses.asdict(report)},
        )
        return report

    async def _prepare(self, vector: Vector) -> Node:
        """The node that averages vectors of this size under the newest roster."""
        if vector.dtype != np.float32 or vector.ndim != 1 or not vector.flags.c_contiguous:
            raise DataError(
                "a model is one contiguous float32 vector; use numpy.ascontiguousarray(v, numpy.float32)"
            )
        if self._size is not None and len(vector) != self._size:
            raise DataError(f"the model has {len(vector)} parameters, but had {self._size} in earlier rounds")
        self._look_for_roster()
        if self._newer is not None:
            self._adopt(self._newer)
        if self._node is None:
            self._size = len(vector)
            session = self._fixed_session or session_of(
                self.roster, self.config.settings(), self._size, self._purpose
            )
            self._node = Node(
                self.id,
                self._method,
                self._size,
                session=session,
                secrets=_PairSecrets(self.identity, self.roster, session),
                first_round=self._state.state.next_round,
            )
            for peer in self._up():
                self.transport.links[peer].send(Message.HELLO, self.hello())
            self._node_made.set()
        return self._node

    def _ranks_by_change(self) -> bool:
        return isinstance(getattr(self._method, "sparsifier", None), TopK)

    # ── what the links say (transport.Hub) ──────────────────────────────────────────────────────────────

    async def largest_frame(self) -> int:
        """As the engine has it; waits for the first model, which tells its size."""
        await self._node_made.wait()
        assert self._size is not None
        most = max(len(view) for view in self._hood.views.values())
        longest = codecs.longest(self._size)
        return max(4 * self._size + longest + 65536, most * (longest + 64))

    def hello(self) -> bytes:
        """Who this is and what must be the same at both ends."""
        words = {
            "protocol": VERSION,
            "cesar": RELEASE,
            "node": self.id,
            "network": self.roster.network_id.hex(),
            "roster": self.roster.version,
            "purpose": self._purpose,
            "settings": self.config.settings(),
            "satisfied": self.satisfied,
            "size": self._size,
            "status": [self._status.current, self._status.joinable],
            "time": datetime.now(UTC).timestamp(),
        }
        return json.dumps(words).encode()

    def meet(self, peer: NodeId, hello: bytes) -> None:
        """Compare what must be the same at both ends."""
        words = _read_hello(hello)
        if words["node"] != peer:
            raise Refusal(
                f"its certificate is that of node {peer}, but it says that it is node {words['node']}"
            )
        if words["protocol"] != VERSION:
            raise Refusal(
                f"it speaks protocol version {words['protocol']} (cesar {words['cesar']}), and this peer speaks "
                f"{VERSION} (cesar {RELEASE}); install the same release at both"
            )
        if words["network"] != self.roster.network_id.hex():
            raise Refusal("it belongs to another network")
        known = self.neighbours[peer]
        known.status, known.size, known.purpose = words["status"], words["size"], words["purpose"]
        known.roster = words["roster"]
        known.clock, known.release = words["time"] - time.time(), words["cesar"]
        known.satisfied, known.last_error = words["satisfied"], ""
        if unlike := differences(self.config.settings(), words["settings"]):
            raise Refusal(
                f"its settings differ: {'; '.join(unlike)}. Make [method] and buffers in peer.toml equal"
            )
        if self._takes_part(peer) and None not in (known.size, self._size) and known.size != self._size:
            raise Refusal(
                f"its model has {known.size} parameters, and this peer's has {self._size}; both must train the "
                "same model"
            )
        self._changed.set()

    async def frame(self, peer: NodeId, payload: Buffer) -> None:
        """Take in a frame; the link reads on when this returns."""
        await self._node_made.wait()
        node = self._node
        if node is None:
            return
        if self._transcript is not None:
            self._transcript.received(peer, payload)
        late = self._lateness(payload)
        if late is not None:
            log.info("a frame of round %d from node %d was ignored: that round is over", late, peer)
            return
        self._heard = self._now()
        try:
            await self._on_engine(partial(node.receive, peer, payload))
        except RemoteProtocolError as error:
            self._refused(error)
        else:
            self.neighbours[peer].suspected = False
        self._changed.set()

    def _lateness(self, payload: Buffer) -> int | None:
        """The round of a frame that comes too late."""
        try:
            header, _ = read_header(payload)
        except EncodingError:
            return None
        return header.attempt.round_ if header.attempt.round_ < self._status.current else None

    def _refused(self, error: RemoteProtocolError) -> None:
        known = self.neighbours.get(error.peer)
        log.warning("%s", error, extra={"peer_id": error.peer, "reason": error.reason.value})
        if known is None:
            return
        known.last_error = str(error)
        if error.reason not in HARMLESS:
            known.refusals += 1
            if known.refusals > MOST_REFUSALS:
                raise Refusal(f"it sent {known.refusals} frames that had to be refused; the last: {error}")

    def status(self, peer: NodeId, body: bytes) -> None:
        """A neighbour says where it stands."""
        known = self.neighbours[peer]
        known.status = Status.from_bytes(body)
        if known.status.current >= self._status.current:
            known.suspected = False
        self._changed.set()

    def connected(self, peer: NodeId, up: bool) -> None:
        """A link has come up, or gone."""
        log.info("node %d is %s", peer, "connected" if up else "gone", extra={"peer_id": peer})
        if up:
            self.neighbours[peer].refusals, self.neighbours[peer].suspected = 0, False
            link = self.transport.links[peer]
            link.send(Message.STATUS, self._status.to_bytes())
            if self.neighbours[peer].roster < self.roster.version:
                log.info("node %d has an older roster; it is sent version %d", peer, self.roster.version)
                link.send(Message.ROSTER, self.roster.raw)
        self._changed.set()

    def failed(self, peer: NodeId, why: str) -> None:
        """A link could not be made, or was ended for this reason."""
        if peer in self.neighbours:
            self.neighbours[peer].last_error = why
        self._changed.set()

    def satisfy(self) -> None:
        """Tell the neighbours that this peer has seen what it wanted to see."""
        self.satisfied = True
        for peer in self._up():
            self.transport.links[peer].send(Message.HELLO, self.hello())

    # ── rosters ─────────────────────────────────────────────────────────────────────────────────────────

    def _check_membership(self, roster: Roster) -> Neighbourhood:
        hood = roster.hood(self.id)
        if roster.members[self.id].certificate != self.identity.certificate:
            raise ConfigError(
                f"version {roster.version} of the roster lists another certificate for node {self.id}; fetch the "
                "certificate that was signed last, or the newest roster"
            )
        return hood

    def _method_on(self, roster: Roster) -> Cesar | SecureAggregation:
        """The method; a check shares everything, so that anybody can say what the average must be."""
        method = self.config.method(roster)
        return method if self._purpose == "train" else SecureAggregation()

    def _look_for_roster(self) -> None:
        """Whoever runs the site may have put a newer roster into the folder."""
        try:
            data = (self.config.folder / rosters.FILE).read_bytes()
        except OSError:
            return
        if data != self.roster.raw:
            try:
                self._take_roster(data, "the folder")
            except Refusal as refusal:
                log.warning("the folder: %s", refusal)

    def roster_from(self, peer: NodeId, data: bytes) -> None:
        """A neighbour sends its roster."""
        self._take_roster(data, f"node {peer}")

    def _take_roster(self, data: bytes, source: str) -> None:
        seen = max(self.roster.version, 0 if self._newer is None else self._newer.version)
        try:
            newer = Roster.parse(data, self.identity.ca, at_least=0)
        except ConfigError as error:
            raise Refusal(f"it sent a roster that cannot be used: {error}") from None
        if newer.network_id != self.roster.network_id:
            raise Refusal("it sent the roster of another network of the same authority")
        if newer.version <= seen:
            return
        try:
            self._check_membership(newer)
        except ConfigError as error:
            log.warning("version %d of the roster: %s", newer.version, error)
            return
        log.info("version %d of the roster came from %s", newer.version, source)
        self._newer = newer

    def _adopt(self, roster: Roster) -> None:
        """Use a newer roster from the next round on."""
        self._state.change(roster=roster.version)
        files.write(self.config.folder / rosters.FILE, roster.raw)
        self._method = self._method_on(roster)
        self._hood = self._check_membership(roster)
        self.roster, self._newer, self._node = roster, None, None
        self._node_made.clear()
        self.neighbours = {peer: self.neighbours.get(peer, Neighbour()) for peer in self._hood.view}
        self.transport.use(roster)
        for peer in self._up():
            self.transport.links[peer].send(Message.ROSTER, roster.raw)

    # ── small things ────────────────────────────────────────────────────────────────────────────────────

    def _say(self, status: Status) -> None:
        """Tell the neighbours where this peer stands, if that has changed."""
        if status != self._status:
            self._status = status
            for link in self.transport.links.values():
                link.send(Message.STATUS, status.to_bytes())

    def _up(self) -> set[NodeId]:
        return {peer for peer, link in self.transport.links.items() if link.up}

    async def _wait(self, deadline: float) -> bool:
        """Until something changes (True) or the time is over (False)."""
        try:
            await asyncio.wait_for(self._changed.wait(), max(0.0, deadline - self._now()))
        except TimeoutError:
            return False
        self._changed.clear()
        return True

    async def _on_engine(self, job: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, job)

    @staticmethod
    def _now() -> float:
        return time.monotonic()


class _PairSecrets:
    """The secrets that this peer shares with others, computed when first needed; the roster says with whom."""

    def __init__(self, identity: Identity, roster: Roster, session: bytes) -> None:
        self._identity, self._roster, self._session = identity, roster, session
        self._known: dict[NodeId, PairSecret] = {}

    def __call__(self, peer: NodeId) -> PairSecret:
        if peer not in self._known:
            key = self._roster.members[peer].agreement_key
            self._known[peer] = self._identity.keys.agree(key, self._session)
        return self._known[peer]


def fresh_entropy(node: NodeId, attempt: int) -> Entropy:
    """Randomness of the system, bound to a counter that never goes back: two attempts never share a byte stream."""
    key = hashlib.sha512(b"cesar attempt" + struct.pack("<IQ", node, attempt) + os.urandom(64)).digest()
    stream = hashlib.shake_256(key)
    drawn = 0

    def draw(count: int) -> bytes:
        nonlocal drawn
        drawn += count
        return stream.digest(drawn)[-count:] if count else b""

    return draw


def _read_hello(data: bytes) -> dict[str, Any]:
    try:
        words = json.loads(data)
        current, joinable = words["status"]
        words["satisfied"] = words.get("satisfied") is True
        words["status"] = Status.from_bytes(struct.pack("<II", current, joinable))
        fits = (
            all(isinstance(words[key], int) for key in ("protocol", "node", "roster"))
            and all(isinstance(words[key], str) for key in ("cesar", "network", "purpose"))
            and isinstance(words["settings"], dict)
            and (words["size"] is None or isinstance(words["size"], int))
            and isinstance(words["time"], float)
        )
    except (ValueError, KeyError, TypeError, struct.error, RecursionError):
        fits = False
    if not fits:
        raise Refusal("its hello cannot be read; install the same release at both peers")
    return dict(words)
