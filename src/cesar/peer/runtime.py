"""AsyncPeer: drives a node over real links, round by round.

Peers average at their own pace; a round has a number, and frames name it. Each peer tells its neighbours where it
stands (`messages.Status`) whenever that changes, in order with its frames. A peer begins the latest round that a
neighbour can still be joined in, so one that was away comes back where the others are.

What happens on the way to a new model, and who decides:

    membership   which roster holds                       reception    what neighbours say
    liveness     who is there, and whom to wait for       transport    links, dialling, listening
    pace         how long to wait                         engine       the node, on a thread of its own
    task         what is averaged, and how                waiting      groups that lack a member
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Self

import numpy as np

from cesar import memory
from cesar.errors import CesarError, ConfigError, Reason
from cesar.methods import SETTLE_ROUNDS, SETTLE_SHARE
from cesar.node import Node
from cesar.peer import state as states
from cesar.peer import waiting
from cesar.peer.chunks import Message
from cesar.peer.config import FILE, PeerConfig, Purpose
from cesar.peer.engine import EngineThread, advance
from cesar.peer.identity import Identity
from cesar.peer.liveness import Liveness, Neighbour
from cesar.peer.membership import Membership, newest
from cesar.peer.messages import HAS_SETTLED, TRAINS, Status, share_in
from cesar.peer.pace import Pace
from cesar.peer.reception import Reception, rounds_since
from cesar.peer.report import Report, Totals
from cesar.peer.roster import Roster
from cesar.peer.spans import Work
from cesar.peer.state import StateFile
from cesar.peer.task import Task, mode_of
from cesar.peer.transcript import Transcript
from cesar.peer.transport import Transport
from cesar.peer.waiting import Waiting
from cesar.protocol import AggregateReady, FrameRejected
from cesar.types import Entropy, NodeId, RoundNo, Vector

log = logging.getLogger("cesar.peer")

LINGER_SECONDS = 30.0
"""A peer that ends waits so long at most for neighbours that are still in its last round."""

CHECK_SECONDS = (1.0, 4.0)
"""A round of a check may take so long, at least and at most: nobody trains meanwhile."""


def _reach(in_step: tuple[int, float]) -> int:
    """No round beyond this one can have come since a peer was in step: (the round, when)."""
    round_, then = in_step
    return round_ + rounds_since(then)


class AsyncPeer(contextlib.AbstractAsyncContextManager["AsyncPeer"]):
    """One participant, for code that runs in an event loop; `Peer` is the same for everybody else.

    Args:
        entropy: attempt counter → fresh randomness; only tests replace it.
        session: only tests replace it.

    Attributes:
        task: what this peer averages, and how.
        waiting: its groups that lack a member.
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
        self.config, self.id = config, identity.id
        self.task = Task(config, roster, purpose, session)
        self._state = state or StateFile(config.state / states.FILE)
        self._entropy = entropy or partial(states.fresh_entropy, self.id)
        ask = config.tables.peer.approve == "ask" and purpose == "train"
        self.membership = Membership(
            identity, roster, config.folder, self._state, self.task.usable, keys=config.keys, ask=ask
        )
        first = self._state.state.next_round
        self.liveness = Liveness(purpose, Status(first, first), self.membership.hood.view, roster.version)
        rounds = config.tables.rounds
        self._pace = Pace(rounds.floor, rounds.ceiling) if purpose == "train" else Pace(*CHECK_SECONDS)
        self._engine = EngineThread(f"cesar engine {self.id}")
        transcript = config.tables.peer.transcript
        self._transcript = None if transcript is None else Transcript(config.state / transcript)
        self.reception = Reception(
            lambda: self.task.greeting(self.membership, self.liveness.mine, satisfied=self.satisfied),
            self.liveness,
            self.membership,
            self._engine,
            self._pace,
            self._transcript,
        )
        peer = config.tables.peer
        self.transport = Transport(
            self.membership.identity, roster, peer.listen, self.reception, proxy=peer.proxy
        )
        self._turn = asyncio.Lock()
        self._locked = contextlib.ExitStack()
        self._in_step = (
            0,
            roster.issued.timestamp(),
        )  # in which round it was with others, and at what time of day
        self._ended: RoundNo | None = None  # the round that ended last; None while one runs
        self.satisfied = False
        self.totals = Totals()
        self.waiting = Waiting(config.state / waiting.FILE if purpose == "train" else None)

    @classmethod
    def load(cls, path: str | Path, *, purpose: Purpose = "train") -> Self:
        """Read and check everything that peer.toml refers to; nothing is opened yet.

        Raises:
            ConfigError: says which file is wrong and what to do.
        """
        config = PeerConfig.load(path)
        identity = Identity.load(config.keys)
        state = StateFile(config.state / states.FILE)
        roster = newest(config.folder, state, identity.ca, ask=config.tables.peer.approve == "ask")
        return cls(config, identity, roster, purpose=purpose, state=state)

    @classmethod
    async def join(cls, path: str | Path, *, wait: float | None = None) -> Self:
        """Load, open the port, and wait for the neighbours: `wait` seconds at most, else until the ceiling."""
        peer = cls.load(path)
        await peer.start()
        await peer.wait_for_neighbours(peer.config.tables.rounds.ceiling if wait is None else wait)
        return peer

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
        return self.liveness.next_round(self.liveness.mine.joinable, _reach(self._in_step))

    @property
    def patience(self) -> float:
        """The longest that the next round can take, in seconds."""
        return self._pace.limit

    async def start(self) -> None:
        """Open the port and dial the neighbours.

        Raises:
            ConfigError: another process runs this peer, or has its port.
            MembershipError: its certificate or its roster has ended.
        """
        memory.keep_freed()
        self._locked.callback(os.close, states.lock(self.config.state))
        try:
            self._resume()
            await self.transport.start()
        except CesarError:
            self._locked.close()
            raise
        except OSError as error:
            self._locked.close()
            raise ConfigError(f"{error}; peer.listen in {self.config.folder / FILE} names the port") from None
        where = self.config.tables.peer.listen
        log.info("node %d %s", self.id, f"listens at {where}" if where else "only dials")

    def _resume(self) -> None:
        """Go on where this peer, perhaps as another process, has ended."""
        self._state.reload()
        self.membership.check()
        self.membership.remember()
        first = self._state.state.next_round
        self._in_step = (first, self._state.written) if first else (0, self.roster.issued.timestamp())
        self.liveness.mine = Status(first, first, self.liveness.mine.mode)
        self.task.continuity.recall(self._state.sums())
        self._pace.start(time.monotonic())

    async def wait_for_neighbours(self, seconds: float) -> None:
        """Until all are connected, or the time is over."""
        if not await self.reception.until(lambda: self.neighbours.keys() == self.liveness.up, seconds):
            missing = ", ".join(map(str, sorted(self.neighbours.keys() - self.liveness.up)))
            log.warning("node %d goes on without neighbour(s) %s", self.id, missing)

    async def close(self) -> None:
        """Send what is still to be sent, close the port and forget all secrets of the round."""
        if self._ended is not None:
            # Its last shares may still be on their way to neighbours in that round, and would be lost with the connection.
            ended = self._ended
            await self.reception.until(
                lambda: not self.liveness.still_in(ended), min(self.patience, LINGER_SECONDS)
            )
        await self.transport.close()
        await self._engine.close()
        memory.clear()
        if self._transcript is not None:
            self._transcript.close()
        self._locked.close()

    def satisfy(self) -> None:
        """Tell the neighbours that this peer has seen what it wanted to see."""
        self.satisfied = True
        self.transport.tell(Message.HELLO, self.reception.hello())

    # ── one round ───────────────────────────────────────────────────────────────────────────────────────

    async def average_vector(self, vector: Vector, tensors: tuple[int, ...] | None = None) -> Report:
        """Average a model with the neighbours', in place.

        Args:
            tensors: the sizes of its tensors, each of which gets a scale of its own; by default it is one.

        Raises:
            DataError: NaN, infinity or another layout than before; nothing was sent.
            MembershipError: this peer was removed, or its certificate or roster has ended; nothing was sent.
        """
        async with self._turn:
            self._enter(TRAINS)
            return await self._round(vector, tensors)

    async def settle(
        self,
        vector: Vector,
        tensors: tuple[int, ...] | None = None,
        *,
        rounds: int = SETTLE_ROUNDS,
        share: float = SETTLE_SHARE,
        tolerance: float = 0.0,
        wait: float | None = None,
    ) -> list[Report]:
        """Average without training, in place, with neighbours that do so, too: at the end of training, when every
        model is worse than the mean of all. Neighbours that still train are awaited first, and come in later.

        Args:
            rounds: how many at most.
            share: the fraction of the model to send; the same at all peers.
            tolerance: end as soon as a round changes the model by less, in relation to its length.
            wait: seconds for neighbours that still train; by default the ceiling of a deadline.

        Raises:
            DataError: as `average_vector`; or the share is none.
        """
        reports: list[Report] = []
        async with self._turn:
            self._enter(mode_of(share))
            try:
                self.task.tensors = self.task.enter(vector, tensors)
                self._prepare()
                patience = self.config.tables.rounds.ceiling if wait is None else wait
                if rounds > 0 and not await self.reception.until(
                    lambda: not self.liveness.training, patience
                ):
                    names = ", ".join(map(str, sorted(self.liveness.training)))
                    log.warning("node %d settles without neighbour(s) %s, which still train", self.id, names)
                # Links that were cut have a moment to come back; then there is nobody left to settle with.
                while len(reports) < rounds and await self.reception.until(
                    lambda: self.liveness.company, self.config.tables.rounds.floor
                ):
                    before = vector.copy()
                    reports.append(await self._round(vector, tensors))
                    change = float(np.linalg.norm(vector - before))
                    # Whoever stops silences groups of others: if nothing comes any more, they have nothing to stay for.
                    if any(report.contributors for report in reports) and change < tolerance * float(
                        np.linalg.norm(before)
                    ):
                        break
            finally:
                self._enter(HAS_SETTLED)
        return reports

    def _enter(self, mode: int) -> None:
        """Train, settle, or have settled: from now on frames are of that kind, once there is a model."""
        changed, self.task.mode = mode != self.task.mode, mode
        if changed and self.task.tensors is not None:
            self._prepare()
            self._say(replace(self.liveness.mine, mode=mode))

    async def _round(self, vector: Vector, tensors: tuple[int, ...] | None) -> Report:
        begin = time.monotonic()
        self.task.tensors = self.task.enter(vector, tensors)
        if (identity := self.membership.renewed()) is not None:
            await self.transport.renew(identity)
        node = self._prepare()
        round_ = RoundNo(self.liveness.next_round(self._state.state.next_round, _reach(self._in_step)))
        attempt = self._state.state.attempts
        self._state.change(attempts=attempt + 1, next_round=round_ + 1)
        out: Vector = memory.empty(len(vector), np.float32)
        deadlines = self._pace.begin(begin)
        await self._engine.call(
            partial(
                Node.begin_round,
                round_=round_,
                hood=self.membership.hood,
                vector=vector,
                reference=self.task.reference,
                out=out,
                entropy=self._entropy(attempt),
                deadlines=deadlines,
            ),
            Work.ANNOUNCE,
        )
        self._ended = None
        self.transport.forget_before(round_)
        outcome = await self._run(round_, deadlines.share)
        vector[:] = out
        self.task.ended(node, out)
        now, view = time.monotonic(), self.membership.hood.view
        self._pace.end(now, alone=not outcome.contributors)
        self.liveness.ended(outcome.contributors)
        if outcome.contributors:
            self._in_step = round_ + 1, time.time()
        report = Report.of(outcome, node, view, len(vector), now - begin)
        self.totals.add(report)
        if report.overflowed:
            log.warning("round %d: what neighbours sent made the model infinite; it kept its own", round_)
        if report.fault:
            log.error(
                "round %d: what neighbours sent could not be used: %s; the model is its own",
                round_,
                report.fault,
            )
        self.waiting.note(outcome, self.roster, self.roster.groups.get(self.id, ()))
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

    def _prepare(self) -> Node:
        """The node that averages such models in this mode, under the newest roster."""
        self.membership.look()
        self.membership.check()
        if self.membership.newer is not None:
            self.task.method = self.task.usable(self.membership.newer)
            self.membership.adopt()
            self._engine.use(None)
            self.liveness.adopt(self.membership.hood.view, self.roster.version)
            self._in_step = 0, self.roster.issued.timestamp()
            self.transport.forget_before(RoundNo(1 << 32))  # rounds begin anew
            self.transport.use(self.roster)
            self.transport.tell(Message.ROSTER, self.roster.raw)
        if self._engine.node is not None and self.task.made_for == share_in(self.task.mode):
            return self._engine.node
        node = self.task.node(self.membership, self._state.state.next_round)
        self._engine.use(node)
        self.liveness.mine = replace(self.liveness.mine, mode=self.task.mode)
        self.transport.tell(Message.HELLO, self.reception.hello())
        return node

    async def _run(self, round_: RoundNo, end: float) -> AggregateReady:
        """Send, receive and wait until the round has ended and all its frames are on their way. After `end` nobody is waited
        for: what neighbours do, and do not do, cannot make this last longer.
        """
        outcome: AggregateReady | None = None
        while True:
            self.reception.forget_changes()
            gone = self.liveness.gone(round_)
            job = partial(advance, gone=gone, leaves=self.liveness.takes_part, clock=time.monotonic)
            out, events, deadline, joinable, sums = await self._engine.call(job)
            if sums is not None and self.task.regroups:
                self._state.keep_sums(sums)
            self._say(Status(round_, round_ if joinable else round_ + 1, self.task.mode))
            for event in events:
                if isinstance(event, FrameRejected):
                    self.reception.refused(event.error)
                    if event.error.reason is Reason.FAULT:
                        self.transport.cut_off(event.error.peer)
                else:
                    outcome = event
            if out is not None:
                if self._transcript is not None:
                    self._transcript.sent(out.recipients, out.frame.payload)
                await self.transport.send(out.frame.payload, out.recipients, round_, end)
                del out  # a share is large; it lives on in the links alone
            elif outcome is not None:
                await self._engine.call(Node.close)  # its secrets and its memory are not needed any more
                self._ended = round_
                self._say(Status(round_ + 1, round_ + 1, self.task.mode))
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
