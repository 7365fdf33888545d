"""One masked share: what a sender puts on the wire for one receiver.

The values are processed in blocks of positions that stay in the cache: the masks of all partners are
summed into the block, the rounded values are added at the positions that carry enough masks, and the
result is written straight into the frame. However large the model, the only large object is the frame.

The k-th word of a pair's keystream masks the k-th position that both selected, not the k-th parameter:
a fraction α² of the words instead of all of them (docs/design/001-compact-keystream.md).
"""

from __future__ import annotations

import hashlib
import struct
import threading
from dataclasses import dataclass, field

import numpy as np

from cesar.base.errors import EncodingError, PrivacyError
from cesar.base.types import BitWords, ByteArray, NodeId, RingWords, Vector
from cesar.crypto.keys import MaskKey, digest_positions
from cesar.crypto.keystream import Keystream
from cesar.kernels import bits, packing, ring
from cesar.protocol.wire import Token

BLOCK_WORDS = 1408
"""Bitmap words per block: 90,112 positions, whose masks take 352 KiB and stay in the second-level cache."""

SUM_MASK_BYTES = 1 << 19
"""Bytes of a sum's keystreams that are made at a time, about, for the same reason."""


@dataclass(frozen=True, slots=True)
class Partner:
    """What a sender knows of one mask partner.

    Attributes:
        token: the partner's fresh seed of this attempt, and its ephemeral key.
        words: the positions that the partner selected, or those of them that this sender selected too.
        common: how many positions both selected, per block.
        digest: of these positions.
    """

    token: Token
    words: BitWords = field(repr=False)
    common: tuple[int, ...]
    digest: bytes

    @classmethod
    def of(cls, token: Token, theirs: BitWords, own: BitWords) -> Partner:
        common = bits.both(own, theirs)
        counts = np.empty(-(-len(own) // BLOCK_WORDS), dtype=np.int64)
        bits.count_blocks(common, BLOCK_WORDS, counts)
        return cls(token, theirs, tuple(counts.tolist()), digest_positions(common))


def kept_positions(own: BitWords, partners: list[BitWords], masking_requirement: int) -> BitWords:
    """I_{i→r}: the own positions that at least s of the partners selected too."""
    kept = bits.at_least(partners, masking_requirement, len(own))
    kept &= own
    return kept


@dataclass(frozen=True, slots=True)
class Masker:
    """A partner's mask for one receiver, ready to be added."""

    key: MaskKey
    partner: Partner
    negate: bool


_local = threading.local()


def _scratch(name: str, words: int) -> RingWords:
    """Working memory of this thread, kept because the system takes longer to give it than we to fill it."""
    held: RingWords | None = getattr(_local, name, None)
    if held is None or len(held) < words:
        held = np.empty(words, dtype=np.uint32)
        setattr(_local, name, held)
    return held[:words]


def write_masked(
    out: ByteArray,
    vector: Vector,
    own: BitWords,
    kept: BitWords,
    maskers: list[Masker],
    grid: ring.Grid,
    dither: int,
) -> None:
    """Write the masked values at the kept positions, packed to the ring's width, to `out`.

    Block by block, so that masks, values and words of a block stay in the cache. In a block every masker adds one keystream word
    per *common* position of the two partners, kept or not: both ends must use up the same words of the stream, whatever the
    receiver is sent. Then the values at the *kept* positions are added and written without gaps.
    """
    streams = [Keystream(masker.key.key) for masker in maskers]
    total = 8 * len(out) // grid.bits
    if total and not maskers:
        raise PrivacyError("nothing leaves without a mask")
    words = (
        out.view("<u4") if grid.bits == 32 else np.empty(total, dtype=np.uint32)
    )  # 32 bits need no packing
    most = max((max(masker.partner.common, default=0) for masker in maskers), default=0)
    stream_words, masks = _scratch("stream", most), _scratch("masks", 64 * min(BLOCK_WORDS, len(own)))
    written = 0
    for index, start in enumerate(range(0, len(own), BLOCK_WORDS)):
        block = slice(start, min(start + BLOCK_WORDS, len(own)))
        mine = own[block]
        for k, (masker, stream) in enumerate(zip(maskers, streams, strict=True)):
            needed = stream_words[: masker.partner.common[index]]
            stream.fill(needed)
            ring.add_masks(masks, mine, masker.partner.words[block], needed, masker.negate, k == 0)
        written += ring.seal(
            masks,
            vector,
            kept[block],
            start,
            grid.edges,
            grid.scales,
            np.uint64(dither),
            words[written:],
        )
    assert written == total, "the frame was sized for other positions"
    if grid.bits != 32:
        packing.pack(words, grid.bits, out)


def read_values(data: ByteArray, count: int, width: int) -> RingWords:
    """The words of a share.

    Raises:
        EncodingError: these are not `count` words of `width` bits.
    """
    if len(data) != packing.packed_size(count, width):
        raise EncodingError(f"{count} values of {width} bits do not fill {len(data)} bytes")
    if count * width % 8 and data[-1] >> (count * width % 8):
        raise EncodingError("the padding is not zero")
    return packing.unpack(data, width, count)


def dither_for(secret: bytes, receiver: NodeId) -> int:
    """The seed of stochastic rounding towards one receiver; never 0, which means rounding to nearest."""
    digest = hashlib.sha256(secret + struct.pack("<I", receiver)).digest()
    return int.from_bytes(digest[:8], "little") | 1


def wants_negation(me: NodeId, partner: NodeId) -> bool:
    """The lower id adds the mask and the higher one subtracts it."""
    return me > partner
