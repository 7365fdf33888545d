"""CellRound: one member's attempt at one round of its cell.

    agree     everybody tells everybody: a token, a scale, whom it has given up, which model it holds
    scatter   everybody sends the keeper of each slice its masked part of what it hands in
    exchange  the keeper tells hearing cells what its cell's model is there, and takes in what heard cells say
    gather    the keeper tells the other members how the common model changes in its slice

*Who is in a sum.* All members of the cell but those that this member has given up. They add up only if each of them is
there, has given up the same, and holds the same model. Otherwise the cell stands still for this round: nobody hands anything
in, and its model stays as it is, so that a member that was away for a round has missed nothing.

*A cell that stands still listens.* Its keepers go on exchanging slices with other cells, so that cells also mix while members are away. A keeper
keeps what it hears for itself (`CellState.overheard`), passes it on to hearing cells, and tells its members with the next sum. Members
that are there could take it in at once, and would then train on another model than the one that is away. A lying cell could use that: it says a
model on which nothing can be trained, while all members but one are away, and that one is alone in the next sum. So nobody trains on
what was overheard before all hold it. Where members count by samples a cell that stands still does not listen: its weight is told by
all keepers together. Nor does it where cells settle at their own pace: there a step is tried again until all members are there.

*One answer.* A slice of the model changes only if its sum came about, and it changes for all members alike, by what the
keeper sends. A member without that answer keeps its numbers as in doubt (`cell_state`), says in the next round what it lacks,
and is given it by anybody who has it; digests of what was gathered are in every agreement, and their chain is in every
mask. What it has trained meanwhile was trained on a model that the cell does not hold. That is thrown away: a
keeper could otherwise have one member train on a living model and the others on a dead one, and read the one
update off a sum in which all others are zero. For the same reason all members of the sum throw away as much, and say so.

*Where members vote* (`Cells.robust`, `cell_vote`) there are two more phases between scatter and exchange:

    offer     the keeper tells the members the cell's mean update in its slice
    vote      everybody compares the whole mean update with its own, and tells everybody its masked ballot

What most refuse is not applied, told to nobody outside and not handed in again; hearing cells are told that there is nothing. The gather frame then holds only what was
heard of other cells, and members scale it down where it is too far away. A member without all offers or all ballots knows no
outcome, and is given it in the next round, if members of k + 1 owners have it.

*Where members count by their samples* (`Cells.weight`) a member hands in w·D in place of D. The first sum of a cell is over all of
its members and has one word more, w, for every keeper; from it the cell knows W, the samples of all, and w is never handed in
again. A cell carries a weight v, which begins at W and is mixed with those of heard cells as its model is (push-sum). The model changes by
Σ w·D / v. So Σ v·X over all cells grows by exactly Σ w·D, mixing leaves it as it is, and where all cells are alike X is the
weighted mean. On the ring w is divided by a number that all members know and that is not below it, so that scales are those of D and say nothing of w.

*Where members measure* (`Cells.metric`) a sum over the whole cell, to which every member brings a metric, has two words more for every
keeper: the metric's whole part and the rest. Keepers tell its mean with the slice. A metric is much the same from round to round, so the
difference of two sums over other members would show that of the member that left: hence the whole cell or nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cesar.base import memory
from cesar.base.errors import DataError, EncodingError, PrivacyError, Reason, RemoteProtocolError
from cesar.base.types import BitWords, Buffer, ByteArray, Entropy, NodeId, RingWords, RoundNo, Vector
from cesar.crypto.keys import (
    SEED_BYTES,
    Keyring,
    MaskKey,
    PairSecret,
    RoundId,
    cell_facts,
    cell_mask_key,
    cell_terms,
    model_digest,
    slice_digest,
)
from cesar.crypto.keystream import Keystream
from cesar.graph.cells import CellPlace
from cesar.indices import IndexSet
from cesar.kernels import bits, packing, ring
from cesar.kernels.slicing import (
    Piece,
    Span,
    add_at,
    add_row,
    add_sum,
    add_words,
    block_scores,
    can_be_told,
    check_row,
    clear_at,
    dither_seed,
    expand_blocks,
    fill_grid,
    from_words,
    is_tellable,
    piece_of,
    read_grid,
    spans,
    take,
    write_grid,
)
from cesar.methods.cells import METRIC_EXPONENT, METRIC_RANGE, Cells
from cesar.methods.positions import CellPositions, everything
from cesar.protocol.cell_state import Carried, CellState, Doubt, Handed, Overheard, Standing, standing
from cesar.protocol.cell_vote import (
    DRAWS,
    FACTOR,
    boxes,
    count_objections,
    fill_ballot,
    is_refused,
    mask_ballot,
    most_distance,
    no_distances,
    objects_to,
    offers_digest,
    products,
    root_mean_square,
    yard_of,
)
from cesar.protocol.events import CellReport, Deadlines, Outbound
from cesar.protocol.round import Outbox
from cesar.protocol.sender import SUM_MASK_BYTES, _scratch, wants_negation
from cesar.protocol.wire import HEADER_BYTES, Frame, Header, Kind, Token
from cesar.protocol.wire_cells import (
    CARRIED,
    NEVER,
    Agree,
    Claim,
    Exchange,
    Gather,
    Missed,
    Model,
    Offer,
    Row,
    Scatter,
    Vote,
    Voted,
    cells_to_bytes,
    empty_frame,
    encode_vouch,
    metric_to_bytes,
    row_of,
)

SCORE_BITS = 16
"""Of a masked score; its sum is told with 8."""

EXTRA_BITS = 32
"""Of a masked number that goes to every keeper."""

SETTLING_FIRST, SETTLING_TRIES = 1 << 30, 16
"""Where cells go at their own pace, settling has rounds of its own, from the first number on. A step of it, in which a cell hears
one other, has sixteen rounds: a cell that fails in one tries the next.
"""

SCORE_STEPS, SCORE_ZERO = 8, 160
"""The code of a score s is 8·log2 s + 160, from 1 to 255: from 2^-20 to 2^12 in steps of nine per cent; 0 is none."""


def step_of(round_: int) -> int:
    """By which of the cells' links a round goes, where cells go at their own pace."""
    return round_ if round_ < SETTLING_FIRST else (round_ - SETTLING_FIRST) // SETTLING_TRIES


class CellPhase(IntEnum):
    AGREE = 1
    CATCH_UP = 2
    SCATTER = 3
    OFFER = 4
    VOTE = 5
    EXCHANGE = 6
    GATHER = 7
    DONE = 8


class Part(NamedTuple):
    """A row of numbers to be masked: values at positions, on a grid.

    Attributes:
        span: the words of the bitmap that count; None for all.
        before: numbers of the keystreams that are for others.
        out: where the words go.
    """

    vector: Vector
    positions: IndexSet
    grid: ring.Grid
    span: Span | None = None
    before: int = 0
    out: NDArray[np.unsignedinteger] | None = None


class Offered(NamedTuple):
    """The mean update in a slice as its keeper says it, checked."""

    piece: Piece
    exponents: tuple[int, ...]
    values: ByteArray
    body: Buffer


class Change(NamedTuple):
    """What a keeper has sent about its slice, checked.

    Where members vote, `offer` is what they have not refused, `yard` how long updates are, and `reach` the weight of all
    heard cells.
    """

    piece: Piece
    exponents: tuple[int, ...]
    values: ByteArray
    scores: bytes
    digest: bytes
    body: Buffer
    offer: Offered | None = None
    yard: float = 0.0
    reach: float = 0.0
    everything: bool = False
    carried: Carried | None = None
    metric: float | None = None


@dataclass(slots=True)
class Poll:
    """A vote of the members on what they have added up.

    Attributes:
        secrets: of the pairs, from which masks of ballots are made.
        terms: of the sum.
        seen: names all that was offered.
        refused: the outcome; None as long as it is not known.
        silent: keepers of other cells that have refused.
    """

    secrets: dict[NodeId, PairSecret] = field(default_factory=dict, repr=False)
    terms: bytes = b""
    seen: bytes = b""
    offers: dict[int, Offered | None] = field(default_factory=dict)
    votes: dict[NodeId, Vote | None] = field(default_factory=dict)
    ballot: RingWords | None = None
    refused: bool | None = None
    silent: set[NodeId] = field(default_factory=set)


class Said(NamedTuple):
    """What a keeper of another cell has said about a range, in a round of its cell; `age` rounds of this one ago."""

    cell: int
    piece: Piece
    exponents: tuple[int, ...]
    values: ByteArray
    round_: RoundNo
    age: int = 0
    weight: float | None = None
    cells: frozenset[int] = frozenset()


