"""CellNode: a member of a cell, with the surface of `node.Node`: a model in, frames out and in, a new model out.

What it keeps from round to round is one object, `state`. A driver that wants to survive a crash saves it whenever `unsaved`
is true, before it sends the next frame, and makes the node again with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cesar.base import memory
from cesar.base.errors import DataError, LocalProtocolError, Reason, RemoteProtocolError
from cesar.base.types import Buffer, Entropy, NodeId, RoundNo, Vector
from cesar.crypto.keys import Keyring, RoundId
from cesar.graph.cells import CellPlace
from cesar.graph.neighbourhood import Neighbourhood
from cesar.indices import IndexSet
from cesar.kernels import bits, packing, ring
from cesar.methods.cells import Cells
from cesar.node import Leaves, Ledger
from cesar.protocol.cell_round import SETTLING_FIRST, SETTLING_TRIES, CellPhase, CellRound, step_of
from cesar.protocol.cell_state import CellState
from cesar.protocol.cell_vote import DRAWS, MOST_BOXES
from cesar.protocol.events import AggregateReady, Deadlines, Event, FrameRejected, Outbound
from cesar.protocol.inbox import Inbox
from cesar.protocol.wire import HEADER_BYTES, Kind

_EARLY = frozenset((Kind.CELL_AGREE, Kind.CELL_EXCHANGE))
"""What can come before this node begins: everything else answers its own agreement."""


LAST_ROUND = 1 << 31
"""Rounds end here: nobody is led to numbers that a header cannot hold."""

MOST_CELLS = 1 << 16
"""No network has more; they are named in a bitmap."""

_FAR = 64
"""Steps of settling that another cell may be ahead; what it says of later ones is not kept."""


def _can_have_come(round_: int, latest: int) -> bool:
    """Whether training, or settling, can be in a round; a step of the latter has several numbers."""
    if round_ < SETTLING_FIRST:
        return round_ <= latest
    return round_ - SETTLING_FIRST <= SETTLING_TRIES * latest and round_ < LAST_ROUND


class News(NamedTuple):
    """What a keeper of another cell has said, as it came, and in which round of this cell that was."""

    body: memoryview
    came: RoundNo


class CellNode:
    """One participant.

    Args:
        size: d, the number of parameters.
        session: 16 bytes that name the network and the run.
        tensors: the sizes of the model's tensors, each of which gets a scale of its own; by default it is one.
        state: that of a node before this one.
        samples: how many this member trains on, where members count by that.
        own_pace: as among real sites: cells count rounds by themselves, and a phase ends when all have come or the driver calls
            `skip`; see `CellRound`.
        latest: says the last round to which a network can have come by now. Members follow one another to later rounds, and numbers
            never go back, so that one of them must not be able to name any number. None: there is no such round.
        hands_out: False if the driver takes new models from `state.put_model`; those of `AggregateReady` are empty then.
        scale_bits: agreements of members with values over 2^this times the own (or 1, if those are smaller) are refused.

    Attributes:
        seen: sender → the latest round of which a frame has come.
        present: cells whose models came into the slice of this member since it settles, as these have said; its own from the first round on. None
            if its slice is empty, so that it cannot know.
    """

    def __init__(
        self,
        node: NodeId,
        method: Cells,
        size: int,
        *,
        session: bytes,
        keys: Keyring,
        first_round: int = 0,
        tensors: Sequence[int] | None = None,
        state: CellState | None = None,
        samples: int | None = None,
        own_pace: bool = False,
        latest: Callable[[], int] | None = None,
        scale_bits: int | None = None,
        hands_out: bool = True,
    ) -> None:
        method.check_samples(samples)
        if tensors is not None and (sum(tensors) != size or min(tensors, default=-1) < 0):
            raise LocalProtocolError(f"the sizes of the tensors do not add up to {size} parameters")
        self.id, self.size = node, size
        self._method, self._session, self._keys = method, session, keys
        self.edges = np.cumsum((size,) if tensors is None else tensors, dtype=np.int64)
        self.ledger = Ledger()
        self.selected: IndexSet | None = None  # what the cell hands in in this round
        self._state: CellState | None = None
        self._inbox = Inbox(node, session, RoundNo(first_round), self._largest_frame())
        self._inbox.early_kinds = _EARLY
        self._inbox.longest = self._longest()
        if latest is not None:
            self._inbox.can_have_come = lambda round_: _can_have_come(round_, latest())
        self._hands_out = hands_out
        self._own_pace, self._samples, self._scale_bits = own_pace, samples, scale_bits
        if own_pace:
            self._inbox.any_round = frozenset((Kind.CELL_EXCHANGE,))
            self._inbox.kept_kinds = frozenset((Kind.CELL_AGREE,))
        self.seen: dict[NodeId, RoundNo] = {}
        self._news: dict[NodeId, dict[RoundNo, News]] = {}
        self._round: CellRound | None = None
        self._number = RoundNo(first_round)
        self._out = np.empty(0, dtype=np.float32)
        self.present: frozenset[int] | None = frozenset()
        self._present_in: tuple[NodeId, ...] = ()
        self._events: deque[Event] = deque()
        if state is not None:
            self.state = state

    @property
    def state(self) -> CellState:
        """What the node keeps from round to round.

        Raises:
            LocalProtocolError: it has not begun any round yet.
        """
        if self._state is None:
            raise LocalProtocolError(f"node {self.id} has no common model yet")
        return self._state

    @state.setter
    def state(self, state: CellState) -> None:
        if len(state.common) != self.size or len(state.scores) != self._method.blocks(self.size):
            raise DataError(
                f"this state is of a model with {len(state.common)} parameters and {len(state.scores)} blocks, but the "
                f"network averages {self.size} in {self._method.blocks(self.size)}"
            )
        state.recover()
        if self._method.noise is not None:
            state.forget()
        self._state = state

    @property
    def fresh(self) -> bool:
        """Whether it has not begun any round yet."""
        return self._state is None

    @property
    def unsaved(self) -> bool:
        """Whether `state` must be durable before the next frame is sent: numbers are about to leave. `saved` clears it."""
        return self._round is not None and self._round.unsaved

    def saved(self) -> None:
        """The state is durable."""
        if self._round is not None:
            self._round.unsaved = False

    def use_method(self, method: Cells) -> None:
        """Average in this way from the next round on.

        Raises:
            LocalProtocolError: a round is running.
        """
        if self._inbox.running:
            raise LocalProtocolError("the method can change between rounds only")
        blocks = method.blocks(self.size)
        if self._state is not None and blocks and len(self._state.scores) != blocks:
            self._state.scores = np.zeros(blocks, dtype=np.uint8)
        if method.settling != self._method.settling:
            self.present = frozenset()
        self._method = method

    def begin_round(
        self,
        round_: RoundNo,
        place: CellPlace,
        vector: Vector | None,
        *,
        reference: Vector | None = None,
        out: Vector | None = None,
        metric: float | None = None,
        entropy: Entropy,
        deadlines: Deadlines,
    ) -> None:
        """Start a round, or another attempt at the current one with fresh seeds.

        Args:
            vector: the model after local training, which began at the last result: the common model and what is unsent. None to go on
                with these as they are, for a round that is begun anew while training goes on.
            reference: in the first round the common model, by default zero; later it is not looked at.
            out: memory for the new model; it must not overlap `vector`.
            metric: of this model, where members hand one in; None if there is none this time.

        Raises:
            DataError: the model holds NaN or infinity, or has the wrong size. Nothing was sent.
        """
        self._check(round_, place, vector, metric)
        if self._state is None:
            if vector is None:
                raise LocalProtocolError(f"node {self.id} has no common model yet")
            common = np.zeros(self.size, dtype=np.float32) if reference is None else reference
            self._state = CellState.start(common, self._method.blocks(self.size))
        state = self._state
        state.weigh(self._samples)
        agreed = None
        if self._round is not None:
            if self._own_pace and self._inbox.running and self._number == round_:
                agreed = self._round.agreed  # others have said it once, and go by it
            self.close()
        change = state.unsent if vector is None else self._trained(vector)
        noise = None if self._method.settling else self._method.noise
        exponents = ring.exponents_of(change, self.edges)
        if noise is not None:  # what is announced must not depend on the data
            change, exponents = noise.bounded(change), (noise.exponent,) * len(self.edges)
        fresh = change - state.unsent if self._method.sparsifier.block else None
        if not self._method.settling:
            state.unsent = change
        given_up = state.given_up(place, self._method.patience)
        members = tuple(n for n in place.members if n not in given_up)
        if not self._method.settling and state.take_doubt_back(members):
            exponents = ring.exponents_of(state.unsent, self.edges)
        self._round = CellRound(
            self._method,
            place,
            RoundId(self._session, round_),
            state,
            exponents,
            fresh=fresh,
            edges=self.edges,
            keys=self._keys,
            entropy=entropy,
            deadlines=deadlines,
            metric=None if metric is None else float(metric),
            present=self.present or frozenset() if members == self._present_in else frozenset(),
            own_pace=self._own_pace,
            scale_bits=self._scale_bits,
        )
        if agreed is not None:
            self._round.agreed = agreed
        self._number, self.ledger, self.selected = round_, Ledger(), self._round.chosen
        if out is not None:
            self._out = out
        else:
            self._out = memory.empty(self.size if self._hands_out else 0, np.float32)
        for sender, payload in self._inbox.open(round_):
            try:
                self.receive(sender, payload)
            except RemoteProtocolError as error:
                self._events.append(FrameRejected(error=error))
        for said in self._news.values():
            for number in sorted(said):
                if number >= SETTLING_FIRST and step_of(number) < step_of(max(round_, SETTLING_FIRST)):
                    del said[number]  # of a step that is over
        self._hear_news()
        self._settle()

    def _hear_news(self) -> None:
        """Give the round what keepers of other cells have said since they were last heard."""
        for sender, said in tuple(self._news.items()):
            for number in sorted(said):
                try:
                    self._hear(sender, number, said[number])
                except RemoteProtocolError as error:
                    del said[number]
                    self._events.append(FrameRejected(error=error))

    def _trained(self, vector: Vector) -> Vector:
        """What a model has that the common one has not. If a round has thrown something away and ended without a result, or was begun
        anew, the model still has that: it is taken out, so that it is in no sum again.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            change: Vector = memory.empty(self.size, np.float32)
            np.subtract(vector, self.state.common, out=change)
            return change if self.state.thrown is None else change - self.state.thrown

    def _check(self, round_: RoundNo, place: CellPlace, vector: Vector | None, metric: float | None) -> None:
        self._inbox.check(round_)
        self._method.check_metric(metric)
        if place.node != self.id:
            raise LocalProtocolError(f"node {self.id} was given the place of node {place.node}")
        if vector is not None and vector.shape != (self.size,):
            raise DataError(f"the model has {len(vector)} parameters, but the network averages {self.size}")

    def inherit(self, other: CellNode) -> None:
        """Take over what another node of this member has been told, for when it trains or settles next."""
        self._inbox.inherit(other._inbox)
        self._news, self.seen = other._news, other.seen

    def _take_news(self, sender: NodeId, round_: RoundNo, body: memoryview) -> None:
        """A keeper of another cell has spoken. Of what it says while it trains the newest counts; of settling every step."""
        known = self._news.setdefault(sender, {})
        settles = round_ >= SETTLING_FIRST
        latest = max((number for number in known if (number >= SETTLING_FIRST) == settles), default=-1)
        # A cell that listens while it waits for a member speaks more than once in a round; what it said before is out of date.
        if round_ < latest or (settles and round_ == latest):
            raise RemoteProtocolError(
                sender, Reason.DUPLICATE, "it has told its cell's model already", round_
            )
        if settles and step_of(round_) >= step_of(max(self._number, SETTLING_FIRST)) + _FAR:
            raise RemoteProtocolError(sender, Reason.TOO_EARLY, "no cell can be so far ahead", round_)
        if len(body) > self._longest_news():
            raise RemoteProtocolError(
                sender, Reason.MALFORMED, "it is longer than what a keeper can say to this member", round_
            )
        hears = self._round is not None and self._inbox.running and self._round.phase <= CellPhase.EXCHANGE
        news = News(body, self._number if hears else RoundNo(self._number + 1))
        self._hear(sender, round_, news)
        for number in [
            n for n in known if (step_of(n) == step_of(round_) if settles else n < SETTLING_FIRST)
        ]:
            del known[number]
        known[round_] = news

    def _longest_news(self) -> int:
        """No keeper has more to say: it is about the slice that is this member's in its whole cell, which has no fewer than m. It is
        kept unread, so that its length is all that bounds it.
        """
        words = -(-bits.words_for(self.size) // self._method.size)
        values = packing.packed_size(64 * words, self._method.ring_bits)
        return 1024 + MOST_CELLS // 8 + 8 * words + len(self.edges) + values

    def _hear(self, sender: NodeId, round_: RoundNo, news: News) -> None:
        if self._round is not None and self._inbox.running and self._round.hears(sender, round_):
            self._round.hear(sender, round_, news.body, max(0, self._number - news.came))

    @property
    def settles(self) -> bool:
        """Whether it averages without training."""
        return self._method.settling

    @property
    def phase(self) -> CellPhase | None:
        """Where the round is; None if none runs."""
        return self._round.phase if self._round is not None and self._inbox.running else None

    @property
    def round(self) -> CellRound | None:
        """The round that runs."""
        return self._round if self._inbox.running else None

    def listen(self) -> None:
        """Members keep this one waiting: go on exchanging models with other cells meanwhile."""
        if self.round is not None:
            self._forget_news(self.round.listen())
            self._hear_news()  # of the cells that it hears next

    def _forget_news(self, mixed: dict[NodeId, RoundNo]) -> None:
        """Nothing is mixed in twice."""
        for sender, number in mixed.items():
            self._news.get(sender, {}).pop(number, None)

    def skip(self) -> None:
        """Wait no longer for what the current phase waits for."""
        self._settle(skip=True)

    def _largest_frame(self) -> int:
        """A model with its claim; nothing is larger."""
        voting = 4 * DRAWS * MOST_BOXES if self._method.robust else 0
        return HEADER_BYTES + 4 * self.size + self._method.blocks(self.size) + 32 * 256 + 1024 + voting

    def _longest(self) -> dict[Kind, int]:
        """Bodies of frames that are kept unread until everybody has agreed: all but the model are as long as a slice, or shorter."""
        words, tensors = -(-bits.words_for(self.size) // self._method.size), len(self.edges)
        # Values, and for each word at most 8 blocks with scores of two bytes; where members vote, what is handed on has an offer beside it.
        slice_ = 2048 + packing.packed_size(64 * words, self._method.ring_bits) + 32 * words + tensors
        return {
            **dict.fromkeys((Kind.CELL_SCATTER, Kind.CELL_OFFER, Kind.CELL_GATHER), slice_),
            Kind.CELL_MISSED: slice_ * (1 + self._method.robust),
            Kind.CELL_AGREE: 4096 + tensors + 40 * 256,
            Kind.CELL_VOUCH: 64,
        }

    def largest_frame(self, _: Neighbourhood) -> int:
        """No frame has more bytes; neighbours do not change that."""
        return self._inbox.largest_frame

    def receive(self, sender: NodeId, payload: Buffer) -> RoundNo | None:
        """Take in a frame; says its round if that is over, and raises `RemoteProtocolError` if it is refused."""
        kind, round_, body = self._inbox.admit(sender, payload)
        if round_ > self.seen.get(sender, -1):
            self.seen[sender] = round_
        if self._own_pace and kind is Kind.CELL_EXCHANGE:
            assert body is not None
            self._take_news(sender, round_, body)
            self._settle()
            return None
        late = round_ if self._inbox.is_over(round_) else None
        if (
            late is not None
            and kind is Kind.CELL_AGREE
            and self._state is not None
            and round_ == self._number
        ):
            self._state.absent[sender] = 0  # it is back
        if late is not None and kind is Kind.CELL_AGREE and self._own_pace and self._round is not None:
            self._round.say_again(sender)  # it began before it could hear of this round
        if body is not None and self._round is not None:
            try:
                self._round.handle(sender, kind, body)
            except RemoteProtocolError:
                raise
            except Exception as error:
                raise RemoteProtocolError.fault(sender, error, round_) from error
            self._settle()
        return late

    def outbound(self, leaves: Leaves | None = None) -> Iterator[Outbound]:
        """Frames to send, counted as they leave.

        Args:
            leaves: (recipient, frame) → whether it can be sent at all; what cannot is not counted.
        """
        while self._round is not None:
            outbox = self._round.outbox
            try:
                out = outbox.pull()
            except Exception as error:
                if outbox.asked_by is None:
                    raise
                blamed = RemoteProtocolError.fault(outbox.asked_by, error, self._number)
                blamed.__cause__ = error
                self._events.append(FrameRejected(error=blamed))
                continue
            if out is None:
                return
            if leaves is not None:
                out = out._replace(recipients=tuple(to for to in out.recipients if leaves(to, out.frame)))
            self.ledger.record(out)
            yield out

    def next_event(self) -> Event | None:
        """What has happened, oldest first."""
        return self._events.popleft() if self._events else None

    def next_deadline(self) -> float | None:
        """When to call `tick` next; None if nothing is waiting."""
        return self._round.deadline if self._round is not None and self._inbox.running else None

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the round waits for."""
        return self._round.awaiting if self._round is not None and self._inbox.running else frozenset()

    @property
    def joinable(self) -> bool:
        """Whether a member that comes only now can still take part in the round."""
        return self._round is not None and self._inbox.running and self._round.phase is CellPhase.AGREE

    def tick(self, now: float) -> None:
        """Time has passed: end the phases that are over."""
        self._settle(now)

    def close(self) -> None:
        """Forget the round and everything secret in it; what was on its way in it is in doubt."""
        self._inbox.finish()
        if self._round is not None:
            self._round.outbox.forget()
        self._round = None
        if self._state is not None:
            self._state.recover()
            if self._method.noise is not None:
                self._state.forget()

    def distrust(self) -> None:
        """What this node keeps was set back (`CellState.distrust`). A round that has not handed in anything yet is over without a
        sum: numbers of an older time are in it.
        """
        if self._state is None:
            return
        running = self._round
        if running is not None and self._inbox.running and self._state.handed is None:
            running.phase = CellPhase.DONE
            running.outbox.forget()
            self._finish(running, None)
        self._state.distrust()

    def _settle(self, now: float | None = None, *, skip: bool = False) -> None:
        """Report what the last input, or the time, has brought about."""
        if self._round is None or not self._inbox.running:
            return
        running, before = self._round, self._round.phase
        fault: Exception | None = None
        try:
            if now is not None:
                running.tick(now)
            if skip:
                running.skip()
            running.advance()
            if before is CellPhase.AGREE and running.phase is not before:
                self._hear_news()  # the link of the round counts again, whichever was listened to last
                running.advance()
        except Exception as error:  # noqa: BLE001  (whatever others have brought about must not end this node)
            fault, running.phase = error, CellPhase.DONE
        if running.phase is before and before is not CellPhase.DONE:
            return
        for refused in running.rejected():
            self._events.append(FrameRejected(error=refused))
        if running.phase is CellPhase.DONE:
            self._finish(running, fault)

    def _finish(self, running: CellRound, fault: Exception | None) -> None:
        report = running.finish()
        if self._method.roll_call and self._method.settling:
            self._present_in, words = running.looks_after
            self.present = running.present if words else None
        self._forget_news(running.mixed)
        self._keys.ended()
        for refused in running.rejected():
            self._events.append(FrameRejected(error=refused))
        state = self.state
        if len(self._out):
            if self._method.settling:
                self._out[:] = state.common
            else:
                state.put_model(self._out)
        self.ledger.shares, self.ledger.parameters = int(running.handed_in > 0), running.handed_in
        self._events.append(
            AggregateReady(
                round_=self._number,
                vector=self._out,
                contributors=report.members if report.summed else (),
                lost=report.unsure,
                fault=fault,
                cell=report,
            )
        )
        self._inbox.finish()
