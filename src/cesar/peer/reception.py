"""What neighbours say, and what it changes here: greetings, statuses, rosters and frames, as the links bring them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from cesar.errors import Reason, RemoteProtocolError
from cesar.peer import spans
from cesar.peer.chunks import Message, Refusal
from cesar.peer.engine import EngineThread
from cesar.peer.link import Link
from cesar.peer.liveness import Liveness
from cesar.peer.membership import Membership
from cesar.peer.messages import Hello, Status
from cesar.peer.pace import Pace
from cesar.peer.spans import Work
from cesar.peer.transcript import Transcript
from cesar.types import Buffer, NodeId

log = logging.getLogger("cesar.peer")

MOST_REFUSALS = 200
"""A neighbour that sent so many bad frames in one conversation is sent away."""

MOST_LINES = 100
"""So many lines are logged in a minute about bad and late frames of one neighbour."""

ROUNDS_PER_SECOND, ROUNDS_AT_ONCE = 10, 100_000
"""No network has done more rounds than so many for each second since its roster was signed, and so many beside that: clocks
differ. All peers go by the same bound, whatever others made them believe, so that those that were misled are not sent away.
"""

HARMLESS = (Reason.TOO_EARLY, Reason.STALE_ATTEMPT, Reason.DUPLICATE, Reason.SESSION)
"""Refusals that an honest neighbour can cause when it restarts, runs ahead or changes its roster."""


def rounds_since(then: float) -> int:
    """The most rounds that a network can have done since some time of day."""
    return int(ROUNDS_PER_SECOND * max(0.0, time.time() - then))


class Reception:
    """The hub of the links (`link.Hub`). It tells `liveness` who is there, `membership` of rosters, and `engine` of
    frames.

    Args:
        greeting: what this peer says of itself at the moment.
        pace: is told when frames come.

    Attributes:
        refusals: how many frames were refused, by reason, and how many conversations this peer has ended.
    """

    def __init__(
        self,
        greeting: Callable[[], Hello],
        liveness: Liveness,
        membership: Membership,
        engine: EngineThread,
        pace: Pace,
        transcript: Transcript | None,
    ) -> None:
        self._greeting, self._transcript = greeting, transcript
        self._liveness, self._membership, self._engine, self._pace = liveness, membership, engine, pace
        self.refusals: Counter[str] = Counter()
        self._changed = asyncio.Event()
        self._lines: dict[
            NodeId, tuple[float, int]
        ] = {}  # since when how many lines about each neighbour's frames

    def forget_changes(self) -> None:
        """From here on, `change` waits for something new."""
        self._changed.clear()

    async def change(self, deadline: float) -> bool:
        """Wait until a neighbour has said something, come or gone; False if the time is over before that."""
        begun = spans.begin()
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            return False
        finally:
            spans.end(Work.WAIT, begun)
        self._changed.clear()
        return True

    async def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until something holds of the neighbours; False if the time is over before that."""
        deadline = time.monotonic() + seconds
        while not condition():
            if not await self.change(deadline):
                return False
        return True

    # ── what the links bring (`link.Hub`) ───────────────────────────────────────────────────────────────

    def hello(self) -> bytes:
        return self._greeting().to_bytes()

    def meet(self, peer: NodeId, hello: bytes) -> None:
        there = Hello.from_bytes(hello)
        if there.node != peer:
            raise Refusal(f"its certificate is that of node {peer}, but it says that it is node {there.node}")
        self._greeting().accept(there)
        self._check_round(there.status, there.roster)
        self._liveness.greeted(peer, there, time.time())
        self._changed.set()

    def connected(self, link: Link) -> None:
        log.info("node %d is connected", link.peer, extra={"peer_id": link.peer})
        self._liveness.connected(link.peer)
        link.send(Message.STATUS, self._liveness.mine.to_bytes())
        roster = self._membership.roster
        if self._liveness.neighbours[link.peer].roster < roster.version:
            log.info("node %d has an older roster; it is sent version %d", link.peer, roster.version)
            link.send(Message.ROSTER, roster.raw)
        self._changed.set()

    def disconnected(self, link: Link) -> None:
        log.info("node %d is gone", link.peer, extra={"peer_id": link.peer})
        self._liveness.disconnected(link.peer)
        self._changed.set()

    def failed(self, peer: NodeId, why: str) -> None:
        self._liveness.failed(peer, why)
        self._changed.set()

    def sent_away(self, peer: NodeId, why: str) -> None:
        self.refusals["conversation"] += 1
        self.failed(peer, why)

    def status(self, peer: NodeId, body: bytes) -> None:
        said = Status.from_bytes(body)
        known = self._liveness.neighbours.get(peer)
        self._check_round(said, None if known is None else known.roster)
        self._liveness.told(peer, said)
        self._changed.set()

    def _check_round(self, said: Status, version: int | None) -> None:
        """Refuse a round that cannot have come yet under this roster: numbers end at 2^31, and never go back."""
        roster = self._membership.roster
        if (
            version == roster.version
            and said.joinable > rounds_since(roster.issued.timestamp()) + ROUNDS_AT_ONCE
        ):
            raise Refusal(f"it says that it is in round {said.joinable}, which cannot have come yet")

    def roster_from(self, peer: NodeId, data: bytes) -> None:
        self._membership.offer(data, f"node {peer}")
        if self._membership.over:
            raise Refusal(f"this peer has ended: {self._membership.over}")

    def largest_roster(self) -> int:
        return self._membership.largest

    async def largest_frame(self) -> int:
        """Waits for the first model, which tells its size."""
        return (await self._engine.ready()).largest_frame(self._membership.hood)

    async def frame(self, peer: NodeId, payload: Buffer) -> None:
        came = time.monotonic()
        if self._transcript is not None:
            self._transcript.received(peer, payload)
        try:
            late = await self._engine.call(lambda node: node.receive(peer, payload), Work.ADD)
        except RemoteProtocolError as error:
            count = self.refused(error)
            if error.reason is Reason.FAULT:
                raise Refusal(str(error)) from None
            if count > MOST_REFUSALS:
                raise Refusal(f"it sent {count} frames that had to be refused; the last: {error}") from None
        else:
            if late is not None:
                self._log(
                    logging.INFO,
                    f"a frame of round {late} from node {peer} was ignored: that round is over",
                    peer,
                )
                return
            self._liveness.heard(peer)
        self._pace.heard(came)
        self._changed.set()

    def refused(self, error: RemoteProtocolError) -> int:
        """A frame of a neighbour could not be taken in; returns how many such there were."""
        self.refusals[error.reason.value] += 1
        self._log(logging.WARNING, str(error), error.peer, reason=error.reason.value)
        return self._liveness.blamed(error.peer, str(error), harmless=error.reason in HARMLESS)

    def _log(self, level: int, line: str, peer: NodeId, **extra: str) -> None:
        """Say what is wrong with a frame; of a neighbour that floods this peer with bad ones not every time."""
        since, count = self._lines.get(peer, (0.0, 0))
        if time.monotonic() - since > 60.0 or not count:
            since, count = time.monotonic(), 0
        self._lines[peer] = since, count + 1
        if count < MOST_LINES:
            log.log(level, "%s", line, extra={"peer_id": peer, **extra})
        elif count == MOST_LINES:
            log.warning("node %d: no more about its frames for a minute", peer, extra={"peer_id": peer})