def masked_rows(parts: list[Part], masks: list[tuple[Keystream, bool]]) -> list[RingWords]:
    """Rows of numbers under the masks of all partners, rounded to the upper bits of each word.

    One keystream per partner goes on from row to row; word k of it masks the k-th number. So each is made once, in
    pieces that stay in the cache. It begins where the first row says.
    """
    if not masks:
        raise PrivacyError("nothing leaves without a mask")
    for stream, _ in masks:
        stream.seek(8 * parts[0].before)
    signs = np.array([bits.FULL if negate else bits.ONE for _, negate in masks])
    rows: list[RingWords] = []
    for vector, positions, grid, span, _, out in parts:
        kept = positions.words
        first, last = Span(0, len(kept)) if span is None else span  # an empty one is false
        total = positions.count if span is None else bits.count(kept[first:last])
        words = memory.empty(total, np.uint32) if out is None else out
        if len(words) != total:
            raise ValueError(f"there is room for {len(words)} words, but {total} are masked")
        rows.append(words)
        if first == last:
            continue
        width = -(-(last - first) // (1 + 8 * total * len(masks) // SUM_MASK_BYTES))
        counts = np.empty(-(-(last - first) // width), dtype=np.int64)
        bits.count_blocks(kept[first:last], width, counts)
        most = int(counts.max())
        scratch = _scratch("masks", 2 * len(masks) * most).view(np.uint64).reshape(len(masks), most)
        written = 0
        for start, count in zip(range(first, last, width), counts.tolist(), strict=True):
            for (stream, _), row in zip(masks, scratch, strict=True):
                stream.fill(row[:count])
            written += ring.seal_sum(
                scratch,
                signs,
                vector,
                kept,
                start,
                min(start + width, last),
                grid.edges,
                grid.scales,
                grid.bits,
                words[written:],
            )
    return rows


def _copy(values: Vector) -> Vector:
    """In memory that may have been used before."""
    out: Vector = memory.empty(len(values), np.float32)
    out[:] = values
    return out


def _within(part: Span, whole: Span) -> bool:
    return whole.first <= part.first and part.last <= whole.last


def packed(words: RingWords, width: int) -> Row:
    """Words as they travel."""
    return Row(packing.packed_size(len(words), width), partial(packing.pack, words, width))


def score_codes(sums: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Summed scores in eight bits, on a scale of octaves."""
    with np.errstate(divide="ignore"):
        codes = np.rint(SCORE_STEPS * np.log2(np.maximum(sums, 0.0))) + SCORE_ZERO
    return np.where(sums > 0, np.clip(codes, 1, 255), 0).astype(np.uint8)


class CellRound:
    """See the module.

    Args:
        state: what the member keeps; `state.unsent` has what it brings to this round.
        exponents: its scale, one for each tensor.
        fresh: what was trained since the last round, where blocks have scores.
        edges: where each tensor of the model ends.
        metric: of the model that it brings; None if it has none.
        present: cells whose models are in the own slice, where cells say so while they settle.
        own_pace: cells count rounds by themselves, and take the newest that they hear of one another; members wait for one another
            until the driver says that it is enough.
        scale_bits: a member's values may be 2^this times as large as the own, or as 1; None: as large as any.
    """

    def __init__(
        self,
        method: Cells,
        place: CellPlace,
        attempt: RoundId,
        state: CellState,
        exponents: tuple[int, ...],
        *,
        fresh: Vector | None,
        edges: NDArray[np.int64],
        keys: Keyring,
        entropy: Entropy,
        deadlines: Deadlines,
        metric: float | None = None,
        present: frozenset[int] = frozenset(),
        own_pace: bool = False,
        scale_bits: int | None = None,
    ) -> None:
        self._scale_bits = scale_bits
        self._method, self._place, self._attempt, self._state = method, place, attempt, state
        self._own_pace, self._applied, self._metric = own_pace, False, metric
        self.present: frozenset[int] = present | {place.number}
        self._turn = step_of(attempt.round_) if own_pace else attempt.round_
        self._edges, self._keys, self._deadlines = edges, keys, deadlines
        self._me, self._cell, self._size = place.node, place.members, int(edges[-1])
        self._words = bits.words_for(self._size)
        self._width = method.ring_bits
        self._block = method.sparsifier.block
        self._ranks = (
            bool(self._block) and not method.settling
        )  # whether scores decide about this round's positions
        self._token = Token(entropy(SEED_BYTES), keys.public(attempt.round_))
        self._scores = np.empty(0, dtype=np.float32)
        self._given_up = state.given_up(place, method.patience)
        self._members = tuple(n for n in self._cell if n not in self._given_up)
        self._hidden: Vector | None = None
        if self._ranks:
            assert fresh is not None
            waiting, self._hidden = state.to_score(self._members, fresh)
            self._scores = block_scores(waiting, fresh, self._positions.chosen.words, self._block)
            exponents += ring.exponents_of(self._scores, np.array([len(self._scores)]))
        self._exponents, self._entropy = exponents, entropy
        self._carried = state.carried
        self._most = 255.0 * method.most_samples if method.weighted else None  # no cell weighs more
        self._weighs = method.weighted and not method.settling and not self._carried.total
        # What w is divided by, no less than w: the network's bound, or the samples of the whole cell once these are known.
        self._unit = min(float(method.most_samples), self._carried.total or float("inf"))
        if method.robust and len(state.distances) != len(self._cell):
            state.distances = no_distances(len(self._cell))
        self.agreed: dict[NodeId, Agree] = {}
        self._standing: Standing | None = None
        self._early: dict[tuple[NodeId, Kind, int], memoryview] = {}
        self._said: dict[NodeId, Said] = {}
        self._has_mixed = False
        self._rejected: list[RemoteProtocolError] = []
        self.phase, self.outbox = CellPhase.AGREE, Outbox()
        self.unsaved, self.handed_in, self._still = False, 0, False
        # of a sum
        self._facts, self._checks = b"", dict[NodeId, MaskKey]()
        self._masked: set[int] = set()
        self._totals: list[RingWords] = []
        self._came: dict[NodeId, tuple[bytes, ...]] = {}
        self._grids: list[ring.Grid] = []
        self._value: Vector | None = None  # the cell's model in the own slice, before other cells are heard
        self._plain: Vector | None = None  # the same without what was overheard, where members vote
        self._changes: dict[int, Change | None] = {}
        self._poll = Poll()
        # of catching up
        self._models: dict[bytes, memoryview] = {}
        self._vouched: dict[bytes, set[object]] = {}
        self._report = CellReport()
        self._doubted: Doubt | None = None  # as it was before anything was thrown away
        self.outbox.add(
            partial(self._make_agree, state.claim, state.losses)
        )  # what it is now, not when the frame is pulled

    # ── what the phases wait for ────────────────────────────────────────────────────────────────────────

    @property
    def deadline(self) -> float | None:
        """When the current phase ends at the latest."""
        match self.phase:
            case CellPhase.AGREE:
                return self._deadlines.announce
            case CellPhase.CATCH_UP | CellPhase.SCATTER:
                return self._deadlines.relay
            case CellPhase.OFFER:
                return self._between(1, 4)
            case CellPhase.VOTE:
                return self._between(2, 4)
            case CellPhase.EXCHANGE:
                return self._between(3, 4) if self._votes_now else self._between(1, 2)
            case CellPhase.GATHER:
                return self._deadlines.share
            case CellPhase.DONE:
                return None

    def _between(self, part: int, parts: int) -> float:
        """A time between the last two deadlines."""
        first, last = self._deadlines.relay, self._deadlines.share
        return (first * (parts - part) + last * part) / parts

    @property
    def _votes_now(self) -> bool:
        """Whether members vote on what they add up."""
        return self._method.robust and not self._method.settling

    @property
    def awaiting(self) -> frozenset[NodeId]:
        """Whose frames the current phase waits for."""
        match self.phase:
            case CellPhase.AGREE:
                # Nobody waits for a member that was given up; if it is back its word comes in time or next time.
                return frozenset(n for n in self._members if n != self._me and not self._is_there(n))
            case CellPhase.CATCH_UP:
                return self._helpers()
            case CellPhase.SCATTER:
                return frozenset(n for n in self._members if n != self._me and n not in self._came)
            case CellPhase.OFFER:
                return frozenset(n for k, n in enumerate(self._members) if k not in self._poll.offers)
            case CellPhase.VOTE:
                return frozenset(n for n in self._members if n != self._me and n not in self._poll.votes)
            case CellPhase.EXCHANGE:
                return self._unheard()
            case CellPhase.GATHER:
                return frozenset(n for k, n in enumerate(self._members) if k not in self._changes)
            case CellPhase.DONE:
                return frozenset()

    def _is_there(self, node: NodeId) -> bool:
        """Whether a member has agreed. At their own pace members find out one by one who is gone, and say so again."""
        said = self.agreed.get(node)
        return said is not None and not (self._own_pace and said.given_up != self._given_up)

    @property
    def returned(self) -> frozenset[NodeId]:
        """Members that were given up and are back."""
        return frozenset(node for node in self._given_up if node in self.agreed)

    @property
    def given_up(self) -> tuple[NodeId, ...]:
        """Whom nobody waits for."""
        return self._given_up

    def skip(self) -> None:
        """End the current phase without those who are missing."""
        self._end_phase()
        self.advance()

    def advance(self) -> None:
        """End every phase that has all it waits for."""
        while self.phase is not CellPhase.DONE and not (self._counts_short() or self.awaiting):
            self._end_phase()

    def _counts_short(self) -> bool:
        """Whether the numbers alone say that the phase waits: most frames end none, and sets cost more than counts."""
        others = len(self._members) - 1
        match self.phase:
            case CellPhase.AGREE:
                return len(self.agreed) < others
            case CellPhase.SCATTER:
                return len(self._came) < others
            case CellPhase.OFFER:
                return len(self._poll.offers) <= others
            case CellPhase.VOTE:
                return len(self._poll.votes) < others
            case CellPhase.GATHER:
                return len(self._changes) <= others
            case _:
                return False

    def tick(self, now: float) -> None:
        """End the phases whose time is over."""
        while (deadline := self.deadline) is not None and now >= deadline:
            self._end_phase()
            self.advance()

    def _end_phase(self) -> None:
        match self.phase:
            case CellPhase.AGREE:
                self._end_agree()
            case CellPhase.CATCH_UP | CellPhase.GATHER:
                self.phase = CellPhase.DONE
            case CellPhase.SCATTER:
                self._end_scatter()
            case CellPhase.OFFER:
                self._end_offer()
            case CellPhase.VOTE:
                self._end_vote()
            case CellPhase.EXCHANGE:
                self._end_exchange()
            case CellPhase.DONE:
                pass

    def rejected(self) -> list[RemoteProtocolError]:
        """Frames that were kept and turned out to be bad; each is given once."""
        found, self._rejected = self._rejected, []
        return found

    # ── frames in ───────────────────────────────────────────────────────────────────────────────────────

    def handle(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """Take in a frame; raises `RemoteProtocolError` before anything changes."""
        try:
            if kind is Kind.CELL_EXCHANGE:
                self._on_exchange(sender, body, self._attempt.round_)
                return
            if sender not in self._cell:
                raise self._refusal(sender, Reason.STRANGER, "it is not a member of this cell")
            if kind is Kind.CELL_AGREE:
                self._on_agree(sender, body)
            elif self.phase is CellPhase.AGREE and kind in _ANSWERS:
                self._keep(sender, kind, body)
            elif kind is Kind.CELL_SCATTER:
                self._on_scatter(sender, body)
            elif kind is Kind.CELL_GATHER:
                self._on_gather(sender, body)
            elif kind is Kind.CELL_OFFER and self._method.robust:
                self._on_offer(sender, body)
            elif kind is Kind.CELL_VOTE and self._method.robust:
                self._on_vote(sender, body)
            elif kind is Kind.CELL_MISSED:
                self._on_missed(sender, body)
            elif kind is Kind.CELL_MODEL:
                self._on_model(sender, body)
            elif kind is Kind.CELL_VOUCH:
                self._on_vouch(sender, bytes(body))
            else:
                raise self._refusal(sender, Reason.UNEXPECTED, "this network averages in cells")
        except EncodingError as error:
            raise self._refusal(sender, Reason.MALFORMED, str(error)) from None

    def hears(self, sender: NodeId, round_: RoundNo) -> bool:
        """Whether what a keeper said in this round of its cell is for this round: the step counts while settling, else the cell."""
        if self._method.settling != (round_ >= SETTLING_FIRST):
            return False
        if self._method.settling and step_of(round_) != self._turn:
            return False
        return self.phase <= CellPhase.EXCHANGE and self._place.plan.cell_of(sender) in self._heard_cells

    def hear(self, sender: NodeId, round_: RoundNo, body: memoryview, age: int) -> None:
        """Take in what a keeper of another cell has said in a round of that; raises `RemoteProtocolError`."""
        try:
            self._on_exchange(sender, body, round_, age)
        except EncodingError as error:
            raise self._refusal(sender, Reason.MALFORMED, str(error)) from None

    @property
    def mixed(self) -> dict[NodeId, RoundNo]:
        """Whose words are in the model now, and of which round."""
        return {sender: said.round_ for sender, said in self._said.items()} if self._has_mixed else {}

    def _keep(self, sender: NodeId, kind: Kind, body: memoryview) -> None:
        """An answer to this member's agreement can overtake somebody else's agreement."""
        number = Missed.decode(body).number if kind is Kind.CELL_MISSED else 0
        if number >= len(self._cell):
            raise self._refusal(sender, Reason.MALFORMED, f"there is no slice {number}")
        if (sender, kind, number) in self._early:
            raise self._refusal(sender, Reason.DUPLICATE, f"a second {kind.name.lower()}")
        self._early[sender, kind, number] = body

    def _refusal(self, sender: NodeId, reason: Reason, detail: str) -> RemoteProtocolError:
        return RemoteProtocolError(sender, reason, detail, self._attempt.round_)

    def _header(self, kind: Kind) -> Header:
        return Header(kind, self._attempt, self._me)

    # ── agree ───────────────────────────────────────────────────────────────────────────────────────────

    def _make_agree(self, claim: Claim, losses: bytes, to: tuple[NodeId, ...] = ()) -> Outbound:
        brings = self._metric is not None if self._method.metric else None
        message = Agree(self._token, self._exponents, self._given_up, losses, claim, brings)
        return Outbound(to or self._place.view, message.encode(self._header(Kind.CELL_AGREE), self._cell))

    def say_again(self, node: NodeId) -> None:
        """Repeat what this member agrees to, for one that may not have got it."""
        if self.phase is CellPhase.AGREE and node in self._place.view:
            self.outbox.add(partial(self._make_agree, self._state.claim, self._state.losses, (node,)))

    def _on_agree(self, sender: NodeId, body: memoryview) -> None:
        if self.phase is not CellPhase.AGREE:
            self._state.absent[sender] = 0  # too late for this round, but back: the next one waits for it
            return
        if sender in self.agreed and not self._own_pace:
            raise self._refusal(sender, Reason.DUPLICATE, "it has agreed already")
        said = Agree.decode(body, self._cell, len(self._exponents), measured=self._method.metric)
        self._check_scale(sender, said.exponents)
        self.agreed[sender] = said

    def _check_scale(self, sender: NodeId, announced: tuple[int, ...]) -> None:
        """Refuse a member whose scale would round what all others hand in to nothing."""
        most, tensors = self._scale_bits, len(self._edges)
        if self._method.settling:
            return  # nobody hands anything in
        if most is not None and any(
            e > max(own, 0) + most
            for e, own in zip(announced[:tensors], self._exponents[:tensors], strict=True)
        ):
            raise self._refusal(
                sender,
                Reason.UNSAFE_SCALE,
                f"it announces values up to 2^{max(announced[:tensors])}, over 2^{most} times those of this member",
            )

    def _end_agree(self) -> None:
        state, present = self._state, self.agreed
        self._turn = step_of(self._attempt.round_) if self._own_pace else self._attempt.round_
        self._said = {sender: said for sender, said in self._said.items() if said.cell in self._heard_cells}
        for node in self._place.view:
            state.absent[node] = 0 if node in present else state.absent.get(node, 0) + 1
        claims = {self._me: state.claim, **{node: said.claim for node, said in present.items()}}
        self._standing = found = standing(claims, self._witnesses if self._method.robust else None)
        missing = tuple(node for node in self._place.view if node not in present)
        disputed = tuple((found.claim.keepers[k], nodes) for k, nodes in sorted(found.disputed.items()))
        holders = {self._place.plan.owner(node) for node in self._whole(found)}
        self._report = CellReport(
            missing=missing,
            behind=tuple(sorted(found.behind)),
            stranded=None in found.behind.values() and len(holders) <= self._place.plan.collusion,
            disputed=disputed,
        )
        self._hand_on(found)
        whole = self._stands_with(found, claims)
        if self._me in found.behind:
            self._fall_behind(found)
        elif disputed and found.concerns(state.claim):
            self._go_back(found)
            self.phase = CellPhase.DONE
        elif whole and self._may_add_up(found) and (self._method.settling or self._make_keys(found)):
            self._start_sum(found)
        else:
            self._stand_still()
        early, self._early = self._early, {}
        for (sender, kind, _), body in sorted(early.items(), key=lambda item: item[0]):
            try:
                self.handle(sender, kind, body)
            except RemoteProtocolError as error:
                self._rejected.append(error)

    def _stand_still(self) -> None:
        """Nobody hands anything in. Hearing cells are told the model, with what was overheard, and a keeper listens for its slice."""
        self._still, self.phase = True, CellPhase.EXCHANGE
        self._value = self._overheard_in(self._own_span)
        self._tell_hearers(self._own_span)
        if self._method.weighted or self._roll or (self._method.settling and self._own_pace):
            self.phase = CellPhase.DONE  # it says which cells are in its model, or tries the step again
        elif self._own_pace:  # it takes what has come, and waits for nobody
            self._end_exchange()

    def listen(self) -> dict[NodeId, RoundNo]:
        """While members are awaited: tell hearing cells the model, and take in what heard cells have said; whose words that are."""
        if self.phase is not CellPhase.AGREE or self._method.settling or self._method.weighted:
            return {}
        self._stand_still()
        mixed, self._said = self.mixed, {}
        self._still, self._has_mixed, self.phase = False, False, CellPhase.AGREE
        # By the next link of the graph: with the same one in every call, the other cells would never be heard, nor hear this one.
        self._turn += self._own_pace
        return mixed

    def _overheard_in(self, span: Span) -> Vector:
        """The model in a range, with what was overheard there."""
        return self._state.with_overheard(
            span.first, _copy(self._state.common[64 * span.first : 64 * span.last])
        )

    def _may_add_up(self, found: Standing) -> bool:
        """Whether every member of the sum is there, has given up the same members and holds the same model.

        Who has handed in in this round already, before a restart, does not do so again: the answers that are on their way to
        it are those to its first attempt, and what it has trained since is in none of them.
        """
        others = [node for node in self._members if node != self._me]
        return (
            self._state.claim.round_ != self._attempt.round_
            and self._place.plan.objection(self._members) is None
            and not found.disputed
            and all(n in self.agreed and n not in found.behind for n in others)
            and all(self.agreed[n].given_up == self._given_up for n in others)
        )

    def _witnesses(self, nodes: Iterable[NodeId]) -> bool:
        """Whether one of these members is honest, so that there was a vote as they say."""
        plan = self._place.plan
        return len({plan.owner(node) for node in nodes}) > max(1, plan.collusion)

    def _stands_with(self, found: Standing, claims: Mapping[NodeId, Claim]) -> bool:
        """Whether the members of the sum hold one model and have thrown away the same. What one of them has to throw away all
        do: a keeper that withholds its answer from all but one could otherwise have that one alone keep what it trains.
        """
        state, settles = self._state, self._method.settling
        there = [n for n in self._members if n in claims]
        unlike = any(self.agreed[n].losses != state.losses for n in there if n != self._me)
        unlike = state.forgotten({n: claims[n] for n in there}) or unlike
        behind = [n for n in there if n in found.behind]
        if settles:  # nobody hands anything in
            unlike, behind = False, [n for n in behind if n == self._me]
        if not (unlike or behind or found.disputed):
            state.fallback = None
            return True
        astray = any(found.behind[n] is None or not found.concerns(claims[n]) for n in behind)
        everything = unlike or astray or bool(found.disputed) or not found.concerns(state.claim)
        self._doubted = state.doubt
        state.throw_away(self._attempt.round_, everything=everything)
        self._hide()
        return False

    # ── catching up ─────────────────────────────────────────────────────────────────────────────────────

    def _whole(self, found: Standing) -> frozenset[NodeId]:
        """Who has all that the cell holds."""
        return frozenset((*self.agreed, self._me)) - found.behind.keys()

    def _hand_on(self, found: Standing) -> None:
        """Give members what they lack, if it falls to this one: of those who have it, to the lowest."""
        whole = sorted(self._whole(found))
        for node, lacking in sorted(found.behind.items()):
            if node == self._me:
                continue
            if lacking is not None:
                for number in lacking:
                    if found.holders[number][0] == self._me and number in self._state.bodies:
                        body = self._state.bodies[number]  # a sum that begins now will forget it
                        self.outbox.add(partial(self._make_missed, node, number, body), node)
            elif self._me in whole:
                model = self._model_body
                if whole[0] == self._me:
                    self.outbox.add(partial(self._make_model, node), node)
                else:
                    frame = encode_vouch(self._header(Kind.CELL_VOUCH), model_digest(model))
                    self.outbox.add(partial(Outbound, (node,), frame), node)

    @cached_property
    def _model_body(self) -> bytes:
        """The common model as it is now, before this round changes it."""
        state = self._state
        common = state.common.astype("<f4", copy=False).view(np.uint8).data
        # Members can have come to the same link by different gatherings; it alone is named.
        link = Claim(state.claim.chain(), NEVER, (), ())
        distances = state.known_distances().astype("<f4").tobytes()
        carried = CARRIED.pack(*self._carried) if self._method.weighted else b""
        return Model.body(link, self._cell, common, state.scores.tobytes(), distances, carried)

    def _read_model(self, body: memoryview) -> Model:
        scores, distances = len(self._state.scores), 4 * self._state.distances.size
        return Model.decode(body, self._cell, self._size, scores, distances, self._most)

    def _make_missed(self, node: NodeId, number: int, body: Buffer) -> Outbound:
        return Outbound((node,), Missed.encode(self._header(Kind.CELL_MISSED), number, body))

    def _make_model(self, node: NodeId) -> Outbound:
        return Outbound((node,), Model.encode(self._header(Kind.CELL_MODEL), self._model_body, self._size))

    def _fall_behind(self, found: Standing) -> None:
        """This member has to be given what its cell holds."""
        self.phase = CellPhase.CATCH_UP
        if found.behind[self._me] is None:
            return
        if found.concerns(self._state.claim):
            self._go_back(found)
        else:  # it is at the base, and has nothing of the last gathering
            self._state.begin_gathering(found.claim, None)

    def _go_back(self, found: Standing) -> None:
        """Undo the slices of which members were told different things."""
        state = self._state
        state.overheard = None
        for number in [k for k in found.disputed if state.claim.digests[k] and k in state.undo]:
            first, last = spans(self._words, len(state.claim.keepers))[number]
            state.common[64 * first : 64 * last], scores = state.undone(number)
            if len(scores):
                start = first * 64 // self._block
                state.scores[start : start + len(scores)] = scores
            state.bodies.pop(number, None)
            state.recent.pop(number, None)
            state.told.pop(number, None)
            state.measured.pop(number, None)
            state.set_digest(number, b"")

    def _hide(self) -> None:
        """Numbers were taken out of E, and what is left may have been scored: it is not scored again."""
        if self._block:
            self._state.hidden = self._state.unsent.copy()

    def _helpers(self) -> frozenset[NodeId]:
        """Who is to give this member what it still lacks."""
        assert self._standing is not None
        lacking = self._standing.behind[self._me]
        if lacking is None:
            return frozenset() if self._report.stranded else self._whole(self._standing) - {self._me}
        still = [k for k in lacking if not self._state.claim.digests[k]]
        return frozenset(self._standing.holders[k][0] for k in still if self._standing.holders.get(k))

    def _on_missed(self, sender: NodeId, body: memoryview) -> None:
        if self.phase is not CellPhase.CATCH_UP or self._standing is None:
            return
        number, content = Missed.decode(body)
        lacking, target = self._standing.behind[self._me], self._standing.claim
        state = self._state
        if lacking is None or number not in lacking or state.claim.digests[number]:
            return  # not what this member lacks: who has heard other claims may think so, and is no liar
        change = self._read_handed_on(number, len(target.keepers), RoundNo(target.round_), content)
        if change.digest != target.digests[number]:
            raise self._refusal(
                sender, Reason.STALE_ATTEMPT, f"this is not the slice {number} that the others have"
            )
        piece = change.piece
        if not self._apply(number, change):
            raise self._refusal(sender, Reason.UNSAFE_SCALE, "it would make the model infinite")
        state.overheard = None
        # The sum came about: what this member had handed in there is in it, and no longer its own.
        first, last = spans(self._words, len(target.keepers))[number]
        doubted, thrown = state.doubt or self._doubted, state.doubt is None
        if doubted is not None and state.entered is not None:
            answered = np.zeros(self._words, dtype=np.uint64)
            answered[first:last] = doubted.positions[first:last] & state.entered[first:last]
            summed = np.where(bits.to_bools(answered, self._size), doubted.values, np.float32(0))
            refused = self._method.robust and change.offer is None  # by most
            if refused != thrown:
                state.discard(summed if refused else -summed)
            if not thrown:
                state.unsent = state.unsent - summed
                self._hide()
                state.fallback = state.unsent.copy()
                state.settle_doubt(answered)
        assert piece.first == first, "pieces of a slice begin where it does"
        if all(state.claim.digests[k] for k in lacking):
            self.phase = CellPhase.DONE

    def _on_model(self, sender: NodeId, body: memoryview) -> None:
        if self.phase is not CellPhase.CATCH_UP or self._standing is None:
            return
        if self._standing.behind[self._me] is not None:
            return  # this member lacks slices; the giver has heard other claims
        model = self._read_model(body)
        if model.claim.chain() != self._standing.chain:
            raise self._refusal(sender, Reason.STALE_ATTEMPT, "it is not the model that the cell holds")
        if self._models:
            raise self._refusal(sender, Reason.DUPLICATE, "this member was given a model already")
        digest = model_digest(body)
        self._models[digest] = body
        self._on_vouch(sender, digest)

    def _on_vouch(self, sender: NodeId, digest: bytes) -> None:
        """A model counts if members of k + 1 owners say the same: at least one of them is honest."""
        if self.phase is not CellPhase.CATCH_UP:
            return
        if len(digest) != 32:
            raise EncodingError("a digest has 32 bytes")
        plan = self._place.plan
        owner = plan.owner(sender)
        if any(owner in owners for other, owners in self._vouched.items() if other != digest):
            raise self._refusal(sender, Reason.DUPLICATE, "its owner has vouched for another model")
        self._vouched.setdefault(digest, set()).add(owner)
        body = self._models.get(digest)
        if body is None or len(self._vouched[digest]) <= plan.collusion:
            return
        model = self._read_model(body)
        common = np.frombuffer(model.common, dtype="<f4").astype(np.float32)
        if not can_be_told(common):
            raise self._refusal(sender, Reason.UNSAFE_SCALE, "the model is not finite, or too large")
        state = self._state
        state.common, state.overheard = common, None
        state.begin_gathering(model.claim, None)
        state.claim = model.claim
        if self._method.weighted:
            state.carries = Carried(*model.carried)
        state.scores = np.frombuffer(model.scores, dtype=np.uint8).copy()
        if self._method.robust:
            known = np.frombuffer(model.distances, dtype="<f4").astype(np.float32)
            state.distances = known.reshape(state.distances.shape)
        state.fallback = None
        self.phase = CellPhase.DONE

    # ── scatter ─────────────────────────────────────────────────────────────────────────────────────────

    @cached_property
    def _positions(self) -> CellPositions:
        """U."""
        if self._method.settling:
            return everything(self._size)
        return self._method.sparsifier.for_cell(self._attempt, self._size, self._state.scores)

    @property
    def chosen(self) -> IndexSet:
        """What the cell hands in in this round."""
        return self._positions.chosen

    @cached_property
    def _slices(self) -> tuple[Piece, ...]:
        return self._positions.slices(len(self._members), self._edges)

    @cached_property
    def _number(self) -> int:
        """Of the own slice."""
        return self._members.index(self._me)

    def _blocks_of(self, span: Span) -> slice:
        """The blocks in a range of words."""
        per_word, count = 64 // self._block, len(self._state.scores)
        return slice(min(span.first * per_word, count), min(span.last * per_word, count))

    def _make_keys(self, found: Standing) -> bool:
        """The masks of this sum; False if a member has announced a key that is none."""
        others = [node for node in self._members if node != self._me]
        scale = ring.largest_exponents([self.agreed[n].exponents for n in others], self._exponents)
        scale = tuple(map(max, scale, self._exponents))
        tensors = len(self._edges)
        self._grids = [ring.binary_grid(self._width, self._edges, scale[:tensors], len(self._members))]
        if self._ranks:
            blocks = np.array([len(self._scores)])
            self._grids.append(ring.binary_grid(SCORE_BITS, blocks, scale[tensors:], len(self._members)))
        if extras := len(self._extras):
            ends, exponents = (
                np.arange(1, extras + 1),
                (0,) * self._weighs + (METRIC_EXPONENT, 0) * self._measures,
            )
            self._grids.append(ring.binary_grid(EXTRA_BITS, ends, exponents, len(self._members)))
        agreed = ring.exponents_to_bytes(scale)
        if self._method.weighted:
            agreed += struct.pack("<dB", self._unit, self._weighs)
        if self._method.metric:
            agreed += struct.pack("<B", self._measures)
        terms = cell_terms(
            self._place.number,
            self._members,
            agreed,
            self._positions.chosen.digest,
            found.chain,
        )
        tokens = {self._me: self._token, **{node: self.agreed[node].token for node in others}}
        self._facts = cell_facts(terms, (tokens[node].to_bytes() for node in self._members))
        for node in others:
            try:
                secret = self._keys.secret(node, tokens[node].ephemeral)
            except DataError as error:
                self._rejected.append(self._refusal(node, Reason.MALFORMED, str(error)))
                return False
            self._checks[node] = cell_mask_key(
                secret,
                self._attempt,
                nodes=(self._me, node),
                seeds=(self._token.seed, tokens[node].seed),
                cell=self._place.number,
                terms=terms,
            )
            if self._votes_now:
                self._poll.secrets[node] = secret
        self._poll.terms = terms
        return True

    def _start_sum(self, found: Standing) -> None:
        state = self._state
        entered = None if self._method.settling else self._positions.chosen.words
        state.begin_gathering(Claim(found.chain, self._attempt.round_, self._members, ()), entered)
        self._report = replace(self._report, members=self._members)
        if self._method.settling:
            self.phase = CellPhase.SCATTER
            self._value = self._overheard_in(self._own_span)
            self._end_scatter()
            return
        self.phase = CellPhase.SCATTER
        state.handed = Handed(self._members, self._positions.chosen.words)
        if self._ranks:
            state.scored, state.hidden = self._members, self._hidden
        self.unsaved = True
        self.handed_in = self._positions.chosen.count
        # From the next member on, and around: else all would send to the lowest first.
        order = [*range(self._number + 1, len(self._members)), *range(self._number)]
        for number in order:
            self.outbox.add(partial(self._make_scatter, number), self._members[number])

    @cached_property
    def _masks(self) -> list[tuple[Keystream, bool]]:
        return [(Keystream(key.key), wants_negation(self._me, node)) for node, key in self._checks.items()]

    def _mask_slice(self, number: int, out: NDArray[np.unsignedinteger]) -> None:
        """The values that this member hands in to one slice, masked. Each is made when it is needed, at its place in the keystreams, so that
        no more than a slice is ever in memory.
        """
        if number in self._masked:
            raise PrivacyError("a mask is used once")
        self._masked.add(number)
        piece, before = self._slices[number], sum(piece.count for piece in self._slices[:number])
        span = Span(piece.first, piece.last)
        part = Part(self._to_hand_in, self._positions.chosen, self._grids[0], span, before, out)
        masked_rows([part], self._masks)

    @cached_property
    def _beside_values(self) -> list[RingWords]:
        """Scores, and the numbers that every keeper gets, masked: the keystreams go on after the values."""
        parts = []
        if self._ranks:
            parts.append(Part(self._scores, IndexSet.full(len(self._scores)), self._grids[1]))
        if len(self._extras):
            parts.append(Part(self._extras, IndexSet.full(len(self._extras)), self._grids[-1]))
        if not parts:
            return []
        return masked_rows([parts[0]._replace(before=self._positions.chosen.count), *parts[1:]], self._masks)

    @cached_property
    def _extras(self) -> Vector:
        """Numbers that every keeper gets, the same word each: one sum that all of them know."""
        found = [self._own_weight] if self._weighs else []
        if self._measures:
            assert self._metric is not None
            whole = np.rint(self._metric)  # exact as a float32, and so is its sum once it is rounded again
            found += [float(whole), float(self._metric - whole)]
        return np.array(found, dtype=np.float32)

    @cached_property
    def _measures(self) -> bool:
        """Whether this sum has metrics: it is over the whole cell, and everybody brings one. It is in the masks' keys."""
        return (
            not self._method.settling
            and self._metric is not None
            and self._members == self._cell
            and all(self.agreed[node].metric for node in self._place.view)
        )

    @property
    def _own_weight(self) -> float:
        """W on the ring: every member sees for itself that it is not above 1."""
        return min(self._state.samples / self._unit, 1.0)

    @cached_property
    def _to_hand_in(self) -> Vector:
        """What is handed in, the same for all slices; where there is noise each member adds its part, as if its partners of k owners added none."""
        noise, plan = self._method.noise, self._place.plan
        if self._method.weighted:
            return self._state.unsent * np.float32(self._own_weight)
        if noise is None:
            return self._state.unsent
        owned = Counter(plan.owner(node) for node in self._members)
        honest = sum(sorted(owned.values())[: len(owned) - plan.collusion])
        return noise.noisy(self._state.unsent, honest, self._entropy)

    def _cut_beside(self, number: int) -> list[RingWords]:
        """What of the rows beside the values is for one slice."""
        rows, piece = self._beside_values, self._slices[number]
        found = []
        if self._ranks:
            found.append(rows[0][self._blocks_of(Span(piece.first, piece.last))])
        if len(self._extras):
            found.append(rows[-1])
        return found

    def _fill_scatter(self, number: int, out: ByteArray) -> None:
        """Write the masked values of a slice where they travel from."""
        if (words := packing.in_place(out, self._width)) is not None:
            self._mask_slice(number, words)
            return
        words = memory.empty(self._slices[number].count, np.uint32)
        self._mask_slice(number, words)
        packing.pack(words, self._width, out)

    def _make_scatter(self, number: int) -> Outbound | None:
        """None once the round is over. What was handed in is not in E any more then, although no keeper but a lying one can have added
        up without this slice: made of what is left in E, it would take this member out of the liar's sum.
        """
        if self.phase is CellPhase.DONE:
            return None
        count = self._slices[number].count
        values = [Row(packing.packed_size(count, self._width), partial(self._fill_scatter, number))]
        beside = zip(self._cut_beside(number), self._widths[1:], strict=True)
        values += [packed(row, width) for row, width in beside]
        checks = [self._checks[node].check for node in self._members if node != self._me]
        frame = Scatter.encode(self._header(Kind.CELL_SCATTER), self._facts, checks, values, count)
        return Outbound((self._members[number],), frame)

    def _on_scatter(self, sender: NodeId, body: memoryview) -> None:
        if self.phase is not CellPhase.SCATTER or self._method.settling:
            return  # this member did not add up, or waits no longer
        if sender not in self._members:
            raise self._refusal(sender, Reason.UNEXPECTED, "it is not in this sum")
        if sender in self._came:
            raise self._refusal(sender, Reason.DUPLICATE, "it has sent its slice already")
        share = Scatter.decode(body, len(self._members) - 1)
        if share.facts != self._facts:
            raise self._refusal(sender, Reason.STALE_ATTEMPT, "it rests on other agreements")
        piece = self._slices[self._number]
        counts = [piece.count]
        if self._ranks:
            blocks = self._blocks_of(Span(piece.first, piece.last))
            counts.append(blocks.stop - blocks.start)
        if len(self._extras):
            counts.append(len(self._extras))
        rows, rest = [], share.values
        for k, (count, width) in enumerate(zip(counts, self._widths, strict=True)):
            length = len(rest) if k == len(counts) - 1 else packing.packed_size(count, width)
            check_row(rest[:length], count, width)
            seen = packing.in_place(rest[:length], width)
            rows.append(packing.unpack(rest[:length], width, count) if seen is None else seen)
            rest = rest[length:]
        self._add(rows)
        self._came[sender] = share.checks
        self._state.came[sender] = self._attempt.round_

    def _add(self, rows: Sequence[NDArray[np.unsignedinteger]]) -> None:
        """Add a member's rows to the sum."""
        if not self._totals:
            self._totals = [memory.empty(len(row), np.uint32) for row in rows]
            for total, row in zip(self._totals, rows, strict=True):
                total[:] = row
        else:
            for total, row in zip(self._totals, rows, strict=True):
                add_words(total, row)

    @cached_property
    def _widths(self) -> list[int]:
        """The bits of each row that a member hands in."""
        scores = [SCORE_BITS] if self._ranks else []
        return [self._width, *scores, *([EXTRA_BITS] if len(self._extras) else [])]

    def _sum_is_whole(self) -> bool:
        """Whether every slice has come, and every mask has met its opposite."""
        if len(self._came) != len(self._members) - 1:
            return False
        checks = {self._me: {node: key.check for node, key in self._checks.items()}}
        for sender, words in self._came.items():
            others = (node for node in self._members if node != sender)
            checks[sender] = dict(zip(others, words, strict=True))
        unequal = tuple(
            (i, j) for i in self._members for j in self._members if i < j and checks[i][j] != checks[j][i]
        )
        if unequal:
            self._report = replace(self._report, unequal=unequal)
        return not unequal

    def _end_scatter(self) -> None:
        piece, state = self._slices[self._number], self._state
        whole = self._method.settling or self._sum_is_whole()
        if whole and not self._method.settling:
            count = len(self._members)
            own = memory.empty(piece.count, np.uint16 if self._width == 16 else np.uint32)
            self._mask_slice(self._number, own)
            self._add([own, *self._cut_beside(self._number)])
            del own
            # What honest members cannot have brought is noise, and is thrown away before anybody uses it.
            whole = all(
                ring.can_be(total, width, count, count)
                for total, width in zip(self._totals, self._widths, strict=True)
            )
            scales = self._grids[0].scales[piece.tensor : piece.tensor + len(piece.edges)]
            if self._method.weighted:
                whole = self._weigh() and whole
                steps = self._unit / (scales * max(self._carried.weight, 1.0))
            else:
                steps = 1.0 / (scales * count)
            self._value = self._overheard_in(self._own_span)
            whole = whole and is_tellable(*add_sum(self._value, piece, self._totals[0], steps, self._width))
            if self._votes_now:
                mean = from_words(self._totals[0], piece, steps, self._width)
            self._totals[0] = np.empty(0, dtype=np.uint32)  # a view would keep the memory
        if self._votes_now:
            self._offer(mean.astype(np.float32) if whole else None)
            return
        if not whole:
            self._carried = state.carried
        if not whole:
            self._value = self._overheard_in(self._own_span)
        self._tell_hearers(self._own_span)
        if whole:
            self.phase = CellPhase.EXCHANGE
            return
        self._changes[self._number] = None
        self._answer(Gather.nothing(self._header(Kind.CELL_GATHER)))
        self.phase = CellPhase.GATHER

    def _weigh(self) -> bool:
        """Take the samples of all members from their sum, if it has them; False if these cannot be."""
        if self._weighs:
            total = self._totals[-1][:1].view(np.int32).astype(np.float64) / self._grids[-1].scales[0]
            samples = float(np.rint(total[0] * self._unit))
            self._carried = Carried(samples, samples)
        return self._carried.total >= 1.0

    def _mean_metric(self) -> float:
        """The mean of all members' metrics, from their sum."""
        words = self._totals[-1][-2:].view(np.int32).astype(np.float64) / self._grids[-1].scales[-2:]
        # Each member rounds once, by half a step at most: less than one half together, for 255 members of the largest metrics.
        mean = (np.rint(words[0]) + words[1]) / len(self._members)
        return float(np.clip(mean, -METRIC_RANGE, METRIC_RANGE))

    # ── offer and vote ──────────────────────────────────────────────────────────────────────────────────

    def _offer(self, mean: Vector | None) -> None:
        """Tell the members the mean update in the own slice, or that there is none."""
        self.phase, self._value = CellPhase.OFFER, None
        header = self._header(Kind.CELL_OFFER)
        if mean is None:
            self._poll.offers[self._number] = None
            self._answer(empty_frame(Kind.CELL_OFFER, header))
            return
        piece = self._slices[self._number]
        exponents = piece.exponents(mean)
        dither = dither_seed(self._attempt.session, self._attempt.round_, self._me, b"offer")
        row = write_grid(mean, piece, exponents, self._width, dither)
        frame = Offer.encode(header, self._block_bitmap(piece.members), exponents, row, piece.count)
        body = memoryview(frame.payload)[HEADER_BYTES:]
        self._poll.offers[self._number] = self._read_offer(
            self._number, len(self._members), self._attempt.round_, body
        )
        self._answer(frame)

    def _read_offer(self, number: int, parts: int, round_: RoundNo, body: memoryview) -> Offered:
        """Raises `EncodingError`."""
        span = spans(self._words, parts)[number]
        within = self._blocks_of(span) if self._block else slice(0, 0)
        message = Offer.decode(body, within.stop - within.start)
        if self._block:
            piece = piece_of(self._from_blocks(message.blocks, span), *span, self._edges)
        else:
            piece = self._drawn(round_, parts)[number]
        exponents, values = row_of(message.rest, len(piece.edges))
        check_row(values, piece.count, self._width)
        return Offered(piece, exponents, values, body)

    def _on_offer(self, sender: NodeId, body: memoryview) -> None:
        if not self._adds or sender not in self._members:
            return  # this member did not add up, or waits no longer
        number = self._members.index(sender)
        if number in self._poll.offers:
            raise self._refusal(sender, Reason.DUPLICATE, "it has told the mean of its slice already")
        if not len(body):
            self._poll.offers[number] = None
            return
        offer = self._read_offer(number, len(self._members), self._attempt.round_, body)
        if not np.array_equal(offer.piece.members, self._slices[number].members):
            raise self._refusal(sender, Reason.MALFORMED, "it is about other positions")
        self._poll.offers[number] = offer

    def _end_offer(self) -> None:
        """Compare the mean update with the own, and vote."""
        self.phase = CellPhase.VOTE
        header = self._header(Kind.CELL_VOTE)
        offers = [self._poll.offers.get(k) for k in range(len(self._members))]
        if any(offer is None for offer in offers):
            self._answer(empty_frame(Kind.CELL_VOTE, header))
            self._end_without_outcome()
            return
        sums, digests = np.zeros(3), []
        for offer in offers:
            assert offer is not None
            mean = read_grid(offer.values, offer.piece, offer.exponents, self._width)
            own = np.empty(offer.piece.count, dtype=np.float32)
            take(self._state.unsent, offer.piece.members, offer.piece.base, own)
            sums += products(mean, own)
            digests.append(slice_digest(offer.body))
        self._poll.seen = offers_digest(digests)
        ballot = fill_ballot(objects_to(*sums.tolist()), len(self._members), self._entropy)
        terms = hashlib.sha256(b"cesar cell vote" + self._poll.terms + self._poll.seen).digest()
        masks = []
        for node, secret in self._poll.secrets.items():
            key = cell_mask_key(
                secret,
                self._attempt,
                nodes=(self._me, node),
                seeds=(self._token.seed, self.agreed[node].token.seed),
                cell=self._place.number,
                terms=terms,
            )
            masks.append((key, wants_negation(self._me, node)))
        self._poll.ballot = mask_ballot(ballot, masks)
        self._answer(Vote.encode(header, self._facts, self._poll.seen, self._poll.ballot))

    def _on_vote(self, sender: NodeId, body: memoryview) -> None:
        if not self._adds or sender not in self._members:
            return  # this member did not add up, or waits no longer
        if sender in self._poll.votes:
            raise self._refusal(sender, Reason.DUPLICATE, "it has voted already")
        if not len(body):
            self._poll.votes[sender] = None
            return
        vote = Vote.decode(body, DRAWS * boxes(len(self._members)))
        if vote.facts != self._facts:
            raise self._refusal(sender, Reason.STALE_ATTEMPT, "its vote rests on other agreements")
        self._poll.votes[sender] = vote

    def _end_vote(self) -> None:
        """Count, and go on with what most have not refused."""
        assert self._poll.ballot is not None
        others = [self._poll.votes.get(node) for node in self._members if node != self._me]
        known = {node: vote for node, vote in self._poll.votes.items() if vote is not None}
        unequal = tuple(n for n in sorted(known) if known[n].seen != self._poll.seen[: len(known[n].seen)])
        if unequal:  # somebody was offered something else
            pairs = tuple((min(self._me, n), max(self._me, n)) for n in unequal)
            self._report = replace(self._report, unequal=pairs)
        if unequal or len(known) < len(others):
            self._end_without_outcome()
            return
        total = self._poll.ballot.copy()
        for vote in known.values():
            total += vote.ballot
        objections = count_objections(total, len(self._members))
        self._poll.refused = is_refused(objections, len(self._members))
        self._state.refusals = self._state.refusals + 1 if self._poll.refused else 0
        self._report = replace(self._report, objections=objections, refusals=self._state.refusals)
        piece, offer = self._slices[self._number], self._poll.offers[self._number]
        assert offer is not None
        value = piece.rows(self._state.common).copy()
        if not self._poll.refused:
            row = read_grid(offer.values, piece, offer.exponents, self._width)
            add_at(value, piece.members, 0, row)
        self._plain = value.copy()
        value = self._state.with_overheard(piece.first, value)
        if can_be_told(value):
            self._value = value
            if self._poll.refused:
                self._tell_hearers_nothing()
            else:
                self._tell_hearers(self._own_span)
            self.phase = CellPhase.EXCHANGE
        else:
            self._end_without_change()

    def _end_without_outcome(self) -> None:
        """This member does not know what most say; if the others do they will hand it on."""
        self._end_without_change()
        self.phase = CellPhase.DONE

    def _end_without_change(self) -> None:
        """Hearing cells are told the model as it was, and the members that nothing changes in the own slice."""
        self._value = self._overheard_in(self._own_span)
        self._tell_hearers(self._own_span)
        self._changes[self._number] = None
        self._answer(Gather.nothing(self._header(Kind.CELL_GATHER)))
        self.phase = CellPhase.GATHER

    def _yard(self, piece: Piece) -> float:
        """How long updates are in a slice, by what members have announced."""
        within = slice(piece.tensor, piece.tensor + len(piece.edges))
        told = [self._exponents, *(self.agreed[n].exponents for n in self._members if n in self.agreed)]
        counts = np.diff(piece.edges, prepend=0).tolist()
        return float(np.float32(yard_of([exponents[within] for exponents in told], counts)))

    def _read_handed_on(self, number: int, parts: int, round_: RoundNo, body: memoryview) -> Change:
        """A slice as another member has kept it; raises `EncodingError`."""
        if not self._method.robust:
            return self._read_change(number, parts, round_, body)
        voted = Voted.decode(body)
        change = self._read_change(number, parts, round_, voted.rest)._replace(yard=voted.yard)
        offer = self._read_offer(number, parts, round_, voted.offer) if len(voted.offer) else None
        return change._replace(offer=offer, digest=slice_digest(body), body=body)

    def _with_outcome(self, number: int, change: Change) -> Change:
        """A slice with what most members have not refused."""
        offer = None if self._poll.refused or self._method.settling else self._poll.offers[number]
        yard = float("inf") if self._method.settling else self._yard(self._slices[number])
        body = Voted.encode(yard, b"" if offer is None else offer.body, change.body)
        return change._replace(offer=offer, yard=yard, digest=slice_digest(body), body=body)

    # ── exchange ────────────────────────────────────────────────────────────────────────────────────────

    def _plan_span(self, node: NodeId) -> Span:
        """The range that a node looks after if its whole cell is there; other cells go by that."""
        cell = self._place.plan.cells[self._place.plan.cell_of(node)]
        return spans(self._words, len(cell))[cell.index(node)]

    def _can_keep(self, node: NodeId, span: Span) -> bool:
        """Whether these words can be of a node's slice, with any of its cell given up: nobody speaks for the keepers beside it."""
        plan = self._place.plan
        cell = plan.cells[plan.cell_of(node)]
        place = cell.index(node)
        for members in range(len(cell), min(plan.least, len(cell)) - 1, -1):
            first = max(0, place - (len(cell) - members))  # all who were given up stand before it
            cut = spans(self._words, members)
            if any(_within(span, own) for own in cut[first : place + 1]):
                return True
        return False

    def _tell_hearers(self, own: Span) -> None:
        """Queue what hearing cells are told about the own slice."""
        plan, weight = self._place.plan, self._carried.weight if self._method.weighted else None
        # As it is now: a frame may be made after this cell has heard others. Where a cell stands still with members given up, what
        # is told is another range than the slice that `present` is about.
        still = self._still and self._members != self._cell
        present = frozenset((self._place.number,)) if still else self.present
        value = self._value
        assert value is not None
        for cell in plan.graph.hearing(self._place.number, self._turn):
            for node, span in zip(plan.cells[cell], spans(self._words, len(plan.cells[cell])), strict=True):
                if len(common := own.meet(span)):
                    self.outbox.add(partial(self._make_exchange, node, common, own, value, weight, present))

    def _tell_hearers_nothing(self) -> None:
        """A cell that refuses its own sum falls behind, and must not hold others back; they need not wait for it."""
        plan = self._place.plan
        frame = empty_frame(Kind.CELL_EXCHANGE, self._header(Kind.CELL_EXCHANGE))
        for cell in plan.graph.hearing(self._place.number, self._turn):
            self.outbox.add(partial(Outbound, plan.cells[cell], frame))

    def _make_exchange(
        self,
        node: NodeId,
        span: Span,
        own: Span,
        value: Vector,
        weight: float | None,
        present: frozenset[int],
    ) -> Outbound:
        piece = piece_of(self._positions.chosen.words, *span, self._edges)
        start = 64 * (span.first - own.first)
        values = piece.compact(value[start : start + 64 * len(span)])
        exponents = piece.exponents(values)
        dither = dither_seed(self._attempt.session, self._attempt.round_, self._me, node)
        row = write_grid(values, piece, exponents, self._width, dither)
        frame = Exchange.encode(
            self._header(Kind.CELL_EXCHANGE),
            span,
            weight,
            self._block_bitmap(piece.members),
            exponents,
            row,
            piece.count,
            cells_to_bytes(present, self._roll) if self._roll else b"",
        )
        return Outbound((node,), frame)

    @property
    def _roll(self) -> int:
        """How many cells there are, where they say which are in their models; else 0."""
        return len(self._place.plan.cells) if self._method.roll_call and self._method.settling else 0

    def _block_bitmap(self, members: BitWords) -> bytes:
        """Which blocks are in a range of a bitmap; nothing where positions do not follow from blocks."""
        if not self._ranks:
            return b""
        per_word = 64 // self._block
        lanes = (members[:, None] >> np.arange(0, 64, self._block, dtype=np.uint64)) & bits.ONE
        return np.packbits(
            lanes.astype(np.uint8).reshape(len(members) * per_word), bitorder="little"
        ).tobytes()

    def _from_blocks(self, bitmap: bytes, span: Span) -> BitWords:
        """The positions, over all words, of blocks in a range; raises `EncodingError` for one that does not exist."""
        per_word = 64 // self._block
        flags = np.unpackbits(np.frombuffer(bitmap, dtype=np.uint8), bitorder="little").astype(np.bool_)
        blocks = self._blocks_of(span)
        if flags[blocks.stop - blocks.start :].any():
            raise EncodingError("a bit is set for a block that does not exist")
        words = np.zeros(self._words, dtype=np.uint64)
        chosen = flags[: len(span) * per_word]
        high = min(64 * span.last, self._size)
        words[span.first : span.last] = expand_blocks(chosen, self._block, high - 64 * span.first)
        return words

    @property
    def _heard_cells(self) -> dict[int, float]:
        heard = self._place.plan.graph.heard(self._place.number, self._turn)
        return {link.cell: link.weight for link in heard}

    def _on_exchange(self, sender: NodeId, body: memoryview, round_: RoundNo, age: int = 0) -> None:
        plan = self._place.plan
        cell = next((c for c in self._heard_cells if sender in plan.cells[c]), None)
        if cell is None:
            raise self._refusal(sender, Reason.STRANGER, "its cell is not heard in this round")
        if sender in self._said and not self._own_pace:
            raise self._refusal(sender, Reason.DUPLICATE, "it has told its cell's model already")
        if self._method.robust and not len(body):
            self._poll.silent.add(sender)
            return
        per_word = 64 // self._block if self._ranks else 0
        message = Exchange.decode(body, self._words, per_word, self._most, self._roll)
        if not (_within(message.span, self._plan_span(self._me)) and self._can_keep(sender, message.span)):
            raise EncodingError("its slice and that of this member have no such words in common")
        if self._ranks:
            words = self._from_blocks(message.blocks, message.span)
            if (
                bits.count(words) > self._positions.chosen.count + self._block
            ):  # the last block may be shorter
                raise EncodingError("it names more blocks than a cell hands in")
        elif round_ == self._attempt.round_ or self._method.settling:
            words = self._positions.chosen.words
        else:
            there = RoundId(self._attempt.session, round_)
            words = self._method.sparsifier.for_cell(there, self._size, self._state.scores).chosen.words
        piece = piece_of(words, *message.span, self._edges)
        exponents, values = row_of(message.rest, len(piece.edges))
        check_row(values, piece.count, self._width)
        if self.phase <= CellPhase.EXCHANGE:
            self._said[sender] = Said(
                cell, piece, exponents, values, round_, age, message.weight, message.cells
            )

    @property
    def _adds(self) -> bool:
        """Whether this member is in a sum that is under way."""
        return self.phase in _ADDING and not self._still

    @property
    def _own_span(self) -> Span:
        """The range that this member looks after: its slice of the sum, or of the whole cell where nobody adds up."""
        if self._still:
            return self._plan_span(self._me)
        piece = self._slices[self._number]
        return Span(piece.first, piece.last)

    def _unheard(self) -> frozenset[NodeId]:
        """Who has not told its part of the range that others take for this member's."""
        plan = self._place.plan
        expected = self._own_span.meet(self._plan_span(self._me))
        missing: set[NodeId] = set()
        for cell in self._heard_cells:
            told = [said for said in self._said.values() if said.cell == cell]
            covered = sum(len(expected.meet(Span(said.piece.first, said.piece.last))) for said in told)
            if covered < len(expected):
                members = plan.cells[cell]
                parts = zip(members, spans(self._words, len(members)), strict=True)
                missing |= {n for n, span in parts if len(expected.meet(span)) and n not in self._said}
        return frozenset(missing - self._poll.silent)

    def _end_exchange(self) -> None:
        """Mix with what heard cells have said; tell the members, or keep it for the next sum if the cell stands still."""
        value, own = self._value, self._own_span
        assert value is not None
        new, positions = self._mix(own, value)
        if self._still:
            change = new - self._state.common[64 * own.first : 64 * own.last]
            if can_be_told(new) and can_be_told(change):
                self._state.overheard = Overheard(own.first, change) if change.any() else None
            self.phase = CellPhase.DONE
            return
        piece = self._slices[self._number]
        overheard = self._state.overheard
        if self._ranks and overheard is not None:  # what was overheard is told with the rest
            changed = np.zeros(self._size, dtype=np.bool_)
            changed[64 * overheard.first :][: len(overheard.change)] = overheard.change != 0
            flags = np.logical_or.reduceat(changed, np.arange(0, self._size, self._block))
            positions = positions.copy() if positions is self._positions.chosen.words else positions
            positions[own.first : own.last] |= expand_blocks(flags, self._block, self._size)[
                own.first : own.last
            ]
        if positions is not self._positions.chosen.words:
            piece = piece_of(positions, *own, self._edges)
        self._gather(piece, new)

    def _mix(self, own: Span, value: Vector) -> tuple[Vector, BitWords]:
        """The model in a range after what heard cells have said about it, and the positions that it may have changed at."""
        new, positions = _copy(value) if self._said else value, self._positions.chosen.words
        heard: dict[int, int] = {}
        self._has_mixed = True
        differences: list[tuple[int, BitWords, int, NDArray[np.float64]]] = []
        weights: dict[int, float] = {}
        for sender in sorted(self._said):
            said = self._said[sender]
            if said.weight == 0.0:
                continue  # its members are not weighed yet, so that its model stands for nothing
            shared = own.meet(Span(said.piece.first, said.piece.last))
            if not len(shared):
                continue
            row = read_grid(said.values, said.piece, said.exponents, self._width)
            part, inner = said.piece, said.piece.members[shared.first - said.piece.first :][: len(shared)]
            if len(inner) < len(part.members):
                skipped = bits.count(part.members[: shared.first - part.first])
                row = row[skipped : skipped + bits.count(inner)]
            if said.round_ != self._attempt.round_ and not self._ranks and not self._method.settling:
                # Positions of another round: only those count that this cell hands in, too.
                both = inner & self._positions.chosen.words[shared.first : shared.last]
                length = 64 * len(shared)
                row = row[bits.to_bools(both, length)[bits.to_bools(inner, length)]]
                inner = both
            offset = 64 * (shared.first - own.first)
            mine = np.empty(len(row), dtype=np.float32)
            take(value, inner, offset, mine)
            differences.append((said.cell, inner, offset, row - mine))
            if self._ranks:
                positions = positions.copy() if positions is self._positions.chosen.words else positions
                positions[shared.first : shared.last] |= inner
            heard[said.cell] = max(said.age, heard.get(said.cell, 0))
            if said.weight is not None:
                weights.setdefault(said.cell, said.weight)
        links = self._mixed_weights(weights) if self._method.weighted else self._heard_cells
        shares = self._believed(differences) if self._method.robust else {}
        for cell, inner, offset, difference in differences:
            add_at(new, inner, offset, links[cell] * shares.get(cell, 1.0) * difference)
        if self._roll:
            self.present |= self._brought(own)
        cells = tuple(sorted(heard))
        self._report = replace(self._report, heard=cells, ages=tuple(heard[cell] for cell in cells))
        return new, positions

    def _brought(self, own: Span) -> frozenset[int]:
        """The cells that came into the own slice: of a heard cell those that every one of its keepers has named, if these have told the
        whole of it. A cell that is in a part of the slice only is not counted.
        """
        found: set[int] = set()
        for cell in self._heard_cells:
            told = [said for said in self._said.values() if said.cell == cell and said.weight != 0.0]
            shared = [own.meet(Span(said.piece.first, said.piece.last)) for said in told]
            if told and sum(map(len, shared)) >= len(own):
                found |= frozenset.intersection(
                    *(s.cells for s, part in zip(told, shared, strict=True) if len(part))
                )
        return frozenset(found)

    @property
    def looks_after(self) -> tuple[tuple[NodeId, ...], int]:
        """The members of the sum, and how many words of the model are this member's slice of it."""
        piece = self._slices[self._number]
        return self._members, piece.last - piece.first

    def _mixed_weights(self, heard: dict[int, float]) -> dict[int, float]:
        """Mix the cell's weight with those of heard cells, and say what each of their models counts in the own.

        With v' = (1 − Σ a)·v + Σ a·v_b the new model is ((1 − Σ a)·v·X + Σ a·v_b·X_b) / v' = X + Σ (a·v_b / v')·(X_b − X).
        """
        own, links = self._carried.weight, self._heard_cells
        mixed = own + sum(links[cell] * (weight - own) for cell, weight in heard.items())
        self._carried = self._carried._replace(weight=mixed)
        return {cell: links[cell] * weight / mixed for cell, weight in heard.items()}

    def _believed(
        self, differences: list[tuple[int, BitWords, int, NDArray[np.float64]]]
    ) -> dict[int, float]:
        """The part of each heard cell's difference that is believed: all of it, unless it is further away than usual."""
        span = self._own_span
        yard = (
            float("inf")
            if self._method.settling
            else self._yard(piece_of(self._positions.chosen.words, *span, self._edges))
        )
        most = most_distance(self._state.distances, self._words, span, FACTOR * yard)
        parts: dict[int, float] = {}
        for cell in {cell for cell, *_ in differences}:
            with np.errstate(over="ignore"):
                away = root_mean_square(np.concatenate([d for c, _, _, d in differences if c == cell]))
            parts[cell] = most / away if away > most else 1.0
        return parts

    def _gather(self, piece: Piece, new: Vector) -> None:
        """Round the change to a grid, and tell the members; where these vote, from what they have voted on."""
        before = piece.rows(self._state.common) if self._plain is None else self._plain
        # Frames to hearing cells may still be made of the value before; what is in the way of nobody becomes the change.
        spare = new is not self._value or not self._place.plan.graph.hearing(self._place.number, self._turn)
        change: Vector = new if spare else memory.empty(len(new), np.float32)
        with np.errstate(over="ignore", invalid="ignore"):
            change = piece.compact(np.subtract(new, before, out=change))
        scores = b""
        if self._ranks:
            step = 1.0 / self._grids[1].scales[0]
            signed = (self._totals[1] << np.uint32(32 - SCORE_BITS)).view(np.int32) >> (32 - SCORE_BITS)
            scores = score_codes(signed.astype(np.float64) * step).tobytes()
        if not can_be_told(change):  # what others have said makes it infinite: then nothing changes
            self._state.overheard = None
            self._changes[self._number] = None
            self._answer(Gather.nothing(self._header(Kind.CELL_GATHER)))
            self.phase = CellPhase.GATHER
            return
        exponents = piece.exponents(change)
        dither = dither_seed(self._attempt.session, self._attempt.round_, self._me)
        row = Row(
            packing.packed_size(piece.count, self._width),
            partial(fill_grid, change, piece, exponents, self._width, dither),
        )
        frame = Gather.encode(
            self._header(Kind.CELL_GATHER),
            self._method.settling,
            self._beside(),
            self._block_bitmap(piece.members),
            scores,
            exponents,
            row,
            piece.count,
        )
        # The keeper reads its own frame: all members use the very same rounded numbers.
        body = memoryview(frame.payload)[HEADER_BYTES:]
        self._changes[self._number] = self._read_change(
            self._number, len(self._members), self._attempt.round_, body
        )
        self._answer(frame)
        self.phase = CellPhase.GATHER

    def _beside(self) -> bytes:
        """What a keeper tells of the whole cell: its weights, and the mean of its metrics unless most have refused what came of it."""
        weights = CARRIED.pack(*self._carried) if self._method.weighted else b""
        if not self._method.metric:
            return weights
        return weights + metric_to_bytes(
            self._mean_metric() if self._measures and not self._poll.refused else None
        )

    def _answer(self, frame: Frame) -> None:
        others = tuple(node for node in self._members if node != self._me)
        self.outbox.add(partial(Outbound, others, frame))

    # ── gather ──────────────────────────────────────────────────────────────────────────────────────────

    def _read_change(self, number: int, parts: int, round_: RoundNo, body: memoryview) -> Change:
        """What a keeper says about its slice; raises `EncodingError`."""
        span = spans(self._words, parts)[number]
        within = self._blocks_of(span) if self._block else slice(0, 0)
        blocks = within.stop - within.start
        message = Gather.decode(body, blocks, self._most, measured=self._method.metric)
        if message.everything:
            piece = everything(self._size).slices(parts, self._edges)[number]
        elif self._block:
            piece = piece_of(self._from_blocks(message.blocks, span), *span, self._edges)
        else:
            piece = self._drawn(round_, parts)[number]
        exponents, values = row_of(message.rest, len(piece.edges))
        check_row(values, piece.count, self._width)
        digest = b"" if self._method.robust else slice_digest(body)
        turn = step_of(round_) if self._own_pace else round_
        heard = self._place.plan.graph.heard(self._place.number, turn)
        reach = sum(link.weight for link in heard)
        return Change(
            piece,
            exponents,
            values,
            message.scores,
            digest,
            body,
            reach=reach,
            everything=message.everything,
            carried=Carried(*message.carried) if message.carried else None,
            metric=message.metric,
        )

    def _drawn(self, round_: RoundNo, parts: int) -> tuple[Piece, ...]:
        """The slices of a round whose positions follow from its number."""
        if round_ == self._attempt.round_ and not self._method.settling:
            return self._positions.slices(parts, self._edges)
        attempt = RoundId(self._attempt.session, round_)
        drawn = self._method.sparsifier.for_cell(attempt, self._size, self._state.scores)
        return drawn.slices(parts, self._edges)

    def _on_gather(self, sender: NodeId, body: memoryview) -> None:
        if not self._adds or sender not in self._members:
            return  # this member did not add up, or waits no longer
        number = self._members.index(sender)
        if number in self._changes:
            raise self._refusal(sender, Reason.DUPLICATE, "it has told about its slice already")
        if not len(body):
            self._changes[number] = None
            return
        self._changes[number] = self._read_change(number, len(self._members), self._attempt.round_, body)

    def _apply(self, number: int, change: Change) -> bool:
        """Change the common model in a slice; False, and nothing happens, if that would make it infinite."""
        state, piece = self._state, change.piece
        rows = piece.rows(state.common)
        archived = state.archive is not None and not self._method.robust and piece.count == len(rows)
        before, away = None if archived else _copy(rows), 0.0
        if archived:  # there is nothing to go back to in memory: look before anything changes
            told_row = (rows, piece, change.values, change.exponents, self._width)
            if not is_tellable(add_row(*told_row, write=False)[0]):
                return False
            add_row(*told_row)
            told = True
        elif self._method.robust:
            values = read_grid(change.values, piece, change.exponents, self._width)
            values, away = self._bounded(number, change, values)
            if change.offer is not None:
                offer = change.offer
                row = read_grid(offer.values, offer.piece, offer.exponents, self._width)
                add_at(rows, offer.piece.members, 0, row)
            add_at(rows, piece.members, 0, values)
            told = can_be_told(rows)
        else:
            told = is_tellable(add_row(rows, piece, change.values, change.exponents, self._width)[0])
        if not told:
            assert before is not None
            rows[:] = before
            return False
        scores = np.frombuffer(change.scores, dtype=np.uint8)
        first = piece.first * 64 // self._block if len(scores) else 0
        known = state.scores[first : first + len(scores)]
        state.undo[number] = (before, known.copy())
        known[:] = scores
        state.set_digest(number, change.digest)
        if away > 0.0:
            state.recent[number] = away
        if change.carried is not None:
            state.told[number] = change.carried
        if self._method.metric:
            state.measured[number] = change.metric
        self._applied = True
        state.bodies[number] = change.body
        return True

    def _bounded(
        self, number: int, change: Change, values: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float]:
        """What was heard of other cells, no further away than usual, and the distance to remember.

        A keeper has seen to that; here every member does, in the same way, in case it has not.
        """
        if not change.reach:  # this cell hears nobody, so there is nothing that a keeper could have heard
            return np.zeros_like(values), 0.0
        span = spans(self._words, len(self._state.claim.keepers))[number]
        most = most_distance(self._state.distances, self._words, span, FACTOR * change.yard)
        away = root_mean_square(values) / change.reach
        if away > most:
            values, away = values * (most / away), most
        return values, 0.0 if change.everything else away  # nobody trains while peers settle: no measure

    def finish(self) -> CellReport:
        """The round is over: apply what was gathered; what got no answer is in doubt."""
        state, summed = self._state, []
        if self._votes_now and self._poll.refused is None:
            self._changes = {}
        for number, told in sorted(self._changes.items()):
            if told is None:
                continue
            change = self._with_outcome(number, told) if self._method.robust else told
            if not self._apply(number, change):
                refused = self._refusal(
                    self._members[number], Reason.UNSAFE_SCALE, "its slice would make the model infinite"
                )
                self._rejected.append(refused)
                continue
            if self._members[number] == self._me:
                self._forget_overheard(change.piece)
            summed.append(self._members[number])
        if state.handed is not None:
            self._settle_handed(frozenset(summed))
        if self._report.members:
            state.remember()
        if self._method.noise is not None and not self._method.settling:
            state.forget()
        unsure = 0 if state.doubt is None else bits.count(state.doubt.positions)
        metric = state.metric if self._applied else None
        return replace(
            self._report, summed=tuple(summed), unsure=unsure, metric=metric, discarded=state.take_thrown()
        )

    def _forget_overheard(self, piece: Piece) -> None:
        """The members have been told what was overheard at these positions; what was drawn in no round yet stays."""
        overheard = self._state.overheard
        if overheard is None:
            return
        if piece.first == overheard.first and len(piece.rows(self._state.common)) == len(overheard.change):
            clear_at(overheard.change, piece.members, 0)
        else:  # the slices are cut in another way now
            overheard.change[:] = 0
        if not overheard.change.any():
            self._state.overheard = None

    def _settle_handed(self, summed: frozenset[NodeId]) -> None:
        """What is in a sum is no longer this member's; the rest of what it handed in is in doubt."""
        state = self._state
        assert state.handed is not None
        members, positions = state.handed
        open_ = None
        everything = self._positions.chosen.count == self._size and summed.issuperset(members)
        if everything and not self._poll.refused and state.clear():
            state.handed = None
            state.settle_doubt(positions)
            return
        for keeper, piece in zip(members, self._slices, strict=True):
            if keeper in summed:
                if self._poll.refused:
                    state.discard(self._at(piece, state.unsent))
                for vector in (state.unsent, state.hidden):
                    # Zeros that all share have nothing to clear.
                    if vector is not None and vector.flags.writeable:
                        clear_at(vector, piece.members, piece.base)
            elif piece.count:
                open_ = np.zeros_like(positions) if open_ is None else open_
                open_[piece.first : piece.last] = piece.members
        state.handed = None
        if open_ is None:
            state.settle_doubt(positions)
        else:
            state.settle_doubt(positions & ~open_)
            state.raise_doubt(members, open_)

    def _at(self, piece: Piece, vector: Vector) -> Vector:
        """The values at the positions of a piece, and zero elsewhere."""
        found = vector.copy()
        clear_at(found, piece.members, piece.base)
        return vector - found


_ANSWERS = (
    Kind.CELL_SCATTER,
    Kind.CELL_OFFER,
    Kind.CELL_GATHER,
    Kind.CELL_MISSED,
    Kind.CELL_MODEL,
    Kind.CELL_VOUCH,
)
_ADDING = (CellPhase.SCATTER, CellPhase.OFFER, CellPhase.VOTE, CellPhase.EXCHANGE, CellPhase.GATHER)
