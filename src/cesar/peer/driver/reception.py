"""What neighbours say, and what it changes here: greetings, statuses, rosters and frames, as the links bring them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cesar.base.errors import Reason, Refusal, RemoteProtocolError
from cesar.base.types import Buffer, NodeId
from cesar.peer.driver.liveness import Liveness
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.node_runner import NodeRunner
from cesar.peer.driver.pace import Pace
from cesar.peer.driver.transcript import Transcript
from cesar.peer.driver.witness import Witness
from cesar.peer.net.chunks import Message
from cesar.peer.net.door import worth_a_line
from cesar.peer.net.link import Link
from cesar.peer.net.messages import TRAINS, Hello, Seen, Status

log = logging.getLogger("cesar.peer")

MOST_REFUSALS = 200
"""A neighbour that sent more bad frames than this in one conversation is sent away."""

MOST_LINES = 100
"""Lines that are logged in a minute about bad and late frames of one neighbour."""

ROUNDS_PER_SECOND, ROUNDS_AT_ONCE = 10, 100_000
"""No network has done more rounds than these for each second since its roster was signed, and these beside them: clocks
differ. All peers go by the same bound, whatever others made them believe, so that those that were misled are not sent away.
"""

HARMLESS = (Reason.TOO_EARLY, Reason.STALE_ATTEMPT, Reason.DUPLICATE, Reason.SESSION)
"""Refusals that an honest neighbour can cause when it restarts, runs ahead or changes its roster."""


def rounds_since(then: float) -> int:
    """The most rounds that a network can have done since some time of day."""
    return int(ROUNDS_PER_SECOND * max(0.0, time.time() - then))


def latest_round(issued: float) -> int:
    """The last round that can have come under a roster of this time."""
    return rounds_since(issued) + ROUNDS_AT_ONCE


def _uptime() -> float:
    """Seconds that nobody can set, and that go on while the machine sleeps, where the system counts these."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Reception:
    """The hub of the links (`link.Hub`). It tells `liveness` who is there, `membership` of rosters, and `runner` of
    frames.

    Args:
        greeting: what this peer says of itself at the moment.
        pace: is told when frames come.
        witness: remembers neighbours, and hears what they remember of this peer.
        set_back: is told when a neighbour has seen more of this peer than its folder knows of.

    Attributes:
        refusals: how many frames were refused, by reason, and how many conversations this peer has ended.
        news: how often neighbours have said something, come or gone.
        told_twice: how often neighbours have said that another process has this peer's identity.
    """

    def __init__(
        self,
        greeting: Callable[[], Hello],
        liveness: Liveness,
        membership: Membership,
        runner: NodeRunner,
        pace: Pace,
        transcript: Transcript | None,
        witness: Witness | None = None,
        set_back: Callable[[], None] = lambda: None,
    ) -> None:
        self._greeting, self._transcript = greeting, transcript
        self._witness, self._set_back = witness or Witness("", None), set_back
        self.told_twice = 0
        self._start = time.time() - _uptime()
        self._liveness, self._membership, self._runner, self._pace = liveness, membership, runner, pace
        self.refusals: Counter[str] = Counter()
        self.news = 0
        self._changed = asyncio.Event()
        self._lines: dict[
            NodeId, tuple[float, int]
        ] = {}  # since when how many lines about each neighbour's frames

    def _steady(self) -> float:
        """The time of day as this machine's clock had it at the start, whatever was done to that clock since."""
        return self._start + _uptime()

    def clock_of_others(self) -> float:
        """By how many seconds most neighbours' clocks are ahead of this machine's, also if that was set after they greeted."""
        return self._liveness.clock() + self._steady() - time.time()

    def wake(self) -> None:
        """Wake all who wait. Each wakes by itself: with one flag for all, the first to clear it would hide the news from
        the others, who would then sleep until their deadline.
        """
        self.news += 1
        woken, self._changed = self._changed, asyncio.Event()
        woken.set()

    async def change(self, deadline: float, since: int) -> bool:
        """Wait until a neighbour has said something, come or gone; False if the time is over before that.

        Args:
            since: `news` as it was before the caller looked at the neighbours. What has come since then ends the wait at once.
        """
        if self.news != since:
            return True
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """Wait until something holds of the neighbours; False if the time is over before that."""
        deadline = time.monotonic() + seconds
        while True:
            since = self.news
            if condition():
                return True
            if not await self.change(deadline, since):
                return False

    # ── what the links bring (`link.Hub`) ───────────────────────────────────────────────────────────────

    def hello(self, peer: NodeId | None = None) -> bytes:
        seen = None if peer is None else self._witness.about(peer)
        return replace(self._greeting(), instance=self._witness.instance, seen=seen).to_bytes()

    def hello_from(self, peer: NodeId, hello: bytes, where: str = "") -> None:
        there = Hello.from_bytes(hello)
        if there.node != peer:
            raise Refusal(f"its certificate is that of node {peer}, but it says that it is node {there.node}")
        mine = self._greeting()
        mine.accept(there)
        self._check_round(there.status, there.roster)
        self._liveness.greeted(peer, there, self._steady())
        if mine.purpose == there.purpose == "train":
            self._compare(peer, there, where)
        self.wake()

    def _compare(self, peer: NodeId, there: Hello, where: str) -> None:
        """What this peer knows of a neighbour's past, and the neighbour of this peer's."""
        if twice := self._witness.greeted(peer, there, where):
            self._liveness.failed(peer, twice)
            if worth_a_line(self._witness.turns(peer)):
                log.warning("%s", twice, extra={"peer_id": peer})
        if there.status.mode == TRAINS:
            self._witness.said(peer, there.roster, there.status.current)
        seen = there.seen or Seen(0, 0)
        if seen.twice:
            self.told_twice += 1
            if worth_a_line(self.told_twice):
                log.error(
                    "node %d was greeted by two processes with this peer's identity, in turns: another one has a copy of this "
                    "folder, or of its keys. End it, or `cesar peer renew` if nobody here knows of it",
                    peer,
                    extra={"peer_id": peer},
                )
        roster, round_ = self._membership.reached
        if self._witness.accuses(peer, seen, roster, round_):
            log.error(
                "the folder %s was set back: it says round %d under version %d of the roster, and node %d has seen this peer in "
                "round %d under version %d. Some of what was not handed in then may be in a sum by now, so it is thrown away; "
                "what is trained from now on is not",
                self._membership.folder,
                round_,
                roster,
                peer,
                seen.round,
                seen.roster,
                extra={"peer_id": peer},
            )
            self._set_back()

    def connected(self, link: Link) -> None:
        log.info("node %d is connected", link.peer, extra={"peer_id": link.peer})
        self._liveness.connected(link.peer)
        link.send(Message.STATUS, self._liveness.mine.to_bytes())
        roster = self._membership.roster
        if self._liveness.neighbours[link.peer].roster < roster.version:
            log.info("node %d has an older roster; it is sent version %d", link.peer, roster.version)
            link.send(Message.ROSTER, roster.raw)
        self.wake()

    def disconnected(self, link: Link) -> None:
        log.info("node %d is gone", link.peer, extra={"peer_id": link.peer})
        self._liveness.disconnected(link.peer)
        self.wake()

    def failed(self, peer: NodeId, why: str) -> None:
        self._liveness.failed(peer, why)
        self.wake()

    def sent_away(self, peer: NodeId, why: str) -> None:
        self.refusals["conversation"] += 1
        self.failed(peer, why)

    def status(self, peer: NodeId, body: bytes) -> None:
        said = Status.from_bytes(body)
        known = self._liveness.neighbours.get(peer)
        self._check_round(said, None if known is None else known.roster)
        self._liveness.status_came(peer, said)
        if known is not None and known.purpose == "train" and said.mode == TRAINS:
            self._witness.said(peer, known.roster, said.current)
        self.wake()

    def _check_round(self, said: Status, version: int | None) -> None:
        """Refuse a round that cannot have come yet under this roster: numbers end at 2^31, and never go back."""
        roster = self._membership.roster
        if version == roster.version and said.joinable > latest_round(roster.issued.timestamp()):
            raise Refusal(f"it says that it is in round {said.joinable}, which cannot have come yet")

    def roster_from(self, peer: NodeId, data: bytes) -> None:
        self._membership.offer(data, f"node {peer}")
        if self._membership.over:
            raise Refusal(f"this peer has ended: {self._membership.over}")

    def largest_roster(self) -> int:
        return self._membership.largest

    async def largest_frame(self) -> int:
        """Waits for the first model, which tells its size."""
        node = await self._runner.ready()
        return node.largest_frame(self._membership.hood)

    async def frame(self, peer: NodeId, payload: Buffer) -> None:
        came = time.monotonic()
        if self._transcript is not None:
            try:
                self._transcript.received(peer, payload)
            except OSError as error:  # what is not written down is not used, as if it had been lost
                self._log(
                    logging.ERROR, f"a frame was dropped: it cannot be recorded ({error.strerror})", peer
                )
                return
        try:
            late = await self._runner.receive(peer, payload)
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
        self.wake()

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
