"""AsyncPeer: drives a node over real links, round by round.

Peers average at their own pace; a round has a number, and frames name it. Each peer tells its neighbours where it
stands (`messages.Status`) whenever that changes, in order with its frames. A peer begins the latest round that a
neighbour can still be joined in, so one that was away comes back where the others are.

What happens on the way to a new model, and who decides:

    membership   which roster holds                       reception    what neighbours say
    liveness     who is there, and whom to wait for       transport    links, dialling, listening
    pace         how long to wait                         engine       the node, on a thread of its own
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from cesar import memory
from cesar.errors import ConfigError, DataError
from cesar.node import Node
from cesar.peer import roster as rosters
from cesar.peer import state as states
from cesar.peer.chunks import Message
from cesar.peer.config import FILE, PeerConfig, Purpose, session_of
from cesar.peer.engine import EngineThread, advance
from cesar.peer.identity import Identity
from cesar.peer.liveness import Liveness, Neighbour
from cesar.peer.membership import Membership
from cesar.peer.messages import Hello, Status
from cesar.peer.pace import Pace
from cesar.peer.reception import Reception
from cesar.peer.report import Report, Totals
from cesar.peer.roster import Roster
from cesar.peer.state import StateFile
from cesar.peer.transcript import Transcript
from cesar.peer.transport import Transport
from cesar.protocol import AggregateReady, FrameRejected
from cesar.sparsify import TopK
from cesar.types import Entropy, NodeId, RoundNo, Vector

log = logging.getLogger("cesar.peer")

LINGER_SECONDS = 30.0
"""A peer that ends waits so long at most for neighbours that are still in its last round."""

CHECK_SECONDS = (1.0, 4.0)
"""A round of a check may take so long, at least and at most: nobody trains meanwhile."""


class AsyncPeer:
    """One participant, for code that runs in an event loop; `Peer` is the same for everybody else.

    Args:
        entropy: attempt counter → fresh randomness; only tests replace it.
        session: only tests replace it.

    Attributes:
        reference: the model after the last round; top-k ranks what changed since.
        satisfied: this peer has checked all that it wanted to check.
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
        if config.tables.peer.id != identity.id:
            raise ConfigError(
                f"{config.folder}: peer.toml says node {config.tables.peer.id}, but the certificate is that of node "
                f"{identity.id}"
            )
        self.config, self.id, self._purpose, self._fixed_session = config, identity.id, purpose, session
        self._settings = config.settings()
        self._method = config.method(roster, purpose)
        self._state = state or StateFile(config.folder / states.FILE)
        self._entropy = entropy or partial(states.fresh_entropy, self.id)
        self.membership = Membership(
            identity, roster, config.folder, self._state, partial(config.method, purpose=purpose)
        )
        first = self._state.state.next_round
        self.liveness = Liveness(purpose, Status(first, first), self.membership.hood.view, roster.version)
        rounds = config.tables.rounds
        self._pace = Pace(rounds.floor, rounds.ceiling) if purpose == "train" else Pace(*CHECK_SECONDS)
        self._engine = EngineThread(f"cesar engine {self.id}")
        transcript = config.tables.peer.transcript
        self._transcript = None if transcript is None else Transcript(config.folder / transcript)
        self.reception = Reception(
            self._greeting, self.liveness, self.membership, self._engine, self._pace, self._transcript
        )
        self.transport = Transport(identity, roster, config.tables.peer.listen, self.reception)
        self._turn = asyncio.Lock()
        self._locked = contextlib.ExitStack()
        self._size: int | None = None
        self._ended: RoundNo | None = None  # the round that ended last; None while one runs
        self.reference: Vector | None = None
        self.satisfied = False
        self.totals = Totals()

    @classmethod
    def load(cls, path: str | Path, *, purpose: Purpose = "train") -> Self:
        """Read and check everything that peer.toml refers to; nothing is opened yet.

        Raises:
            ConfigError: says which file is wrong and what to do.
        """
        config = PeerConfig.load(path)
        identity = Identity.load(config.folder)
        state = StateFile(config.folder / states.FILE)
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

    @property
    def roster(self) -> Roster:
        """The roster that holds now."""
        return self.membership.roster

    @property
    def neighbours(self) -> dict[NodeId, Neighbour]:
        """What is known of each neighbour."""
        return self.liveness.neighbours

    @property
    def next_round(self) -> int:
        """The number of the round that comes next, as far as this peer knows."""
        return self.liveness.next_round(self.liveness.mine.joinable)

    @property
    def patience(self) -> float:
        """The longest that the next round can take, in seconds."""
        return self._pace.limit

    async def start(self) -> None:
        """Open the port and dial the neighbours.

        Raises:
            ConfigError: another process runs this peer, or has its port.
        """
        self._locked.callback(os.close, states.lock(self.config.folder))
        self.membership.remember()
        self._pace.start(time.monotonic())
        try:
            await self.transport.start()
        except OSError as error:
            self._locked.close()
            raise ConfigError(f"{error}; peer.listen in {self.config.folder / FILE} names the port") from None
        where = self.config.tables.peer.listen
        log.info("node %d %s", self.id, f"listens at {where}" if where else "only dials")

    async def wait_for_neighbours(self, seconds: float) -> None:
        """Until all are connected, or the time is over."""
        deadline = time.monotonic() + seconds
        while missing := self.neighbours.keys() - self.liveness.up:
            if not await self.reception.change(deadline):
                names = ", ".join(map(str, sorted(missing)))
                log.warning("node %d goes on without neighbour(s) %s", self.id, names)
                return

    async def close(self) -> None:
        """Send what is still to be sent, close the port and forget all secrets of the round."""
        await self._linger()
        await self.transport.close()
        await self._engine.close()
        memory.clear()
        if self._transcript is not None:
            self._transcript.close()
        self._locked.close()

    async def _linger(self) -> None:
        """Until the neighbours have ended the round that this peer has just ended: its shares may still be on their
        way, and would be lost with the connection.
        """
        deadline = time.monotonic() + min(self.patience, LINGER_SECONDS)
        while self._ended is not None and self.liveness.still_in(self._ended):
            if not await self.reception.change(deadline):
                return

    def satisfy(self) -> None:
        """Tell the neighbours that this peer has seen what it wanted to see."""
        self.satisfied = True
        self.transport.tell(Message.HELLO, self._greeting().to_bytes())

    def _greeting(self) -> Hello:
        """Who this is and what must be the same at both ends."""
        return Hello(
            node=self.id,
            network=self.roster.network_id.hex(),
            roster=self.roster.version,
            purpose=self._purpose,
            settings=self._settings,
            size=self._size,
            status=self.liveness.mine,
            time=time.time(),
            satisfied=self.satisfied,
        )

    # ── one round ───────────────────────────────────────────────────────────────────────────────────────

    async def average_vector(self, vector: Vector) -> Report:
        """Average a model with the neighbours', in place.

        Raises:
            DataError: NaN, infinity or another size than before; nothing was sent.
        """
        async with self._turn:
            begin = time.monotonic()
            _check(vector, self._size)
            node = self._prepare(len(vector))
            round_ = RoundNo(self.liveness.next_round(self._state.state.next_round))
            attempt = self._state.state.attempts
            self._state.change(attempts=attempt + 1, next_round=round_ + 1)
            out: Vector = memory.empty(len(vector), np.float32)
            await self._engine.call(
                partial(
                    Node.begin_round,
                    round_=round_,
                    hood=self.membership.hood,
                    vector=vector,
                    reference=self.reference,
                    out=out,
                    entropy=self._entropy(attempt),
                    deadlines=self._pace.begin(begin),
                )
            )
            self._ended = None
            self.transport.forget_before(round_)
            outcome = await self._run(round_)
            vector[:] = out
            if isinstance(getattr(self._method, "sparsifier", None), TopK):
                self.reference = out
            return self._conclude(outcome, node, len(vector), begin)

    def _prepare(self, size: int) -> Node:
        """The node that averages vectors of this size under the newest roster."""
        self.membership.look()
        if self.membership.newer is not None:
            self._method = self.config.method(self.membership.newer, self._purpose)
            self.membership.adopt()
            self._engine.use(None)
            self.liveness.adopt(self.membership.hood.view, self.roster.version)
            self.transport.use(self.roster)
            self.transport.tell(Message.ROSTER, self.roster.raw)
        if self._engine.node is not None:
            return self._engine.node
        self._size = size
        session = self._fixed_session or session_of(self.roster, self._settings, size, self._purpose)
        node = Node(
            self.id,
            self._method,
            size,
            session=session,
            keys=self.membership.keys(session),
            first_round=self._state.state.next_round,
        )
        self._engine.use(node)
        self.transport.tell(Message.HELLO, self._greeting().to_bytes())
        return node

    async def _run(self, round_: RoundNo) -> AggregateReady:
        """Send, receive and wait until the round has ended and all its frames are on their way."""
        outcome: AggregateReady | None = None
        while True:
            self.reception.forget_changes()
            gone = self.liveness.gone(round_)
            job = partial(advance, gone=gone, leaves=self.liveness.takes_part, clock=time.monotonic)
            out, events, deadline, joinable = await self._engine.call(job)
            self._say(Status(round_, round_ if joinable else round_ + 1))
            for event in events:
                if isinstance(event, FrameRejected):
                    self.reception.refused(event.error)
                else:
                    outcome = event
            if out is not None:
                if self._transcript is not None:
                    self._transcript.sent(out.recipients, out.frame.payload)
                patience = max(1.0, self.patience / 20)
                await self.transport.send(out.frame.payload, out.recipients, round_, patience)
                del out  # a share is large; it lives on in the links alone
            elif outcome is not None:
                await self._engine.call(Node.close)  # its secrets and its memory are not needed any more
                self._ended = round_
                self._say(Status(round_ + 1, round_ + 1))
                return outcome
            elif deadline is not None and not await self.reception.change(deadline):
                for late in self.liveness.up & await self._engine.call(lambda node: node.awaiting):
                    self._pace.late()
                    if self.liveness.suspect(late):
                        log.warning("node %d keeps this peer waiting; it goes on without it", late)

    def _say(self, status: Status) -> None:
        """Tell the neighbours where this peer stands, if that has changed."""
        if status != self.liveness.mine:
            self.liveness.mine = status
            self.transport.tell(Message.STATUS, status.to_bytes())

    def _conclude(self, outcome: AggregateReady, node: Node, size: int, begin: float) -> Report:
        now, view = time.monotonic(), self.membership.hood.view
        self._pace.end(now, alone=not outcome.contributors)
        report = Report.of(outcome, node, view, size, now - begin)
        self.totals.add(report)
        log.info(
            "round %d: %d of %d neighbours, %d bytes, %.2f s",
            report.round,
            len(report.contributors),
            len(view),
            report.total_bytes,
            report.seconds,
            extra={"peer_id": self.id, "report": dataclasses.asdict(report)},
        )
        return report


def _check(vector: Vector, size: int | None) -> None:
    """Refuse what is not a model of the size that was averaged so far."""
    if vector.dtype != np.float32 or vector.ndim != 1 or not vector.flags.c_contiguous:
        raise DataError(
            "a model is one contiguous float32 vector; use numpy.ascontiguousarray(v, numpy.float32)"
        )
    if size is not None and len(vector) != size:
        raise DataError(f"the model has {len(vector)} parameters, but had {size} in earlier rounds")
