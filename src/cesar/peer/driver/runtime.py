"""AsyncPeer: drives a node over real links, round by round.

Peers average at their own pace; a round has a number, and frames name it. Each peer tells its neighbours where it
stands (`messages.Status`) whenever that changes, in order with its frames. A peer begins the latest round that a
neighbour can still be joined in, so one that was away comes back where the others are.

What happens on the way to a new model, and who decides:

    membership   which roster holds                       reception    what neighbours say
    liveness     who is there, and whom to wait for       transport    links, dialling, listening
    pace         how long to wait                         node_runner  calls of the node, one at a time
    task         what is averaged, and how
    cells        rounds of a network of cells; what is below is for other methods
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

from cesar.base import files, memory
from cesar.base.errors import CesarError, ConfigError, Reason
from cesar.base.types import Entropy, NodeId, RoundNo, Vector
from cesar.cell_node import CellNode
from cesar.methods import SETTLE_ROUNDS, SETTLE_SHARE
from cesar.node import Node
from cesar.peer.driver import best, cell_file, witness
from cesar.peer.driver import state as states
from cesar.peer.driver.best import Best, BestFile
from cesar.peer.driver.cell_file import CellFile
from cesar.peer.driver.cells import CellRounds
from cesar.peer.driver.liveness import Liveness, Neighbour
from cesar.peer.driver.membership import Membership, newest
from cesar.peer.driver.node_runner import NodeRunner, advance
from cesar.peer.driver.pace import Pace
from cesar.peer.driver.reception import Reception, rounds_since
from cesar.peer.driver.report import Report, Totals
from cesar.peer.driver.state import StateFile
from cesar.peer.driver.task import Task, mode_of
from cesar.peer.driver.transcript import Transcript
from cesar.peer.driver.witness import Witness
from cesar.peer.net.chunks import Message
from cesar.peer.net.messages import HAS_SETTLED, TRAINS, Status, share_in
from cesar.peer.net.transport import Transport
from cesar.peer.trust.changes import Consent
from cesar.peer.trust.config import FILE, PeerConfig, Purpose
from cesar.peer.trust.identity import Identity
from cesar.peer.trust.roster import Roster
from cesar.protocol import AggregateReady, FrameRejected

log = logging.getLogger("cesar.peer")

LINGER_SECONDS = 30.0
"""A peer that ends waits at most this long for neighbours that are still in its last round."""

CHECK_SECONDS = (1.0, 4.0)
"""The shortest and the longest deadline of a round of a check: nobody trains meanwhile."""


def _furthest(in_step: tuple[int, float]) -> int:
    """No round beyond this one can have come since a peer was in step: (the round, when)."""
    round_, then = in_step
    return round_ + rounds_since(then)


class AsyncPeer(contextlib.AbstractAsyncContextManager["AsyncPeer"]):
    """One participant, for code that runs in an event loop; `Peer` is the same for everybody else.

    Args:
        samples: how many this site trains on, where the network weighs sites by that; it never leaves the site but in its cell's sum.
        entropy: attempt counter → fresh randomness; only tests replace it.
        session: only tests replace it.

    Attributes:
        task: what this peer averages, and how.
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
        samples: int | None = None,
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
        self.task.method.check_samples(samples)
        self._state = state or StateFile(config.state / states.FILE)
        self._entropy = entropy or partial(states.fresh_entropy, self.id)
        consent = Consent(config.tables.peer.approve if purpose == "train" else "auto")
        self.membership = Membership(
            identity, roster, config.folder, self._state, self.task.usable, keys=config.keys, consent=consent
        )
        first = self._state.state.next_round
        self.liveness = Liveness(purpose, Status(first, first), self.membership.hood.view, roster.version)
        rounds = config.tables.rounds
        self._pace = Pace(rounds.floor, rounds.ceiling) if purpose == "train" else Pace(*CHECK_SECONDS)
        self._runner = NodeRunner(f"cesar node {self.id}")
        transcript = config.tables.peer.transcript
        self._transcript = None if transcript is None else Transcript(config.state / transcript)
        self._witness = Witness(
            os.urandom(8).hex(), config.state / witness.FILE if purpose == "train" else None
        )
        self.reception = Reception(
            lambda: self.task.greeting(self.membership, self.liveness.mine, satisfied=self.satisfied),
            self.liveness,
            self.membership,
            self._runner,
            self._pace,
            self._transcript,
            self._witness,
            self._set_back,
        )
        self.membership.clock_of_others = self.reception.clock_of_others
        peer = config.tables.peer
        self.transport = Transport(
            self.membership.identity,
            roster,
            peer.listen,
            self.reception,
            proxy=peer.proxy,
            now=self.membership.now,
        )
        self.membership.bar = self.transport.bar
        self._turn = asyncio.Lock()
        self._disk = ""  # why nothing can be written, if so
        self._locked = contextlib.ExitStack()
        self._in_step = (
            0,
            roster.issued.timestamp(),
        )  # in which round it was with others, and at what time of day
        self._ended: RoundNo | None = None  # the round that ended last; None while one runs
        self.satisfied = False
        self.totals = Totals()
        self._best = BestFile(config.state / best.FILE, roster.network_id)
        self.cells: CellRounds | None = None  # where peers are in cells
        if self.task.in_cells:
            self.cells = CellRounds(
                config,
                task=self.task,
                membership=self.membership,
                liveness=self.liveness,
                reception=self.reception,
                transport=self.transport,
                runner=self._runner,
                transcript=self._transcript,
                totals=self.totals,
                witness=self._witness,
                prepare=self._prepare,
                say=self._say,
                entropy=self._entropy,
                samples=samples,
                file=CellFile(config.state / cell_file.FILE, roster.network_id),
                best=self._best,
            )
            self.membership.next_round = self.cells.durable_round

    @classmethod
    def load(cls, path: str | Path, *, purpose: Purpose = "train", samples: int | None = None) -> Self:
        """Read and check everything that peer.toml refers to; nothing is opened yet.

        Raises:
            ConfigError: says which file is wrong and what to do.
        """
        config = PeerConfig.load(path)
        identity = Identity.load(config.keys)
        state = StateFile(config.state / states.FILE)
        roster = newest(config.folder, state, identity, Consent(config.tables.peer.approve))
        return cls(config, identity, roster, purpose=purpose, state=state, samples=samples)

    @classmethod
    async def join(cls, path: str | Path, *, wait: float | None = None, samples: int | None = None) -> Self:
        """Load, open the port, and wait for the neighbours: `wait` seconds at most, else until the ceiling."""
        peer = cls.load(path, samples=samples)
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
        if self.cells is not None:
            return self.cells.next_round
        return self.liveness.next_round(self.liveness.mine.joinable, _furthest(self._in_step))

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
            self._recall()
            await self.transport.start()
        except CesarError:
            self._locked.close()
            raise
        except OSError as error:
            self._locked.close()
            raise ConfigError(f"{error}; peer.listen in {self.config.folder / FILE} names the port") from None
        where = self.config.tables.peer.listen
        log.info("node %d %s", self.id, f"listens at {where}" if where else "only dials")

    def _recall(self) -> None:
        try:
            self._resume()
        except OSError as error:
            raise ConfigError(
                f"cannot write to {self.config.state}: {error.strerror or error}; a peer starts when it can"
            ) from None

    def _resume(self) -> None:
        """Go on where this peer, perhaps as another process, has ended."""
        self._state.reload()
        self.membership.check()
        self.membership.remember()
        first = self._state.state.next_round
        self._in_step = (first, self._state.written) if first else (0, self.roster.issued.timestamp())
        self.liveness.mine = Status(first, first, self.liveness.mine.mode)
        if self.cells is not None:
            self.cells.recall()
            self.liveness.mine = self.cells.status()
        self._pace.start(time.monotonic())

    async def wait_for_neighbours(self, seconds: float) -> None:
        """Until all are connected, or the time is over."""
        if not await self.reception.until(lambda: self.neighbours.keys() == self.liveness.up, seconds):
            missing = ", ".join(map(str, sorted(self.neighbours.keys() - self.liveness.up)))
            log.warning("node %d goes on without neighbour(s) %s", self.id, missing)

    async def close(self) -> None:
        """Send what is still to be sent, close the port and forget all secrets of the round."""
        if self.cells is not None:
            await self.cells.close()
        if self._ended is not None:
            # Its last shares may still be on their way to neighbours in that round, and would be lost with the connection.
            ended = self._ended
            await self.reception.until(
                lambda: not self.liveness.still_in(ended), min(self.patience, LINGER_SECONDS)
            )
        await self.transport.close()
        await self._runner.close()
        memory.clear()
        if self._transcript is not None:
            self._transcript.close()
        self._locked.close()

    def _set_back(self) -> None:
        if self.cells is not None:
            self.cells.distrust()

    def satisfy(self) -> None:
        """Tell the neighbours that this peer has seen what it wanted to see."""
        self.satisfied = True
        self.transport.greet()

    # ── one round ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def best(self) -> Best | None:
        """The best common model so far, where members of cells hand in a metric."""
        return self._best.best

    async def average_vector(
        self, vector: Vector, tensors: tuple[int, ...] | None = None, *, metric: float | None = None
    ) -> Report:
        """Average a model with the neighbours', in place.

        Args:
            tensors: the sizes of its tensors, each of which gets a scale of its own; by default it is one.
            metric: of this model, where the network has agreed on one; see `Peer.average`.

        Raises:
            DataError: NaN, infinity or another layout than before; nothing was sent.
            ConfigError: a metric where the network has agreed on none; nothing was sent.
            MembershipError: this peer was removed, or its certificate or roster has ended; nothing was sent.
        """
        async with self._turn:
            await self._show_newest()
            if self.cells is not None:
                return await self.cells.average(vector, tensors, metric)
            if metric is not None:
                raise ConfigError("metrics are added up in cells only; leave metric out")
            self._enter(TRAINS)
            return await self._round(vector, tensors)

    async def _show_newest(self) -> None:
        """A certificate that was renewed is shown from the round after its roster was taken up; links begin anew with it."""
        if (identity := self.membership.renewed()) is not None:
            await self.transport.renew(identity)

    async def start_from(self, vector: Vector) -> bool:
        """Say what the model is before training; whether it was replaced by one that this peer knows. See `Peer.start_from`."""
        if self.cells is not None:
            return self.cells.start_from(vector)
        self.task.start_from(vector)
        return False

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
            if self.cells is not None:
                await self._show_newest()
                return await self.cells.settle(vector, tensors, wait) if rounds > 0 else []
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
                    await self._show_newest()
                    reports.append(await self._round(vector, tensors))
                    change = float(np.linalg.norm(vector - before))
                    # If nothing comes any more, there is nothing to stay for.
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
        try:
            report = await self._attempt(vector, begin)
        except OSError as error:
            if not files.is_about_disk(error):
                raise
            return await self._without_disk(error, begin)
        if self._disk:
            log.warning("node %d can write to its folder again, and goes on with its neighbours", self.id)
            self._disk = ""
        return report

    async def _without_disk(self, error: OSError, begin: float) -> Report:
        """Nothing may leave that is not on disk first, so nothing does; training goes on, and the next round tries again."""
        why = error.strerror or str(error)
        if self._runner.node is not None:
            await self._runner.call(lambda node: node.close())  # a round may have begun
        if why != self._disk:
            log.error(
                "node %d cannot write to %s: %s. It trains alone and sends nothing until it can",
                self.id,
                self.config.state,
                why,
            )
            self._disk = why
        now = time.monotonic()
        self._pace.end(now, alone=True)
        report = Report.without_disk(self.next_round, self.membership.hood.view, why, now - begin)
        self.totals.add(report)
        return report

    async def _attempt(self, vector: Vector, begin: float) -> Report:
        node = self._prepare()
        assert isinstance(node, Node)
        round_ = RoundNo(self.liveness.next_round(self._state.state.next_round, _furthest(self._in_step)))
        # On disk before the first frame is made: a peer that is killed now never begins this round again under this roster, and
        # whatever it begins has other randomness. Two shares of one round with equal masks would give away their difference.
        attempt = self._state.state.attempts
        self._state.change(attempts=attempt + 1, next_round=round_ + 1)
        self._witness.save()
        out: Vector = memory.empty(len(vector), np.float32)
        deadlines = self._pace.begin(begin)
        await self._runner.call(
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

    def _prepare(self) -> Node | CellNode:
        """The node that averages such models in this mode, under the newest roster.

        Rosters change here, between two rounds, and nowhere else: all that a round uses is of one version.
        """
        self.membership.look()
        self.membership.check()
        moved = self.membership.newer is not None
        if self.membership.newer is not None:
            # The order matters. `usable` raises where the roster and this peer's settings do not go together, and then nothing
            # has changed. `adopt` makes the roster durable. From then on no job may reach the old node, whose keys and
            # session are those of the old roster: frames that come meanwhile wait for the new one. Rounds begin anew, so what
            # neighbours said of theirs, and frames that wait to leave, mean nothing any more. The neighbours get the roster
            # last, over links that hold under it: they may be the next to need it.
            self.task.method = self.task.usable(self.membership.newer)
            self.membership.adopt()
            self._runner.use(None)
            self.liveness.adopt(self.membership.hood.view, self.roster.version)
            self._in_step = 0, self.roster.issued.timestamp()
            self.transport.forget_before(RoundNo(1 << 32))  # rounds begin anew
            self.transport.use(self.roster)
            self.transport.tell(Message.ROSTER, self.roster.raw)
        # Under the same roster and in the same mode the node goes on; it remembers frames that came early. To settle and to train
        # are different sessions with different nodes, and a peer that has settled trains if it does anything.
        if self.cells is not None:
            node: Node | CellNode = self.cells.node(moved=moved)
            if node is self._runner.node:
                return node
        else:
            if self._runner.node is not None and self.task.made_for == share_in(self.task.mode):
                return self._runner.node
            node = self.task.node(self.membership, self._state.state.next_round)
        self._runner.use(node)
        self.liveness.mine = (
            replace(self.liveness.mine, mode=self.task.mode) if self.cells is None else self.cells.status()
        )
        self.transport.greet()
        return node

    async def _run(self, round_: RoundNo, end: float) -> AggregateReady:
        """Send, receive and wait until the round has ended and all its frames are on their way. After `end` nobody is waited
        for: what neighbours do, and do not do, cannot make this last longer.
        """
        outcome: AggregateReady | None = None
        while True:
            # What a neighbour says from here on has not been looked at, and the wait below ends at once.
            since = self.reception.news
            gone = self.liveness.gone(round_)
            job = partial(advance, gone=gone, leaves=self.liveness.takes_part, clock=time.monotonic)
            out, events, deadline, joinable = await self._runner.call(job)
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
            elif (
                outcome is not None
            ):  # the last frame has left, too: neighbours need it even if this peer needs nothing more
                await self._runner.call(
                    lambda node: node.close()
                )  # its secrets and its memory are not needed any more
                self._ended = round_
                self._say(Status(round_ + 1, round_ + 1, self.task.mode))
                return outcome
            elif deadline is not None and not await self.reception.change(deadline, since):
                # Time is over, and these are connected but silent. The next turn ends the phase without them.
                for late in self.liveness.up & await self._runner.call(lambda node: node.engine.awaiting):
                    self._pace.late()
                    if self.liveness.suspect(late):
                        log.warning("node %d keeps this peer waiting; it goes on without it", late)

    def _say(self, status: Status) -> None:
        """Tell the neighbours where this peer stands, if that has changed."""
        if status != self.liveness.mine:
            self.liveness.mine = status
            self.transport.tell(Message.STATUS, status.to_bytes())
