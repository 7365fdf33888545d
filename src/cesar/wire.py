"""Frames: what travels between nodes, in simulations and on networks alike.

Every frame starts with the same 28 bytes, numbers little end first:

| bytes | field   | meaning                                                              |
|-------|---------|----------------------------------------------------------------------|
| 2     | magic   | "CE"                                                                 |
| 1     | version | 1                                                                    |
| 1     | kind    | 1 announce, 2 relay, 3 share, 4 plain share                          |
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
from typing import ClassVar

import numpy as np

from cesar import memory
from cesar.crypto.keys import CHECK_BYTES, FACTS_BYTES, SEED_BYTES, SESSION_BYTES, VERSION, Attempt
from cesar.errors import EncodingError
from cesar.ring import EXPONENT_BIAS
from cesar.types import Buffer, ByteArray, NodeId, RoundNo

CATEGORIES = ("coordination", "values", "metadata", "control")
MAGIC = b"CE"
_HEADER = struct.Struct(f"<2sBBII{SESSION_BYTES}s")
_LENGTH = struct.Struct("<I")
HEADER_BYTES = _HEADER.size


class Kind(IntEnum):
    ANNOUNCE = 1
    RELAY = 2
    SHARE = 3
    PLAIN_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Who sent what kind of frame, in which round of which session."""

    kind: Kind
    attempt: Attempt
    sender: NodeId

    def to_bytes(self) -> bytes:
        attempt = self.attempt
        return _HEADER.pack(MAGIC, VERSION, self.kind, attempt.round_, self.sender, attempt.session)


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Encoded bytes and what they count as; `parameters` is how many values they carry."""

    kind: Kind
    payload: Buffer = field(repr=False)
    sections: dict[str, int]
    parameters: int = 0


def read_header(payload: Buffer) -> tuple[Header, memoryview]:
    """Split a frame into its header and its body.

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
    try:
        known = Kind(kind)
    except ValueError:
        raise EncodingError(f"there is no frame kind {kind}") from None
    attempt = Attempt(session=session, round_=RoundNo(round_))
    return Header(kind=known, attempt=attempt, sender=NodeId(sender)), view[HEADER_BYTES:]


class VersionError(EncodingError):
    """The frame is of another protocol version."""


def _take(view: memoryview, count: int, what: str) -> tuple[memoryview, memoryview]:
    if len(view) < count:
        raise EncodingError(f"the frame ends inside {what}")
    return view[:count], view[count:]


def members_to_bytes(members: Iterable[NodeId], view: Sequence[NodeId]) -> bytes:
    """A bitmap over a node's neighbours in ascending order."""
    chosen = set(members)
    value = sum(1 << k for k, node in enumerate(view) if node in chosen)
    return value.to_bytes((len(view) + 7) // 8, "little")


def members_from_bytes(data: Buffer, view: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """The neighbours whose bits are set."""
    value = int.from_bytes(data, "little")
    if value >> len(view):
        raise EncodingError("a bit is set for a neighbour that does not exist")
    return tuple(node for k, node in enumerate(view) if value >> k & 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """i → its neighbours: a fresh seed, the scale of the model, and the selected positions.

    `indices` is an encoded index set; it is empty where the sets are drawn from the receiver (coordinated
    subsampling).
    """

    kind: ClassVar[Kind] = Kind.ANNOUNCE
    seed: bytes
    exponent: int
    indices: Buffer = field(repr=False)

    def encode(self, header: Header) -> Frame:
        body = self.seed + bytes([self.exponent + EXPONENT_BIAS])
        payload = b"".join((header.to_bytes(), body, self.indices))
        return Frame(kind=self.kind, payload=payload, sections={"coordination": len(payload)})

    @classmethod
    def decode(cls, body: memoryview) -> Announce:
        seed, rest = _take(body, SEED_BYTES, "the seed")
        exponent, indices = _take(rest, 1, "the exponent")
        return cls(seed=bytes(seed), exponent=exponent[0] - EXPONENT_BIAS, indices=indices)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayItem:
    """What a relay tells about one partner: its seed, and its set as the addressee needs it."""

    seed: bytes
    indices: Buffer = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Relay:
    """r → its neighbour j: who takes part in r's sum and at what scale, and j's partners via r.

    `items` are in ascending order of the partners that r relays to j; both know which these are.
    """

    kind: ClassVar[Kind] = Kind.RELAY
    exponent: int
    group: tuple[NodeId, ...]
    items: tuple[RelayItem, ...]

    def encode(self, header: Header, view: Sequence[NodeId]) -> Frame:
        head = bytes([self.exponent + EXPONENT_BIAS]) + members_to_bytes(self.group, view)
        parts: list[Buffer] = [header.to_bytes(), head]
        for item in self.items:
            parts += (item.seed, _LENGTH.pack(len(item.indices)), item.indices)
        payload = b"".join(parts)
        return Frame(kind=self.kind, payload=payload, sections={"coordination": len(payload)})

    @classmethod
    def decode(cls, body: memoryview, view: Sequence[NodeId]) -> Relay:
        exponent, rest = _take(body, 1, "the exponent")
        group, rest = _take(rest, (len(view) + 7) // 8, "the group")
        items = []
        while rest:
            seed, rest = _take(rest, SEED_BYTES, "a seed")
            length, rest = _take(rest, _LENGTH.size, "a length")
            indices, rest = _take(rest, _LENGTH.unpack(length)[0], "an index set")
            items.append(RelayItem(seed=bytes(seed), indices=indices))
        return cls(
            exponent=exponent[0] - EXPONENT_BIAS,
            group=members_from_bytes(group, view),
            items=tuple(items),
        )


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
        partners = sorted(checks)
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
