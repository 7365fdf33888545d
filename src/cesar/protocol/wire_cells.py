"""The frames of cells: agree, scatter, exchange, gather, three by which a member catches up, and two of a vote.

Headers are those of `wire`. As there, nothing in a body says how much memory to reserve: lengths follow from the plan, the
round's positions and the range of words that a frame is about, and must match exactly. docs/wire.md has the fields.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from cesar.base import memory
from cesar.base.errors import EncodingError
from cesar.base.types import Buffer, ByteArray, NodeId, RingWords
from cesar.crypto.keys import CHECK_BYTES, DIGEST_BYTES, FACTS_BYTES, LOSSES_BYTES, chain_link
from cesar.kernels.ring import exponents_from_bytes, exponents_to_bytes
from cesar.kernels.slicing import Span, check_exponents
from cesar.methods.cells import METRIC_RANGE
from cesar.protocol.wire import HEADER_BYTES, Frame, Header, Kind, Token, members_from_bytes, members_to_bytes

NEVER = 0xFFFFFFFF
"""The round of the last gathering where there was none."""

_ROUND = struct.Struct("<I")
_RANGE = struct.Struct("<II")
_VOTED = struct.Struct("<fI")
_WEIGHT = struct.Struct("<d")
_METRIC = struct.Struct("<d")
CARRIED = struct.Struct("<dd")
"""A cell's weight and the samples of its members."""


_LEAST_WEIGHT = 2.0**-512
"""Weights are mixed and never vanish; what is smaller could become zero, and be divided by."""


def _check_weights(found: Sequence[float], most: float) -> None:
    if not all(weight == 0.0 or _LEAST_WEIGHT <= weight <= most for weight in found):
        raise EncodingError(f"a weight is outside 0..{most:g}; no cell has that number of samples")


def metric_to_bytes(metric: float | None) -> bytes:
    """The mean of a cell's metrics, or that it has none."""
    return _METRIC.pack(math.nan if metric is None else metric)


def _metric(view: memoryview) -> tuple[float | None, memoryview]:
    found, rest = _take(view, _METRIC.size, "the metric")
    metric: float = _METRIC.unpack(found)[0]
    if abs(metric) > METRIC_RANGE:
        raise EncodingError(f"a metric is outside -{METRIC_RANGE}..{METRIC_RANGE}")
    return (None if math.isnan(metric) else metric), rest


def _take(view: memoryview, count: int, what: str) -> tuple[memoryview, memoryview]:
    if len(view) < count:
        raise EncodingError(f"the frame ends inside {what}")
    return view[:count], view[count:]


def _exponents(view: memoryview, count: int) -> tuple[tuple[int, ...], memoryview]:
    found, rest = _take(view, count, "the exponents")
    exponents = exponents_from_bytes(bytes(found))
    check_exponents(exponents)
    return exponents, rest


class Row(NamedTuple):
    """Values that are made where they travel from: how many bytes, and who writes them."""

    length: int
    fill: Callable[[ByteArray], None]


def _frame(kind: Kind, header: Header, meta: bytes, values: Sequence[Buffer | Row], count: int) -> Frame:
    """A frame with values: its header counts as control, what stands before the values as metadata."""
    lead = header.to_bytes() + meta
    rows = [row if isinstance(row, Row) else Row(len(row), partial(_put, row)) for row in values]
    length = len(lead) + sum(row.length for row in rows)
    payload: ByteArray = memory.empty(length + -len(lead) % 4, np.uint8)[
        -len(lead) % 4 :
    ]  # values begin at a whole word
    payload[: len(lead)] = np.frombuffer(lead, dtype=np.uint8)
    start = len(lead)
    for row in rows:
        row.fill(payload[start : start + row.length])
        start += row.length
    sections = {"control": HEADER_BYTES, "metadata": len(meta), "values": length - len(lead)}
    return Frame(kind, payload.data if length >= memory.LEAST else payload.tobytes(), sections, count)


def _put(data: Buffer, out: ByteArray) -> None:
    out[:] = np.frombuffer(data, dtype=np.uint8)


