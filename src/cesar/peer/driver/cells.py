"""CellRounds: what `average` and `settle` do where peers are in cells.

A member of a cell *offers* what it has trained: it begins a round and says so to its partners. As soon as all of them have, the cell
adds up, whatever the members' training code does at that moment. So nobody waits for a slow partner longer than it likes to:

    average      offers, and waits for the sum for about as long as its own local phases take. If the sum comes later, the next
                 call finds it, and what was trained meanwhile goes on top and into the next sum.

An offer stands until it is in a sum: minutes or hours, across cuts of links. It is made anew, in the same round or a later one, when
somebody was given up or is back, or when partners have gone on. From the moment when all have agreed a round takes as long
as its frames do; a partner that hangs then holds it up for `rounds.ceiling` seconds.

Between cells nobody waits: the newest that was heard counts, once. A cell that was in step lately has `rounds.floor` seconds. A member
whose partners keep it waiting goes on exchanging its slice with other cells, once for each call of `average`.

*Settling* has rounds of its own, numbered in the same way everywhere, so that all cells hear the same step of one another. There a cell
waits until the cells that it hears have come, or the time that the network agreed on is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import logging
import math
import statistics
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np

from cesar.base import files
from cesar.base.errors import CesarError, Reason
from cesar.base.sentences import listed
from cesar.base.types import Entropy, NodeId, RoundNo, Vector
from cesar.cell_node import CellNode
from cesar.graph.cells import CellPlace
from cesar.methods.cells import Cells
from cesar.peer.driver.best import BestFile
from cesar.peer.driver.cell_file import Arrays, CellFile, Kept
from cesar.peer.driver.liveness import Liveness, Neighbour
from cesar.peer.driver.membership import Membership
from cesar.peer.driver.node_runner import NodeRunner
from cesar.peer.driver.reception import Reception, latest_round
from cesar.peer.driver.report import Report, Totals
from cesar.peer.driver.task import Task
from cesar.peer.driver.transcript import Transcript
from cesar.peer.driver.witness import Witness
from cesar.peer.net.messages import CELL_HOLDS, CELL_SETTLES, HAS_SETTLED, TRAINS, Status
from cesar.peer.net.transport import Transport
from cesar.peer.trust.config import PeerConfig
from cesar.protocol import AggregateReady, Deadlines, Event, FrameRejected, Outbound
from cesar.protocol.cell_round import SETTLING_FIRST, SETTLING_TRIES, CellPhase, step_of
from cesar.protocol.cell_state import CellState
from cesar.protocol.wire import HEADER_BYTES, Kind

log = logging.getLogger("cesar.peer")

TRIES = 4
"""Rounds that one offer begins at the most where none of them adds up: members that were behind were given the model in them."""

_NEVER = Deadlines(announce=math.inf, relay=math.inf, share=math.inf)
_ADDING = (
    CellPhase.CATCH_UP,
    CellPhase.SCATTER,
    CellPhase.OFFER,
    CellPhase.VOTE,
    CellPhase.GATHER,
)


@dataclass(slots=True)
class Offer:
    """What this member has offered to its cell, and what has become of it.

    Attributes:
        begun: when.
        metric: of the model that is offered.
        base: the model that the training code went on with; None as long as it waits.
        outcomes: of the rounds that it has taken, the last one last.
        came: whether a round of it has ended.
        vector: the new model; None if it is the node's, which no other round has changed yet.
        thrown: what its rounds have thrown away, as far as the training code does not know of it.
        sent: bytes by category.
        disk: why nothing could be written, if so.
        error: what ended it, for the training code to know.
    """

    begun: float
    round_: RoundNo
    metric: float | None = None
    base: Vector | None = field(default=None, repr=False)
    outcomes: list[AggregateReady] = field(default_factory=list)
    came: bool = False
    vector: Vector | None = field(default=None, repr=False)
    thrown: list[Vector] = field(default_factory=list, repr=False)
    sent: dict[str, int] = field(default_factory=dict)
    disk: str = ""
    error: CesarError | None = None
    task: asyncio.Task[None] | None = None
    seconds: float = 0.0

    @property
    def over(self) -> bool:
        return self.task is not None and self.task.done()

    @property
    def summed(self) -> bool:
        """Whether it is in a sum, or part of it."""
        return any(outcome.cell is not None and outcome.cell.summed for outcome in self.outcomes)

    def ended(self, state: CellState, thrown: Vector | None) -> None:
        """A round of it has ended with this state, and has thrown that away."""
        # First: the task that sees that something was thrown away takes this model. It may do so while the next round runs.
        self.vector = state.common + state.unsent if self.thrown or thrown is not None else None
        self.came = True
        if thrown is not None:
            self.thrown.append(thrown)

    def lost(self, trained: Vector | None) -> Vector | None:
        """What was thrown away, with what was trained meanwhile: that was trained on a model that the cell does not hold."""
        parts = [*self.thrown]
        if parts and trained is not None:
            parts.append(trained)
        return np.sum(parts, axis=0, dtype=np.float32) if parts else None


async def _written(write: Callable[..., None], *content: object) -> None:
    """Write on a thread, to the end even if the caller is cancelled: a thread goes on by itself, and what it writes must not come
    after something newer, or into a folder that is gone.
    """
    writing = asyncio.ensure_future(asyncio.to_thread(write, *content))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        await asyncio.wait({writing})
        raise


class Snapshot(NamedTuple):
    """What is kept of one moment; see `Kept`. `number` counts them."""

    number: int
    arrays: Arrays
    trained: Vector | None
    thrown: float
    undo: tuple[int, ...]


class Step(NamedTuple):
    """What a node wants after a step; its state must be durable before `out` leaves if it is `unsaved`."""

    out: Outbound | None
    events: list[Event]
    phase: CellPhase | None
    awaiting: frozenset[NodeId]
    deadline: float
    unsaved: bool


class CellRounds:
    """See the module.

    Args:
        prepare: the node for the mode that `task` is in, under the newest roster.
        say: tells the neighbours where this peer stands.
        entropy: attempt counter → fresh randomness.
        samples: how many this site trains on, where members count by that.
        best: keeps the best common model, where members hand in a metric.
    """

    def __init__(
        self,
        config: PeerConfig,
        *,
        task: Task,
        membership: Membership,
        liveness: Liveness,
        reception: Reception,
        transport: Transport,
        runner: NodeRunner,
        transcript: Transcript | None,
        totals: Totals,
        witness: Witness,
        prepare: Callable[[], object],
        say: Callable[[Status], None],
        entropy: Callable[[int], Entropy],
        samples: int | None,
        file: CellFile,
        best: BestFile,
    ) -> None:
        self._config, self._task, self._membership = config, task, membership
        self._liveness, self._reception, self._transport = liveness, reception, transport
        self._runner, self._transcript, self._totals, self._witness = runner, transcript, totals, witness
        self._prepare, self._say, self._entropy, self._file = prepare, say, entropy, file
        self._samples, self._best = samples, best
        self._offer: Offer | None = None
        self._node: CellNode | None = None
        self._attempts = self._next_round = self._next_settling = self._durable = 0
        self._writing = asyncio.Lock()
        self._snapshots = self._newest = 0
        self._saving: asyncio.Task[None] | None = None
        self._jobs: set[asyncio.Task[None]] = set()
        self._trained: Vector | None = None  # what was trained since the offer, as of the last call
        self._thrown = 0.0  # the length of what was thrown away, for the next report
        self._telling = 0.0  # of what is in reports that the training code does not have yet
        self._kept: Kept | None = None
        self._started = False  # training goes on from what was kept
        self._first_round = 0
        self._returned: float | None = None  # when the training code last went on
        self._phases: deque[float] = deque(maxlen=5)
        self._ended = time.monotonic()
        self._gone: dict[NodeId, float] = {}  # since when
        self._missed: dict[NodeId, int] = {}  # calls of `average` since then
        self._spoken: dict[NodeId, tuple[int, int, int]] = {}
        self._since, self._watched = 0.0, (CellPhase.DONE, frozenset[NodeId]())
        self._cut: set[NodeId] = set()
        self._limit = math.inf
        self._told: dict[tuple[NodeId, int], bytes] = {}
        self._disk = ""
        self._stranded = False
        self.trace: list[tuple[float, CellPhase, frozenset[NodeId]]] | None = None
        """When which phase began to wait for whom, for those who want to know (`ops.canary`)."""

    # ── the node ────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _method(self) -> Cells:
        cells = self._task.method.cells
        assert cells is not None, "only a network of cells has this driver"
        return cells

    @property
    def _place(self) -> CellPlace:
        plan = self._membership.roster.plan
        assert plan is not None, "only rosters with cells are taken up"
        return plan.place(self._membership.hood.node)

    @property
    def next_round(self) -> int:
        """The round of this cell that comes next, as far as this peer knows."""
        return self._next_round

    def durable_round(self) -> int:
        """The round that comes next, as the folder knows it; nobody is told of a later one, except in frames."""
        return self._durable

    def distrust(self) -> None:
        """The folder was set back: what is unsent in it may be in a sum already, and is in no other."""
        if self._node is not None and not self._node.fresh:
            job = self._runner.call(lambda node: node.distrust())
            self._jobs.add(task := asyncio.create_task(job))
            task.add_done_callback(self._jobs.discard)
        elif self._kept is not None:
            kept = self._kept
            if kept.trained is not None:  # it is no newer
                kept.state.unsent, kept.trained = kept.state.unsent + kept.trained, None
            kept.state.distrust()

    def recall(self) -> None:
        """Go on with what another process has kept.

        Raises:
            ConfigError: it is damaged.
        """
        self._kept = kept = self._file.load()
        if kept is not None:
            self._attempts, self._next_round = kept.attempts, kept.next_round
            self._next_settling, self._thrown = kept.next_settling, kept.thrown
        self._durable = self._next_round
        self._first_round = self._next_round

    def node(self, *, moved: bool) -> CellNode:
        """The node that trains, or settles; a new one has what the one before it knew.

        Args:
            moved: the roster is a newer one; its cells may be others.
        """
        method, old = self._method, self._node
        assert self._task.tensors is not None
        settles = self._task.mode == CELL_SETTLES
        if old is not None and not moved and old.settles == settles:
            return old
        session = self._task.session(self._membership.roster, TRAINS)
        state = None if old is None or old.fresh else old.state
        if state is None and self._kept is not None:
            state = self._kept.state
        if moved:
            self._next_round = self._first_round = self._next_settling = self._durable = 0
            if state is not None:
                state.move()
        node = CellNode(
            self._membership.hood.node,
            method.settled() if settles else method,
            sum(self._task.tensors),
            session=session,
            keys=self._membership.keys(session),
            first_round=SETTLING_FIRST if settles else 0,
            tensors=self._task.tensors,
            state=state,
            samples=self._samples,
            own_pace=True,
            hands_out=False,
            latest=self._latest,
            scale_bits=self._config.tables.rounds.scale_bits or method.scale_bits,
        )
        if old is not None and not moved:
            node.inherit(old)
        self._node = node
        return node

    # ── average ─────────────────────────────────────────────────────────────────────────────────────────

    def start_from(self, vector: Vector) -> bool:
        """The model before training. If this peer has one already, that is put into `vector`; says whether."""
        known = self._held()
        if known is None:
            self._task.reference = vector.copy()
            return False
        vector[:], self._started = known, True
        return True

    def _held(self) -> Vector | None:
        """The model that training goes on from, if this peer has one."""
        if self._offer is not None and self._offer.base is not None:
            return self._offer.base
        if self._node is not None and not self._node.fresh:
            return self._node.state.common + self._node.state.unsent
        if self._kept is not None:
            found = self._kept.state.common + self._kept.state.unsent
            return found if self._kept.trained is None else found + self._kept.trained
        return None

    async def average(
        self, vector: Vector, tensors: tuple[int, ...] | None, metric: float | None = None
    ) -> Report:
        """Offer what was trained, and put the new model into `vector`; see the module.

        The metric goes with the model: where an earlier offer still stands, or is taken in first, this one's is not handed in.
        """
        begin = time.monotonic()
        self._method.check_metric(metric)
        await self._enter(vector, tensors, TRAINS)
        if self._returned is not None:
            self._phases.append(begin - self._returned)
        for node in self._place.view:
            self._missed[node] = self._missed.get(node, 0) + 1 if self._is_gone(node, begin) else 0
        offer = self._offer
        landed, came = None, False
        if offer is not None and not offer.over:
            await self._wait(offer, self._budget(begin))
            came = offer.over
        if offer is not None and offer.over and offer.base is not None:
            # Partners that were waited for train now, so an offer would wait, too: what was trained since goes with the next one.
            if came or np.array_equal(vector, offer.base):
                report = await self._end(offer, vector, begin)
                self._returned = time.monotonic()
                return report
            self._land(vector)
            landed = self._report(offer, offer.seconds)
            self._totals.add(landed)
            self._log(landed)
        elif offer is not None and offer.over:
            self._land(vector)
        if offer is None or offer.over:
            offer = await self._begin_offer(vector, metric)
            try:
                await self._wait(offer, self._budget(begin))
                await self._listen(offer)
            except asyncio.CancelledError:
                offer.base = vector.copy()  # the offer stands, and what is trained from here on is not in it
                raise
        else:
            await self._listen(offer)
        report = await self._end(offer, vector, begin, landed)
        self._returned = time.monotonic()
        self._tell()
        return report

    async def _enter(self, vector: Vector, tensors: tuple[int, ...] | None, mode: int) -> None:
        """Prepare for a mode: take up a newer roster, which ends an offer under the old one."""
        self._task.tensors = self._task.enter(vector, tensors)
        self._membership.look()
        offer = self._offer
        if self._membership.newer is not None and offer is not None:
            if not offer.over and self._node is not None and self._node.phase is CellPhase.AGREE:
                await self._withdraw(offer)
            elif not offer.over:
                await self._wait(offer, math.inf)
            self._land(vector)
        changed, self._task.mode = mode != self._task.mode, mode
        first = self._node is None
        self._prepare()
        if first and self._kept is not None:
            self._resume(vector)
        if changed:
            self._tell()

    def _resume(self, vector: Vector) -> None:
        """The first model after a restart: what was trained goes on from what was kept, or was not trained at all."""
        kept, node = self._kept, self._node
        assert kept is not None
        assert node is not None
        held = self._held_after_restart(kept)
        self._kept = None
        if not self._started:
            log.warning(
                "node %d goes on with the model that its cell had; peer.start_from(model) before training puts that into the model",
                self._membership.hood.node,
            )
            vector[:] = held

    @staticmethod
    def _held_after_restart(kept: Kept) -> Vector:
        found: Vector = kept.state.common + kept.state.unsent
        return found if kept.trained is None else found + kept.trained

    def _land(self, vector: Vector) -> None:
        """Take in what an offer has brought, under what was trained since."""
        offer = self._offer
        assert offer is not None
        self._start_over(offer, vector)
        self._offer, self._trained = None, None
        if not offer.came:
            return  # nothing came of it, and all is still in the vector
        assert self._node is not None, "a round has ended"
        if offer.base is not None:
            self._trained = vector - offer.base
        if offer.vector is not None:
            vector[:] = offer.vector
        else:
            self._node.state.put_model(vector)
        if self._trained is not None:
            np.add(vector, self._trained, out=vector)

    def _start_over(self, offer: Offer, vector: Vector) -> None:
        """If something was thrown away, have training go on from what is left, and count it for the next report.

        At once, although the offer may stand for hours: whatever is trained on the old model until then is thrown away as well.
        """
        lost = offer.lost(None if offer.base is None else vector - offer.base)
        if lost is not None:
            assert offer.vector is not None, "a round that has ended has a model"
            vector[:] = offer.vector
            offer.base, self._trained = vector.copy(), None
            self._thrown = math.hypot(self._thrown, float(np.linalg.norm(lost)))
            offer.thrown.clear()

    async def _begin_offer(self, vector: Vector, metric: float | None = None) -> Offer:
        round_ = await self._begin(vector, metric)
        self._offer = offer = Offer(time.monotonic(), round_, metric)
        offer.task = asyncio.create_task(self._carry(offer), name=f"offer {round_}")
        return offer

    async def _wait(self, offer: Offer, until: float) -> None:
        """Until an offer is in a sum, or nobody thinks that it will be by then."""
        assert offer.task is not None
        least = time.monotonic() + 0.05
        while True:
            since = self._reception.news
            end = min(until, self._hopeless_at(until, least))
            if offer.over or end <= time.monotonic():
                return
            waiting = asyncio.create_task(self._reception.change(end, since))
            await asyncio.wait({offer.task, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                waiting.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await waiting

    async def _listen(self, offer: Offer) -> None:
        """The sum has not come: have the cell go on exchanging models with other cells."""
        if not offer.over:
            await self._runner.call(CellNode.listen)
            self._reception.wake()

    def _budget(self, now: float) -> float:
        """Until when to wait for the sum: as long as a local phase takes is not too long."""
        usual = statistics.median(self._phases) if self._phases else 0.0
        return now + max(self._config.tables.rounds.floor, usual)

    def _hopeless_at(self, until: float, least: float) -> float:
        """When waiting for the sum makes no sense any more: at once, if a partner will not be there in time."""
        node = self._node
        if node is None or node.phase is not CellPhase.AGREE:
            return max(until, time.monotonic() + 1.0)  # it is being added up
        for partner in node.awaiting:
            known = self._known(partner)
            phase = known.status.phase / 1000
            if known.up and phase and self._ended + phase > until:
                return least
            if self._is_done(known):
                return least
        return until

    async def _end(self, offer: Offer, vector: Vector, begin: float, landed: Report | None = None) -> Report:
        """What `average` returns, and what is kept if the sum has not come yet."""
        over = offer.over  # nothing may come between this and what follows from it
        if over:
            self._land(vector)
        else:
            self._start_over(offer, vector)
        report = self._report(offer, time.monotonic() - begin)
        if landed is not None:
            report = dataclasses.replace(
                report,
                landed=landed.round if landed.summed else None,
                metric=landed.metric if report.metric is None else report.metric,
                discarded=math.hypot(report.discarded, landed.discarded),
            )
        self._telling = 0.0  # nothing comes between what is saved now and the training code
        if over:
            if offer.summed:  # a peer that is killed while it trains goes on from here
                self._saving = asyncio.create_task(self._keep_quietly())
        else:
            if offer.base is None:
                offer.base = vector.copy()
            else:
                self._trained = vector - offer.base
            try:
                await self._keep()
            except OSError as error:
                if not files.is_about_disk(error):
                    raise
                self._complain(error)
                report = dataclasses.replace(report, disk=error.strerror or str(error))
        self._totals.add(report)
        if offer.error is not None:
            raise offer.error
        self._log(report)
        return report

    def _snapshot(self, copy: bool, node: object) -> Snapshot:
        """What has to be kept, all of one moment; to be called where the node works. Without a copy the arrays are the node's own.

        What was thrown away and is in no report yet is reported after a crash. What was trained beside it goes with it: it would be
        in the next sum alone.
        """
        assert isinstance(node, CellNode)
        self._snapshots += 1
        offer, trained, thrown = self._offer, self._trained, math.hypot(self._thrown, self._telling)
        lost = None if offer is None else offer.lost(trained)
        if lost is not None:
            trained = None
        if node.state.thrown is not None:
            lost = node.state.thrown if lost is None else lost + node.state.thrown
        if lost is not None:
            thrown = math.hypot(thrown, float(np.linalg.norm(lost)))
        state = node.state
        undo = tuple(number for number, (rows, _) in state.undo.items() if rows is None)
        return Snapshot(self._snapshots, state.to_arrays(copy=copy), trained, thrown, undo)

    async def _keep(self) -> None:
        """Make durable what this member must not forget. The node stands still meanwhile, so that nothing has to be copied."""
        async with self._runner.held():
            await self._save(await self._runner.call(partial(self._snapshot, False)))
            node = self._node
            if node is not None and not self._runner.is_light and not node.state.undo:
                node.state.archive = self._file.archive()  # a large model is not held twice

    async def _keep_beside(self) -> None:
        """The same while the next round begins: a copy of a small model costs less than to wait for the disk."""
        if self._runner.is_light:
            await self._save(await self._runner.call(partial(self._snapshot, True)))
        else:
            await self._keep()

    async def _keep_quietly(self) -> None:
        try:
            await self._keep_beside()
        except OSError as error:
            self._complain(error)

    async def _save(self, made: Snapshot) -> None:
        async with self._writing:
            if made.number < self._newest:
                return  # something newer is there already, and says what has left since
            counters = (self._attempts, self._next_round, self._next_settling)
            await _written(self._file.save, made.arrays, made.trained, counters, made.thrown, made.undo)
            self._newest = made.number
        self._durable = max(self._durable, counters[1])
        if self._disk:
            log.warning(
                "node %d can write to its folder again, and goes on with its cell", self._membership.hood.node
            )
            self._disk = ""

    def _complain(self, error: OSError) -> str:
        why = error.strerror or str(error)
        if why != self._disk:
            log.error(
                "node %d cannot write to %s: %s. It trains alone and hands nothing in until it can",
                self._membership.hood.node,
                self._config.state,
                why,
            )
            self._disk = why
        return why

    # ── one offer ───────────────────────────────────────────────────────────────────────────────────────

    async def _carry(self, offer: Offer) -> None:
        """Rounds until the offer is in a sum."""
        try:
            for attempt in range(TRIES):
                if attempt:
                    await self._begin(None, offer.metric)
                outcome = await self._round(offer)
                offer.outcomes.append(outcome)
                await self._keep_best(outcome)
                self._complain_of_other_models(outcome)
                if outcome.cell is None or outcome.cell.summed or outcome.fault is not None:
                    break
        except OSError as error:
            if not files.is_about_disk(error):
                raise
            offer.disk = self._complain(error)
            await self._abandon(offer)
        except CesarError as error:
            offer.error = error
            await self._abandon(offer)
        finally:
            self._ended = time.monotonic()
            offer.seconds = self._ended - offer.begun

    async def _keep_best(self, outcome: AggregateReady) -> None:
        """Keep the common model if its metric is the best so far. Nothing has begun since it came about."""
        node, metric = self._node, None if outcome.cell is None else outcome.cell.metric
        if metric is None or node is None or not self._best.beats(metric, self._method.best):
            return
        model, round_ = node.state.common.copy(), node.state.claim.round_
        await _written(self._best.keep, model, metric, round_, self._membership.roster.version)

    def _complain_of_other_models(self, outcome: AggregateReady) -> None:
        """Say it once: a cell whose members begin with different models never adds up."""
        cell = outcome.cell
        stranded = cell is not None and cell.stranded
        if stranded and not self._stranded:
            log.error(
                "the members of this cell hold different models, and too few hold the same for the others to take it: the cell cannot "
                "add up. Begin with the same model at every site (the same seed or the same file), and call peer.start_from(model)"
            )
        self._stranded = stranded

    async def _withdraw(self, offer: Offer) -> None:
        """Nobody has handed anything in yet: forget the round."""
        assert offer.task is not None
        offer.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await offer.task
        await self._abandon(offer)

    async def _abandon(self, offer: Offer) -> None:
        """End a round without a result. It may have thrown something away: training goes on without that."""

        def end(node: object) -> None:
            assert isinstance(node, CellNode)
            node.close()
            if not node.fresh:
                offer.ended(node.state, node.state.take_thrown())

        await self._runner.call(end)

    def _number(self) -> RoundNo:
        """The round to begin: the next one, or where partners are already."""
        settles = self._task.mode == CELL_SETTLES
        own = SETTLING_FIRST + self._next_settling if settles else self._next_round
        return RoundNo(max(own, self._furthest(settles)))

    def _latest(self) -> int:
        """The last round that can have come under this roster; partners that name later ones are not followed."""
        return min(latest_round(self._membership.roster.issued.timestamp()), SETTLING_FIRST - 1)

    def _furthest(self, settles: bool) -> int:
        """The latest round in which a partner is."""
        node, furthest = self._node, 0
        for partner in self._place.view:
            known = self._known(partner)
            if self._here(partner) and not settles:  # under another roster it counts otherwise
                furthest = max(furthest, known.status.current - 1)  # it says which one comes next
            seen = -1 if node is None else node.seen.get(partner, -1)
            if (seen >= SETTLING_FIRST) == settles:
                furthest = max(furthest, seen)
        return furthest

    async def _begin(self, vector: Vector | None, metric: float | None = None) -> RoundNo:
        """Begin a round, or begin it anew; with None, with what this member has not handed in."""
        round_, attempt = self._number(), self._attempts
        self._attempts += 1
        if self._task.mode == CELL_SETTLES:
            self._next_settling = round_ - SETTLING_FIRST + 1
        else:
            self._next_round = round_ + 1
        self._leave_out()
        place, reference = self._place, self._task.reference

        def begin(node: object) -> None:
            assert isinstance(node, CellNode)
            node.begin_round(
                round_,
                place,
                vector,
                reference=reference,
                metric=metric,
                entropy=self._entropy(attempt),
                deadlines=_NEVER,
            )
            if vector is not None:
                self._trained = None  # it is in the offer, and is kept with it

        await self._runner.call(begin)
        self._transport.forget_before(RoundNo(min(round_, SETTLING_FIRST)))
        # Nothing leaves for a partner that is not there for this; it is told as soon as it is (`_repeat`).
        self._spoken = {node: self._key(node) for node in self._place.view if self._here(node)}
        self._watched, self._cut = (CellPhase.DONE, frozenset()), set()
        return round_

    def _leave_out(self) -> None:
        """Give up partners that are gone for long, or have nothing to hand in any more, and remember those who are back."""
        node = self._node
        if node is None or node.fresh:
            return
        absent, patience = node.state.absent, self._method.patience
        now, minutes = time.monotonic(), self._config.tables.rounds.patience_minutes
        for partner in self._place.view:
            known = self._known(partner)
            gone = self._is_gone(partner, now) and now - self._gone[partner] >= 60 * minutes
            done = known.up and self._is_done(known)
            if done or (gone and self._missed.get(partner, 0) >= patience):
                absent[partner] = max(patience, absent.get(partner, 0))
            elif known.up and node.round is not None and partner in node.round.returned:
                absent[partner] = 0

    def _is_done(self, known: Neighbour) -> bool:
        """Whether a partner has nothing to hand in any more: a sum with it would be one without it."""
        return self._task.mode != CELL_SETTLES and known.status.mode in (CELL_SETTLES, HAS_SETTLED)

    def _is_gone(self, node: NodeId, now: float) -> bool:
        if self._here(node):
            self._gone.pop(node, None)
            return False
        self._gone.setdefault(node, now)
        return True

    def _known(self, node: NodeId) -> Neighbour:
        return self._liveness.neighbours.get(node) or Neighbour()

    def _here(self, node: NodeId) -> bool:
        """Whether frames can be sent to a neighbour: it is connected, for the same purpose, under the same roster."""
        known = self._known(node)
        return known.there_for(self._liveness.purpose) and known.roster == self._membership.roster.version

    def _key(self, node: NodeId) -> tuple[int, int, int]:
        """What must be as it was for a partner to have got what this member said: its link, its mode, its roster."""
        known = self._known(node)
        return known.conversations, known.status.mode, known.roster

    def _must_begin_anew(self, node: CellNode) -> bool:
        """Whether this member has to agree to something else: others have gone on, are back, or were given up."""
        running = node.round
        if running is None or running.phase is not CellPhase.AGREE:
            return False
        own = (
            max(
                self._next_settling + SETTLING_FIRST if self._task.mode == CELL_SETTLES else self._next_round,
                1,
            )
            - 1
        )
        if self._furthest(self._task.mode == CELL_SETTLES) > own or running.returned:
            return True
        self._leave_out()
        return node.state.given_up(self._place, self._method.patience) != running.given_up

    async def _round(self, offer: Offer | None) -> AggregateReady:
        """Send, receive and wait until the round has ended and all its frames are on their way."""
        outcome: AggregateReady | None = None
        while True:
            # What a neighbour says from here on has not been looked at, and the wait below ends at once.
            since = self._reception.news
            node = self._node
            assert node is not None
            if self._must_begin_anew(node):
                if self._next_settling and self._task.mode == CELL_SETTLES:
                    self._next_settling -= 1
                elif self._task.mode != CELL_SETTLES:
                    self._next_round -= 1
                await self._begin(None, None if offer is None else offer.metric)
            step = await self._runner.call(partial(self._advance, offer))
            if step.unsaved:
                await self._keep()
                node.saved()  # only now, and only here: what another save has written may be older
            for event in step.events:
                if isinstance(event, FrameRejected):
                    self._reception.refused(event.error)
                    if event.error.reason is Reason.FAULT:
                        self._transport.cut_off(event.error.peer)
                else:
                    outcome = event
            if step.out is not None:
                await self._send(step.out, offer)
                del step
            elif outcome is not None:
                self._count(offer, node)
                self._bear_witness(outcome)
                await self._runner.call(lambda node: node.close())
                return outcome
            else:
                await self._reception.change(step.deadline, since)

    def _bear_witness(self, outcome: AggregateReady) -> None:
        """Where the own slice was added up all members have handed in, and their folders say so: they can be held to it later."""
        cell = outcome.cell
        if outcome.round_ < SETTLING_FIRST and cell is not None and self._membership.hood.node in cell.summed:
            version = self._membership.roster.version
            for member in self._place.view:
                if member in cell.members:
                    self._witness.said(member, version, outcome.round_ + 1)
            self._witness.save()

    def _count(self, offer: Offer | None, node: CellNode) -> None:
        if offer is not None:
            for category, count in node.ledger.sent.items():
                offer.sent[category] = offer.sent.get(category, 0) + count

    async def _send(self, out: Outbound, offer: Offer | None) -> None:
        payload, round_ = out.frame.payload, self._round_of(out)
        if self._transcript is not None:
            self._transcript.sent(out.recipients, payload)
        if out.frame.kind is Kind.CELL_EXCHANGE:
            # A cell that stands still speaks again and again in one round, also to those who do not read.
            self._transport.forget_like(bytes(payload[:HEADER_BYTES]), out.recipients)
            if round_ >= SETTLING_FIRST:
                for to in out.recipients:
                    self._told[to, round_] = bytes(payload)
        await self._transport.send(
            payload, out.recipients, round_, time.monotonic() + self._config.tables.rounds.ceiling
        )

    def _round_of(self, _: Outbound) -> RoundNo:
        settles = self._task.mode == CELL_SETTLES
        return RoundNo((SETTLING_FIRST + self._next_settling if settles else self._next_round) - 1)

    def _advance(self, offer: Offer | None, node: object) -> Step:
        """End what is not worth waiting for, repeat what was lost, and make the next frame."""
        assert isinstance(node, CellNode)
        now = time.monotonic()
        deadline = now + 60.0
        while (phase := node.phase) is not None and phase is not CellPhase.DONE:
            awaiting = node.awaiting
            if (phase, awaiting) != self._watched:
                if phase is not self._watched[0]:
                    self._cut = set()
                self._since, self._watched = now, (phase, awaiting)
                if self.trace is not None:
                    self.trace.append((now, phase, awaiting))
            if phase is CellPhase.AGREE:
                self._repeat(node)
                break
            deadline = self._patience(node, phase, awaiting, now)
            if deadline > now:
                break
            if phase in _ADDING:
                for late in sorted(awaiting):
                    log.warning("node %d keeps this cell waiting; it goes on without it", late)
            node.skip()
        out = next(node.outbound(lambda to, frame: self._leaves(node, to, frame.kind)), None)
        events: list[Event] = []
        while (event := node.next_event()) is not None:
            events.append(event)
            if offer is not None and isinstance(event, AggregateReady):
                offer.ended(node.state, None if event.cell is None else event.cell.discarded)
        return Step(out, events, node.phase, node.awaiting, deadline, node.unsaved)

    def _leaves(self, node: CellNode, to: NodeId, kind: Kind) -> bool:
        return self._here(to) or (kind is Kind.CELL_EXCHANGE and self._task.mode == CELL_SETTLES)

    def _repeat(self, node: CellNode) -> None:
        """Say what this member agrees to once more to partners whose link was down, or who were not in this round's mode."""
        for partner in self._place.view:
            key = self._key(partner)
            if key != self._spoken.get(partner) and self._here(partner):
                self._spoken[partner] = key
                if node.round is not None:
                    node.round.say_again(partner)

    def _patience(self, node: CellNode, phase: CellPhase, awaiting: frozenset[NodeId], now: float) -> float:
        """Until when to wait for these in a phase after all have agreed."""
        rounds, settles = self._config.tables.rounds, self._task.mode == CELL_SETTLES
        if phase is CellPhase.EXCHANGE:
            if settles:
                return self._limit
            worth = [other for other in awaiting if self._here(other) and self._in_step(node, other)]
            return self._since + rounds.floor if worth else now
        here = [other for other in awaiting if self._here(other) and other not in self._cut]
        for other in awaiting:
            if not self._here(other) or self._key(other) != self._spoken.get(other):
                self._cut.add(other)  # what it sent may be lost
        if not here:
            return self._since + min(rounds.floor, rounds.ceiling)
        return self._limit if settles and math.isfinite(self._limit) else self._since + rounds.ceiling

    def _in_step(self, node: CellNode, keeper: NodeId) -> bool:
        """Whether another cell was where this one was when it was last heard."""
        period, round_ = self._place.plan.graph.period, self._next_round - 1
        if self._known(keeper).status.mode != TRAINS:
            return False
        seen = node.seen.get(keeper)
        return round_ < self._first_round + period if seen is None else seen >= round_ - period

    # ── what is told ────────────────────────────────────────────────────────────────────────────────────

    def status(self) -> Status:
        """Where this peer stands."""
        usual = statistics.median(self._phases) if self._phases else 0.0
        before = self._liveness.mine.phase / 1000
        if before and abs(usual - before) <= max(0.25 * before, 1.0):
            usual = before  # not worth a message
        return Status(self._durable, self._durable, self._task.mode, min(round(1000 * usual), (1 << 32) - 1))

    def _tell(self) -> None:
        mine, before = self.status(), self._liveness.mine
        if (mine.mode, mine.phase) != (before.mode, before.phase):
            self._say(mine)
        else:
            self._liveness.mine = mine  # partners see the round in frames

    def _report(self, offer: Offer, seconds: float) -> Report:
        node, view = self._node, self._place.view
        assert node is not None
        last = offer.outcomes[-1] if offer.outcomes else None
        cell = None if last is None else last.cell
        members = () if cell is None or not cell.summed else cell.members
        missing = tuple(sorted(node.awaiting)) if not offer.over else (() if cell is None else cell.missing)
        discarded, self._thrown = self._thrown, 0.0
        self._telling = math.hypot(self._telling, discarded)
        unsent = 0.0 if node.fresh else float(np.linalg.norm(node.state.unsent))
        reports = [outcome.cell for outcome in offer.outcomes if outcome.cell is not None]
        accused = {
            node for report in reports for keeper, others in report.disputed for node in (keeper, *others)
        }
        accused |= {node for report in reports for pair in report.unequal for node in pair}
        return Report(
            round=offer.round_ if last is None else last.round_,
            contributors=tuple(n for n in members if n != self._membership.hood.node),
            missing=missing
            if offer.over or node.phase is CellPhase.AGREE
            else tuple(n for n in view if n in node.awaiting),
            shared=node.ledger.parameters / max(1, node.size) if offer.over else 0.0,
            lost=0 if cell is None else cell.unsure,
            bytes={**dict.fromkeys(node.ledger.sent, 0), **offer.sent},
            seconds=seconds,
            fault=""
            if last is None or last.fault is None
            else type(last.fault.__cause__ or last.fault).__name__,
            disk=offer.disk,
            summed=offer.over and offer.summed,
            heard={} if cell is None else dict(zip(cell.heard, cell.ages, strict=True)),
            unsent=unsent,
            discarded=discarded,
            accused=tuple(sorted(accused)),
            metric=next((r.metric for r in reversed(reports) if r.metric is not None), None),
        )

    def _log(self, report: Report) -> None:
        if report.summed:
            what = f"{len(report.contributors) + 1} members, heard {len(report.heard)} cell(s)"
        else:
            whom = f"node(s) {listed(map(str, report.missing))}" if report.missing else "nobody"
            what = f"not added up yet, waits for {whom}"
        settles = report.round >= SETTLING_FIRST
        log.info(
            "%s %d: %s, %d bytes, %.2f s",
            "settling, step" if settles else "round",
            step_of(report.round),
            what,
            report.total_bytes,
            report.seconds,
            extra={"peer_id": self._membership.hood.node, "report": dataclasses.asdict(report)},
        )

    # ── settle ──────────────────────────────────────────────────────────────────────────────────────────

    async def settle(
        self, vector: Vector, tensors: tuple[int, ...] | None, wait: float | None
    ) -> list[Report]:
        """Hand in what is left, then average the cells' models until all are alike."""
        begin = time.monotonic()
        minutes = self._config.tables.rounds.settle_minutes
        self._limit = begin + (60 * minutes if wait is None else wait)
        await self._enter(vector, tensors, CELL_HOLDS)
        reports = [report] if (report := await self._last_offer(vector)) is not None else []
        await self._enter(vector, tensors, CELL_SETTLES)
        told = asyncio.create_task(self._tell_again(), name="tell again")
        try:
            reports += await self._steps(begin)
            await self._linger()
        finally:
            told.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await told
        assert self._node is not None
        vector[:] = self._node.state.common
        # Every other answer of a keeper is compared in the next agreement. There is none after the last, so people have to.
        mark = await asyncio.to_thread(lambda: hashlib.sha256(vector.astype("<f4").tobytes()).hexdigest())
        log.info(
            "node %d has settled. SHA-256 of its model: %s, the same at every site of its cell unless somebody lies",
            self._membership.hood.node,
            mark,
        )
        self._limit, self._returned, self._telling = math.inf, None, 0.0
        self._task.mode = HAS_SETTLED
        self._tell()
        return reports

    async def _last_offer(self, vector: Vector) -> Report | None:
        """Have what was trained last added up, if it is not yet; None if there is nothing."""
        begin, offer = time.monotonic(), self._offer
        node = self._node
        assert node is not None
        if offer is not None and not offer.over:
            if node.phase is CellPhase.AGREE:
                await self._withdraw(offer)
            else:
                await self._wait(offer, self._limit)
        if offer is not None:
            dirty = not offer.summed
            self._land(vector)
        else:
            dirty = node.fresh
        if not node.fresh and not dirty:
            dirty = not np.array_equal(vector, node.state.common + node.state.unsent)
        if not dirty:
            return None
        offer = await self._begin_offer(vector)
        await self._wait(offer, self._limit)
        if not offer.over and node.phase is CellPhase.AGREE:
            await self._withdraw(offer)
        elif not offer.over:
            await self._wait(offer, math.inf)
        self._land(vector)
        report = self._report(offer, time.monotonic() - begin)
        self._totals.add(report)
        self._log(report)
        if not report.summed:
            log.warning("what this site trained last is in no sum: its cell could not add up in time")
        return report

    async def _steps(self, begin: float) -> list[Report]:
        """All steps of a pass; they are the same everywhere."""
        steps = max(1, self._place.plan.graph.settling_rounds)
        reports: list[Report] = []
        whole = True
        step = max(-(-self._next_settling // SETTLING_TRIES), step_of(self._number()))
        last = (step // steps + 1) * steps
        while step < last:
            report, done = await self._step(step, begin)
            whole = whole and done
            step += 1
            final = report
            if step >= last:
                final = dataclasses.replace(report, settled=whole, present=self._present())
            self._totals.add(final)
            self._log(final)
            reports.append(final)
        return reports

    def _present(self) -> float | None:
        """The share of all cells that are in the own slice of the final model."""
        node = self._node
        if not self._method.roll_call or node is None or node.present is None:
            return None
        own = frozenset((self._place.number,))
        return len(node.present | own) / len(self._place.plan.cells)

    async def _step(self, step: int, begin: float) -> tuple[Report, bool]:
        """One step; whether its cell has done it whole, and heard whom it hears."""
        expected = {heard.cell for heard in self._place.plan.graph.heard(self._place.number, step)}
        heard: set[int] = set()
        done = False
        self._next_settling = max(self._next_settling, step * SETTLING_TRIES)
        while True:
            round_ = await self._begin(None)
            offer = Offer(time.monotonic(), round_)
            job = asyncio.create_task(self._round(offer), name=f"settle {round_}")
            offer.task = job  # type: ignore[assignment]
            await asyncio.wait({job}, timeout=max(0.0, self._limit - time.monotonic()))
            if not job.done() and self._node is not None and self._node.phase is CellPhase.AGREE:
                await self._withdraw(offer)
                break
            outcome = await job
            offer.outcomes.append(outcome)
            heard |= set(() if outcome.cell is None else outcome.cell.heard)
            self._count_lost(offer)
            assert self._node is not None
            claim = self._node.state.claim
            done = bool(claim.digests) and all(claim.digests) and step_of(claim.round_) >= step
            if done or step_of(self._number()) > step or time.monotonic() > self._limit:
                break
        self._count_lost(offer)
        return self._report(offer, time.monotonic() - begin), done and expected <= heard

    def _count_lost(self, offer: Offer) -> None:
        """Count what a round in which nobody trains has thrown away."""
        if (lost := offer.lost(None)) is not None:
            self._thrown = math.hypot(self._thrown, float(np.linalg.norm(lost)))
            offer.thrown.clear()

    async def _tell_again(self) -> None:
        """What hearing cells were told while they were away."""
        known = {node: self._known(node).conversations for node in self._liveness.neighbours}
        while True:
            for node in tuple(self._liveness.neighbours):
                count = self._known(node).conversations
                if count != known.get(node) and self._here(node):
                    known[node] = count
                    for (to, round_), payload in tuple(self._told.items()):
                        if to == node:
                            await self._transport.send(
                                payload, (to,), RoundNo(round_), time.monotonic() + 1.0
                            )
            await asyncio.sleep(0.1)

    async def _linger(self) -> None:
        """Others may lack the last of what this peer tells: partners, and members of cells that hear this one. Answer them until they
        have it. A link that is down just now has `rounds.floor` seconds to come back.
        """
        rounds, begin = self._config.tables.rounds, time.monotonic()
        end = min(self._limit, begin + rounds.ceiling)
        self._task.mode = HAS_SETTLED
        self._tell()
        self._task.mode = CELL_SETTLES
        while time.monotonic() < end:
            since = self._reception.news
            assert self._node is not None
            seen = max((self._node.seen.get(partner, -1) for partner in self._place.view), default=-1)
            if seen >= SETTLING_FIRST + self._next_settling:
                await self._begin(None)
                job = asyncio.create_task(self._round(None))
                await asyncio.wait({job}, timeout=max(0.0, end - time.monotonic()))
                if not job.done():
                    job.cancel()
                    with contextlib.suppress(asyncio.CancelledError):
                        await job
                    await self._runner.call(lambda node: node.close())
                continue
            cut = time.monotonic() < begin + rounds.floor
            if not any(
                self._may_lack(n, cut=cut) for n in {*self._place.view, *(to for to, _ in self._told)}
            ):
                return
            await self._reception.change(min(end, time.monotonic() + 0.5), since)

    def _may_lack(self, node: NodeId, *, cut: bool) -> bool:
        """Whether a neighbour may need something that it was told in settling; `cut`: although its link is down."""
        mode = self._known(node).status.mode
        if not self._here(node):
            return cut and mode != HAS_SETTLED
        return mode in (CELL_HOLDS, CELL_SETTLES) or (node in self._place.view and mode != HAS_SETTLED)

    async def close(self) -> None:
        """Forget the offer; what it is about is kept."""
        offer = self._offer
        if offer is not None and offer.task is not None and not offer.over:
            offer.task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await offer.task
        # Nothing may write once this has returned: somebody may remove the folder, or start another process with it.
        if pending := {job for job in (self._saving, *self._jobs) if job is not None}:
            await asyncio.wait(pending)
        if self._node is not None and not self._node.fresh:
            await self._keep_quietly()
