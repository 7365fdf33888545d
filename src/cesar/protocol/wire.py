"""Frames: what travels between nodes, in simulations and on networks alike.

Every frame starts with the same 28 bytes, numbers little end first:

| bytes | field   | meaning                                                              |
|-------|---------|----------------------------------------------------------------------|
| 2     | magic   | "CE"                                                                 |
| 1     | version | 3                                                                    |
| 1     | kind    | 1 announce, 2 relay, 3 share, 4 plain share; 5 was used before;      |
|       |         | of cells (`wire_cells`): 6 agree, 7 scatter, 8 exchange, 9 gather,   |
|       |         | 10 missed, 11 model, 12 vouch                                        |
| 4     | round   |                                                                      |
| 4     | sender  | node id; the transport must have authenticated the same              |
| 16    | session | which network and run; a frame of another session is refused         |

The bodies are below, one class each, and in docs/wire.md field by field. Nothing in a body says how much
memory to reserve: lengths follow from what the receiver already knows (d, degrees, announced sets) and
must match exactly, so a frame cannot claim gigabytes.

A frame is encoded once, and `sections` says which bytes of it count as what: coordination (announce and
relay), values, metadata (what stands beside the values), control (the header of a share).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from typing import ClassVar, NamedTuple

import numpy as np

from cesar.base import memory
from cesar.base.errors import EncodingError, VersionError
from cesar.base.types import Buffer, ByteArray, NodeId, RoundNo
from cesar.crypto.keys import (
    CHECK_BYTES,
    FACTS_BYTES,
    PUBLIC_BYTES,
    SEED_BYTES,
    SESSION_BYTES,
    VERSION,
    RoundId,
)
from cesar.kernels.ring import exponents_from_bytes, exponents_to_bytes

CATEGORIES = ("coordination", "values", "metadata", "control")
MAGIC = b"CE"
_HEADER = struct.Struct(f"<2sBBII{SESSION_BYTES}s")
_LENGTH = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
TOKEN_BYTES = SEED_BYTES + PUBLIC_BYTES


class Kind(IntEnum):
    ANNOUNCE = 1
    RELAY = 2
    SHARE = 3
    PLAIN_SHARE = 4
    CELL_AGREE = 6
    CELL_SCATTER = 7
    CELL_EXCHANGE = 8
    CELL_GATHER = 9
    CELL_MISSED = 10
    CELL_MODEL = 11
    CELL_VOUCH = 12
    CELL_OFFER = 13
    CELL_VOTE = 14


_KINDS = {kind.value: kind for kind in Kind}


class Header(NamedTuple):
    """Who sent what kind of frame, in which round of which session; made for every frame, so it is a tuple."""

    kind: Kind
    round_id: RoundId
    sender: NodeId

    def to_bytes(self) -> bytes:
        round_id = self.round_id
        return _HEADER.pack(MAGIC, VERSION, self.kind, round_id.round_, self.sender, round_id.session)


class Frame(NamedTuple):
    """Encoded bytes and what they count as; `parameters` is how many values they carry."""

    kind: Kind
    payload: Buffer
    sections: dict[str, int]
    parameters: int = 0

    def __repr__(self) -> str:
        return f"Frame({self.kind.name}, {self.sections})"


def read_header(payload: Buffer) -> tuple[Header, memoryview]:
    """Split a frame into its header and its body; raises as `open_frame`."""
    kind, round_, sender, session, body = open_frame(payload)
    return Header(kind, RoundId(session, round_), sender), body


def open_frame(payload: Buffer) -> tuple[Kind, RoundNo, NodeId, bytes, memoryview]:
    """Kind, round, sender, session and body of a frame.

    Raises:
        EncodingError: too short, another magic or an unknown kind.
        VersionError: another protocol version.
    """
    view = memoryview(payload)
    if len(view) < HEADER_BYTES:
        raise EncodingError(f"a frame has at least {HEADER_BYTES} bytes, this one has {len(view)}")
    magic, version, kind, round_, sender, session = _HEADER.unpack_from(view)
    if magic != MAGIC:
        raise EncodingError("this is not a cesar frame")
    if version != VERSION:
        raise VersionError(
            f"it speaks protocol version {version}, this node speaks {VERSION}; "
            "install the same cesar release on all nodes"
        )
    known = _KINDS.get(kind)
    if known is None:
        raise EncodingError(f"there is no frame kind {kind}")
    return known, round_, sender, session, view[HEADER_BYTES:]


def _take(view: memoryview, count: int, what: str) -> tuple[memoryview, memoryview]:
    if len(view) < count:
        raise EncodingError(f"the frame ends inside {what}")
    return view[:count], view[count:]


def members_to_bytes(members: Iterable[NodeId], view: Sequence[NodeId]) -> bytes:
    """A bitmap over a node's neighbours in ascending order."""
    return _bitmap(tuple(members), tuple(view))