class Claim(NamedTuple):
    """Which common model a member holds.

    Attributes:
        base: link of the chain before the last gathering.
        round_: of the last gathering; `NEVER` if there was none.
        keepers: who looked after its slices, ascending.
        digests: what this member got of each slice; empty where it got nothing.
    """

    base: bytes
    round_: int
    keepers: tuple[NodeId, ...]
    digests: tuple[bytes, ...]

    def chain(self) -> bytes:
        """The link that names this model; nothing gathered changes nothing."""
        if not any(self.digests):
            return self.base
        return chain_link(self.base, self.round_, self.keepers, self.digests)

    def to_bytes(self, cell: Sequence[NodeId]) -> bytes:
        named = b"".join(digest or bytes(DIGEST_BYTES) for digest in self.digests)
        return self.base + _ROUND.pack(self.round_) + members_to_bytes(self.keepers, cell) + named

    @classmethod
    def take(cls, view: memoryview, cell: Sequence[NodeId]) -> tuple[Claim, memoryview]:
        base, rest = _take(view, DIGEST_BYTES, "a link of the chain")
        round_, rest = _take(rest, _ROUND.size, "a round")
        bitmap, rest = _take(rest, (len(cell) + 7) // 8, "the keepers")
        keepers = members_from_bytes(bitmap, cell)
        named, rest = _take(rest, DIGEST_BYTES * len(keepers), "the digests of slices")
        digests = (bytes(named[k : k + DIGEST_BYTES]) for k in range(0, len(named), DIGEST_BYTES))
        found = tuple(digest if any(digest) else b"" for digest in digests)
        return cls(bytes(base), _ROUND.unpack(round_)[0], keepers, found), rest


class Agree(NamedTuple):
    """i → each other member: a fresh token, the scale of what it hands in, whom it has given up, and its model's name.

    `exponents` has one for each tensor and, where scores are added up, one more for those. `losses` names what the member has
    thrown away (`CellState.losses`). `metric` says whether it brings a metric; None, and not sent, where nobody does.
    """

    token: Token
    exponents: tuple[int, ...]
    given_up: tuple[NodeId, ...]
    losses: bytes
    claim: Claim
    metric: bool | None = None

    def encode(self, header: Header, cell: Sequence[NodeId]) -> Frame:
        payload = b"".join(
            (
                header.to_bytes(),
                self.token.to_bytes(),
                exponents_to_bytes(self.exponents),
                members_to_bytes(self.given_up, cell),
                self.losses,
                b"" if self.metric is None else bytes([self.metric]),
                self.claim.to_bytes(cell),
            )
        )
        return Frame(Kind.CELL_AGREE, payload, {"coordination": len(payload)})

    @classmethod
    def decode(
        cls, body: memoryview, cell: Sequence[NodeId], scales: int, *, measured: bool = False
    ) -> Agree:
        token, rest = Token.take(body)
        exponents, rest = _exponents(rest, scales)
        bitmap, rest = _take(rest, (len(cell) + 7) // 8, "whom it has given up")
        losses, rest = _take(rest, LOSSES_BYTES, "what it has thrown away")
        metric = None
        if measured:
            said, rest = _take(rest, 1, "whether it brings a metric")
            if said[0] > 1:
                raise EncodingError(f"{said[0]} does not say whether it brings a metric")
            metric = bool(said[0])
        claim, rest = Claim.take(rest, cell)
        if rest:
            raise EncodingError("the frame goes on after its end")
        return cls(token, exponents, members_from_bytes(bitmap, cell), bytes(losses), claim, metric)


class Scatter(NamedTuple):
    """i → the keeper of a slice: its masked values, and after them its masked scores where there are any."""

    facts: bytes
    checks: tuple[bytes, ...]
    values: ByteArray

    @staticmethod
    def encode(
        header: Header, facts: bytes, checks: Sequence[bytes], values: Sequence[Row], count: int
    ) -> Frame:
        return _frame(Kind.CELL_SCATTER, header, facts + b"".join(checks), values, count)

    @classmethod
    def decode(cls, body: memoryview, partners: int) -> Scatter:
        facts, rest = _take(body, FACTS_BYTES, "the facts")
        words, rest = _take(rest, CHECK_BYTES * partners, "the checks")
        checks = tuple(bytes(words[k : k + CHECK_BYTES]) for k in range(0, len(words), CHECK_BYTES))
        return cls(bytes(facts), checks, np.frombuffer(rest, dtype=np.uint8))


def cells_to_bytes(present: Iterable[int], cells: int) -> bytes:
    """A bitmap over all cells."""
    return members_to_bytes(tuple(NodeId(cell) for cell in sorted(present)), _numbers(cells))


def cells_from_bytes(bitmap: memoryview, cells: int) -> tuple[int, ...]:
    """The inverse; raises `EncodingError` for a cell that does not exist."""
    return members_from_bytes(bitmap, _numbers(cells)) if cells else ()


@cache
def _numbers(cells: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(cell) for cell in range(cells))


class Exchange(NamedTuple):
    """A keeper → a keeper of a hearing cell: its cell's model in a range of words.

    `blocks` is a bitmap over the blocks of the range, where these are chosen by scores; else it is empty. `weight` is what
    that model weighs, where members count by their samples; else it is None, and not sent. `cells` are those whose models are in the
    values, where cells say so while they settle.
    """

    span: Span
    weight: float | None
    blocks: bytes
    rest: memoryview
    cells: frozenset[int] = frozenset()

    @staticmethod
    def encode(
        header: Header,
        span: Span,
        weight: float | None,
        blocks: bytes,
        exponents: Sequence[int],
        values: ByteArray,
        count: int,
        cells: bytes = b"",
    ) -> Frame:
        weighed = b"" if weight is None else _WEIGHT.pack(weight)
        meta = _RANGE.pack(*span) + weighed + cells + blocks + exponents_to_bytes(exponents)
        return _frame(Kind.CELL_EXCHANGE, header, meta, (values.data,), count)

    @classmethod
    def decode(
        cls, body: memoryview, words: int, per_word: int, most: float | None = None, cells: int = 0
    ) -> Exchange:
        """Up to the exponents, whose number follows from the range: `row_of` reads them and the values.

        Args:
            words: of the bitmap over all positions.
            per_word: blocks in a word; 0 where there are none.
            most: no cell weighs more; None where members count alike.
            cells: how many there are, where they say which are in their models; else 0.
        """
        head, rest = _take(body, _RANGE.size, "the range")
        span = Span(*_RANGE.unpack(head))
        if not span.first < span.last <= words:
            raise EncodingError(f"words {span.first} to {span.last} of {words} are no range")
        weight = None
        if most is not None:
            found, rest = _take(rest, _WEIGHT.size, "the weight")
            weight = _WEIGHT.unpack(found)[0]
            _check_weights((weight,), most)
        named, rest = _take(rest, (cells + 7) // 8, "the cells")
        present = frozenset(cells_from_bytes(named, cells))
        blocks, rest = _take(rest, (len(span) * per_word + 7) // 8, "the blocks")
        return cls(span, weight, bytes(blocks), rest, present)


def row_of(view: memoryview, tensors: int) -> tuple[tuple[int, ...], ByteArray]:
    """Exponents and values that a body ends with."""
    exponents, rest = _exponents(view, tensors)
    return exponents, np.frombuffer(rest, dtype=np.uint8)


class Gather(NamedTuple):
    """A keeper → each other member: how the common model changes in its slice. An empty body: not at all.

    `everything` says that it is about all positions of the slice, as while settling. Else `blocks` is as in `Exchange`,
    with the blocks of heard cells as well, and `scores` are the cell's, of all blocks of the slice, one byte each. `carried` are the
    cell's weights afterwards, where members count by their samples; else it is empty. `metric` is the mean of the members' metrics, where
    all have brought one.
    """

    everything: bool
    carried: tuple[float, ...]
    blocks: bytes
    scores: bytes
    rest: memoryview
    metric: float | None = None

    @staticmethod
    def encode(
        header: Header,
        everything: bool,
        carried: bytes,
        blocks: bytes,
        scores: bytes,
        exponents: Sequence[int],
        values: Row,
        count: int,
    ) -> Frame:
        meta = bytes([everything]) + carried + blocks + scores + exponents_to_bytes(exponents)
        return _frame(Kind.CELL_GATHER, header, meta, (values,), count)

    @staticmethod
    def nothing(header: Header) -> Frame:
        """The sum of this slice did not come about."""
        return _frame(Kind.CELL_GATHER, header, b"", (), 0)

    @classmethod
    def decode(
        cls, body: memoryview, blocks: int, most: float | None = None, *, measured: bool = False
    ) -> Gather:
        """Up to the exponents; `blocks` is how many the slice has, `most` as in `Exchange`, and `measured` whether there are metrics."""
        head, rest = _take(body, 1, "what it is about")
        if head[0] > 1:
            raise EncodingError(f"{head[0]} does not say what it is about")
        carried: tuple[float, ...] = ()
        if most is not None:
            found, rest = _take(rest, CARRIED.size, "the weights")
            carried = CARRIED.unpack(found)
            _check_weights(carried, most)
        metric, rest = _metric(rest) if measured else (None, rest)
        if head[0]:
            return cls(True, carried, b"", b"", rest, metric)
        bitmap, rest = _take(rest, (blocks + 7) // 8, "the blocks")
        scores, rest = _take(rest, blocks, "the scores")
        return cls(False, carried, bytes(bitmap), bytes(scores), rest, metric)


class Offer(NamedTuple):
    """A keeper → each other member, where they vote: the cell's mean update in its slice. An empty body: there is no sum."""

    blocks: bytes
    rest: memoryview

    @staticmethod
    def encode(
        header: Header, blocks: bytes, exponents: Sequence[int], values: ByteArray, count: int
    ) -> Frame:
        meta = blocks + exponents_to_bytes(exponents)
        return _frame(Kind.CELL_OFFER, header, meta, (values.data,), count)

    @classmethod
    def decode(cls, body: memoryview, blocks: int) -> Offer:
        """Up to the exponents; `blocks` is how many the slice has."""
        bitmap, rest = _take(body, (blocks + 7) // 8, "the blocks")
        return cls(bytes(bitmap), rest)


class Vote(NamedTuple):
    """A member → each other member: its masked ballot on what it has been offered. An empty body: it cannot vote."""

    facts: bytes
    seen: bytes
    ballot: RingWords

    @staticmethod
    def encode(header: Header, facts: bytes, seen: bytes, ballot: RingWords) -> Frame:
        words = ballot.astype("<u2").tobytes()
        return _frame(Kind.CELL_VOTE, header, facts + seen[:FACTS_BYTES], (words,), 0)

    @classmethod
    def decode(cls, body: memoryview, words: int) -> Vote:
        facts, rest = _take(body, FACTS_BYTES, "the facts")
        seen, rest = _take(rest, FACTS_BYTES, "what it votes on")
        if len(rest) != 2 * words:
            raise EncodingError(f"a ballot of {len(rest)} bytes, but it has {words} boxes of two here")
        return cls(bytes(facts), bytes(seen), np.frombuffer(rest, dtype="<u2").astype(np.uint32))


def empty_frame(kind: Kind, header: Header) -> Frame:
    """An offer without a sum, or the vote of a member that cannot vote."""
    return _frame(kind, header, b"", (), 0)


class Voted(NamedTuple):
    """What has become of a slice where members vote: the offer, empty if it was refused, and the keeper's gather frame.

    Members make it themselves; its digest is in their claims, and a member that lacks the slice is handed it on. `yard` is how
    long updates are by what members have announced, for the first round in which a cell hears others (`cell_vote`).
    """

    yard: float
    offer: memoryview
    rest: memoryview

    @staticmethod
    def encode(yard: float, offer: Buffer, rest: Buffer) -> bytes:
        return b"".join((_VOTED.pack(yard, len(offer)), offer, rest))

    @classmethod
    def decode(cls, body: memoryview) -> Voted:
        head, rest = _take(body, _VOTED.size, "the length of the offer")
        yard, length = _VOTED.unpack(head)
        return cls(yard, *_take(rest, length, "the offer"))


class Missed(NamedTuple):
    """Any member → one that lacks a slice of the last gathering: what its keeper had sent."""

    number: int
    body: memoryview

    @staticmethod
    def encode(header: Header, number: int, body: Buffer) -> Frame:
        return _frame(Kind.CELL_MISSED, header, bytes([number]), (body,), 0)

    @classmethod
    def decode(cls, body: memoryview) -> Missed:
        head, rest = _take(body, 1, "the number of the slice")
        return cls(head[0], rest)


class Model(NamedTuple):
    """A member → one that holds another model: the common model as a whole, and its place in the chain.

    `distances` are what members have heard of other cells (`cell_vote`), where they vote, and `carried` the cell's weights where
    they count by their samples.
    """

    claim: Claim
    common: memoryview
    scores: bytes
    distances: bytes
    carried: tuple[float, ...]

    @staticmethod
    def body(
        claim: Claim,
        cell: Sequence[NodeId],
        common: memoryview,
        scores: bytes,
        distances: bytes = b"",
        carried: bytes = b"",
    ) -> bytes:
        return b"".join((claim.to_bytes(cell), scores, distances, carried, common))

    @staticmethod
    def encode(header: Header, body: bytes, size: int) -> Frame:
        meta = len(body) - 4 * size
        lead = memory.empty(HEADER_BYTES + len(body), np.uint8)
        lead[:HEADER_BYTES] = np.frombuffer(header.to_bytes(), dtype=np.uint8)
        lead[HEADER_BYTES:] = np.frombuffer(body, dtype=np.uint8)
        sections = {"control": HEADER_BYTES, "metadata": meta, "values": 4 * size}
        return Frame(Kind.CELL_MODEL, lead.data, sections, size)

    @classmethod
    def decode(
        cls,
        body: memoryview,
        cell: Sequence[NodeId],
        size: int,
        blocks: int,
        distances: int = 0,
        most: float | None = None,
    ) -> Model:
        claim, rest = Claim.take(body, cell)
        scores, rest = _take(rest, blocks, "the scores")
        known, rest = _take(rest, distances, "the distances")
        carried: tuple[float, ...] = ()
        if most is not None:
            found, rest = _take(rest, CARRIED.size, "the weights")
            carried = CARRIED.unpack(found)
            _check_weights(carried, most)
        if len(rest) != 4 * size:
            raise EncodingError(f"a model of {len(rest)} bytes, but it has {size} parameters here")
        return cls(claim, rest, bytes(scores), bytes(known), carried)


def encode_vouch(header: Header, digest: bytes) -> Frame:
    """A member → one that is given the model by another: the digest of what that must be."""
    return _frame(Kind.CELL_VOUCH, header, digest, (), 0)