def members_from_bytes(data: Buffer, view: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """The neighbours whose bits are set."""
    return _members(int.from_bytes(data, "little"), tuple(view))


@lru_cache(maxsize=4096)  # graphs change seldom, so the same are asked for in every round
def _bitmap(members: tuple[NodeId, ...], view: tuple[NodeId, ...]) -> bytes:
    chosen = set(members)
    value = sum(1 << k for k, node in enumerate(view) if node in chosen)
    return value.to_bytes((len(view) + 7) // 8, "little")


@lru_cache(maxsize=4096)
def _members(value: int, view: tuple[NodeId, ...]) -> tuple[NodeId, ...]:
    if value >> len(view):
        raise EncodingError("a bit is set for a neighbour that does not exist")
    return tuple(node for k, node in enumerate(view) if value >> k & 1)


def _take_exponents(view: memoryview, tensors: int) -> tuple[tuple[int, ...], memoryview]:
    found, rest = _take(view, tensors, "the exponents")
    return exponents_from_bytes(bytes(found)), rest


class Token(NamedTuple):
    """What a node draws afresh: the seed of this attempt, and the public half of its ephemeral key."""

    seed: bytes
    ephemeral: bytes

    def __repr__(self) -> str:
        return f"Token(ephemeral={self.ephemeral!r})"

    def to_bytes(self) -> bytes:
        return self.seed + self.ephemeral

    @classmethod
    def take(cls, view: memoryview) -> tuple[Token, memoryview]:
        """The token that a buffer begins with, and the rest."""
        if len(view) < TOKEN_BYTES:
            raise EncodingError("the frame ends inside a seed and a key")
        return cls(bytes(view[:SEED_BYTES]), bytes(view[SEED_BYTES:TOKEN_BYTES])), view[TOKEN_BYTES:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """i → its neighbours: a fresh token, the scale of each tensor, and the selected positions.

    `indices` is an encoded index set.
    """

    kind: ClassVar[Kind] = Kind.ANNOUNCE
    token: Token
    exponents: tuple[int, ...]
    indices: Buffer = field(repr=False)

    def encode(self, header: Header) -> Frame:
        body = self.token.to_bytes() + exponents_to_bytes(self.exponents)
        payload = b"".join((header.to_bytes(), body, self.indices))
        return Frame(self.kind, payload, {"coordination": len(payload)})

    @classmethod
    def decode(cls, body: memoryview, tensors: int) -> Announce:
        token, rest = Token.take(body)
        exponents, indices = _take_exponents(rest, tensors)
        return cls(token=token, exponents=exponents, indices=indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayItem:
    """What a relay tells about one partner: its token, and its set as the addressee needs it."""

    token: Token
    indices: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """r → its neighbour j: who takes part in r's sum and at what scale, and j's partners via r.

    `items` are in ascending order of the partners that r relays to j; both know which these are.
    """

    kind: ClassVar[Kind] = Kind.RELAY
    exponents: tuple[int, ...]
    group: tuple[NodeId, ...]
    items: tuple[RelayItem, ...]

    def encode(self, header: Header, view: Sequence[NodeId]) -> Frame:
        head = exponents_to_bytes(self.exponents) + members_to_bytes(self.group, view)
        parts: list[Buffer] = [header.to_bytes(), head]
        for item in self.items:
            parts += (item.token.to_bytes(), _LENGTH.pack(len(item.indices)), item.indices)
        payload = b"".join(parts)
        return Frame(self.kind, payload, {"coordination": len(payload)})

    @classmethod
    def decode(cls, body: memoryview, view: Sequence[NodeId], tensors: int) -> Relay:
        exponents, rest = _take_exponents(body, tensors)
        group, rest = _take(rest, (len(view) + 7) // 8, "the group")
        items: list[RelayItem] = []
        while rest:
            if len(items) == len(view):
                raise EncodingError(f"more partners than the {len(view)} neighbours of the receiver")
            token, rest = Token.take(rest)
            length, rest = _take(rest, _LENGTH.size, "a length")
            indices, rest = _take(rest, _LENGTH.unpack(length)[0], "an index set")
            items.append(RelayItem(token=token, indices=indices))
        return cls(exponents=exponents, group=members_from_bytes(group, view), items=tuple(items))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """i → r: masked values in ascending order of position, and whose masks they carry.

    `facts` says on which announcements the share rests (`crypto.keys.facts_of`). `checks` has one short word per
    partner; the partner's share carries the same word if both made the same mask. `indices` is None unless the method
    sends indices beside the values.
    """

    kind: ClassVar[Kind] = Kind.SHARE
    facts: bytes
    partners: tuple[NodeId, ...]
    checks: tuple[bytes, ...]
    indices: Buffer | None = field(repr=False)
    values: ByteArray = field(repr=False)

    @classmethod
    def allocate(
        cls,
        header: Header,
        view: Sequence[NodeId],
        *,
        facts: bytes,
        checks: dict[NodeId, bytes],
        indices: bytes | None,
        parameters: int,
        values: int,
    ) -> tuple[ByteArray, Frame]:
        """A frame whose `values` bytes at the end are yet to be written, and the place to write them.

        They start at a multiple of four bytes in memory, so that words can be written in place.
        """
        partners = tuple(sorted(checks))
        parts = [header.to_bytes(), facts, members_to_bytes(partners, view)]
        parts += (checks[partner] for partner in partners)
        if indices is not None:
            parts += (_LENGTH.pack(len(indices)), indices)
        head = b"".join(parts)
        lead = -len(head) % 4
        buffer: ByteArray = memory.empty(lead + len(head) + values, np.uint8)
        buffer[lead : lead + len(head)] = np.frombuffer(head, dtype=np.uint8)
        sections = {"control": HEADER_BYTES, "metadata": len(head) - HEADER_BYTES, "values": values}
        payload = buffer[lead:].data
        frame = Frame(kind=cls.kind, payload=payload, sections=sections, parameters=parameters)
        return buffer[lead + len(head) :], frame

    @classmethod
    def decode(cls, body: memoryview, view: Sequence[NodeId], explicit: bool) -> Share:
        facts, rest = _take(body, FACTS_BYTES, "the facts")
        members, rest = _take(rest, (len(view) + 7) // 8, "the partners")
        partners = members_from_bytes(members, view)
        words, rest = _take(rest, CHECK_BYTES * len(partners), "the checks")
        indices = None
        if explicit:
            length, rest = _take(rest, _LENGTH.size, "a length")
            indices, rest = _take(rest, _LENGTH.unpack(length)[0], "the indices")
        return cls(
            facts=bytes(facts),
            partners=partners,
            checks=tuple(bytes(words[k : k + CHECK_BYTES]) for k in range(0, len(words), CHECK_BYTES)),
            indices=indices,
            values=np.frombuffer(rest, dtype=np.uint8),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainShare:
    """i → r in the baselines: values in the clear, with the positions they belong to."""

    kind: ClassVar[Kind] = Kind.PLAIN_SHARE
    indices: Buffer = field(repr=False)
    values: ByteArray = field(repr=False)

    def encode(self, header: Header) -> Frame:
        head = header.to_bytes() + _LENGTH.pack(len(self.indices))
        payload = b"".join((head, self.indices, self.values.tobytes()))
        sections = {
            "control": HEADER_BYTES,
            "metadata": _LENGTH.size + len(self.indices),
            "values": len(self.values),
        }
        return Frame(kind=self.kind, payload=payload, sections=sections, parameters=len(self.values) // 4)

    @classmethod
    def decode(cls, body: memoryview) -> PlainShare:
        length, rest = _take(body, _LENGTH.size, "a length")
        indices, rest = _take(rest, _LENGTH.unpack(length)[0], "the indices")
        return cls(indices=indices, values=np.frombuffer(rest, dtype=np.uint8))
