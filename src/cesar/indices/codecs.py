"""Writing an index set in few bytes, quickly. The first byte says which code was used.

| tag | code        | body                                                                             |
|-----|-------------|----------------------------------------------------------------------------------|
| 0   | full        | nothing: every position                                                          |
| 1   | bitmap      | ⌈size/8⌉ bytes                                                                   |
| 2   | patterns    | a density class (u8) per 4096 positions, then a Huffman code per 8 positions     |
| 3   | Rice        | count (u32), k (u8), then per gap its quotient in unary and k low bits           |
| 4   | Elias gamma | count (u32), then per gap ⌊log2 gap⌋ zeros, a one, and the low bits              |
| 6   | seed        | 16 bytes; the set is drawn from them                                             |

A gap is the distance to the previous member (the first one to −1), so it is at least one. Bits fill bytes
from the low end. Tag 5 was an entropy code; it is not used again. docs/wire.md has every detail; tools/vectors writes the same bytes without this package.

Which code? `encode` takes the fastest whose size is within 2 % of what the density of each block allows, or the
smallest where none is. Speed falls down the table: bitmap is a copy, patterns reads eight positions per table look-up,
Rice and Elias gamma one member at a time. Real TopK selections cluster by layer, which is why densities adapt by block.
docs/design/002-index-codes.md has the measurements.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cesar.base.errors import EncodingError
from cesar.base.types import BitWords, Buffer, ByteArray
from cesar.crypto.keys import SEED_BYTES
from cesar.indices import gaps, patterns
from cesar.indices.blocks import survey
from cesar.indices.indexset import IndexSet
from cesar.indices.streams import expect
from cesar.kernels import bits

SLACK = 0.02
"""A faster code may be this much larger than the entropy of the blocks."""


class Code(IntEnum):
    """The tag on the wire."""

    FULL = 0
    BITMAP = 1
    PATTERNS = 2
    RICE = 3
    ELIAS_GAMMA = 4
    SEED = 6


class _Codec(NamedTuple):
    """Both directions of a code that can write any set; the body is what follows the tag."""

    encode: Callable[[IndexSet], bytes]
    decode: Callable[[ByteArray, int], BitWords]


def _encode_bitmap(indices: IndexSet) -> bytes:
    return bits.to_bytes(indices.words, indices.size).tobytes()


def _decode_bitmap(body: ByteArray, size: int) -> BitWords:
    expect(len(body) == (size + 7) // 8, f"a bitmap of {size} positions has another length")
    return bits.from_bytes(body, size)


_CODECS = {
    Code.BITMAP: _Codec(_encode_bitmap, _decode_bitmap),
    Code.PATTERNS: _Codec(patterns.encode, patterns.decode),
    Code.RICE: _Codec(gaps.encode_rice, gaps.decode_rice),
    Code.ELIAS_GAMMA: _Codec(gaps.encode_gamma, gaps.decode_gamma),
}
_COUNTED = frozenset({Code.RICE, Code.ELIAS_GAMMA})


def encode(indices: IndexSet, code: Code | None = None) -> bytes:
    """The tag and the body of a set; without a `code`, the one that suits it.

    >>> encode(IndexSet.from_positions([0, 3], 8)).hex()
    '0109'
    """
    if code is None and indices.seed is None and indices.count < indices.size:
        return _encode_fitting(indices)
    chosen = code if code is not None else Code.FULL if indices.seed is None else Code.SEED
    return bytes([chosen]) + _body(indices, chosen)


def _encode_fitting(indices: IndexSet) -> bytes:
    """With the fastest code whose size is within `SLACK` of what can be reached, else with the smallest."""
    # From fast to slow: a bitmap is a copy, patterns look up a byte at a time, gap codes go from member to member. The first one
    # that is nearly as small as any could be is taken; only sets with structure get as far as the gap codes.
    known = survey(indices)
    rice = gaps.rice_parameter(indices)
    smallest = known.entropy / 8 + len(known.classes)  # no code that knows a density per block needs less
    if known.runs < 0.8 * known.expected_runs:  # members cluster within blocks: a gap code may do better
        smallest = min(smallest, gaps.size_of(indices, rice), gaps.size_of(indices, None))
    limit = (1 + SLACK) * smallest + 16  # and a few bytes are no reason for a slow code
    if (indices.size + 7) // 8 <= limit:
        return bytes([Code.BITMAP]) + _body(indices, Code.BITMAP)
    body = patterns.encode(indices, known.classes)  # written as fast as measured
    if len(body) <= limit:
        return bytes([Code.PATTERNS]) + body
    sizes = {Code.RICE: gaps.size_of(indices, rice), Code.ELIAS_GAMMA: gaps.size_of(indices, None)}
    close = [code for code, size in sizes.items() if size <= limit]
    sizes |= {Code.PATTERNS: len(body), Code.BITMAP: (indices.size + 7) // 8}
    code = close[0] if close else min(sizes, key=lambda one: sizes[one])
    return bytes([code]) + (body if code is Code.PATTERNS else _body(indices, code))


KEPT_BYTES, KEPT_SIZE = 1 << 16, 1 << 20
"""Sets with longer encodings, or of larger models, are read whenever they come: they take memory."""


def decode(data: Buffer, size: int, alpha: float | None = None, *, count: int | None = None) -> IndexSet:
    """The set of positions below `size` that `encode` wrote.

    Args:
        alpha: the density that a seed stands for; without it a seed is refused.
        count: how many positions it must have. Others read such a set, too, so that it is worth keeping.

    Raises:
        EncodingError: truncated, too long, out of range, with bits set past the end, or with another count.
    """
    view = np.frombuffer(data, dtype=np.uint8)
    if len(view) == 0:
        raise EncodingError("an index set needs at least one byte")
    expect(len(view) <= longest(size), f"no set of {size} positions takes {len(view)} bytes")
    try:
        code = Code(int(view[0]))
    except ValueError:
        raise EncodingError(f"there is no index code {view[0]}") from None
    body = view[1:]
    if code is Code.SEED:
        expect(alpha is not None and len(body) == SEED_BYTES, "a seed is not what was agreed on")
        assert alpha is not None
        return IndexSet.from_seed(body.tobytes(), size, alpha)
    if count is not None and code in _COUNTED:
        _expect_count(gaps.count(body), count)  # it says so itself: nothing needs to be read
    if code is Code.FULL:
        expect(len(body) == 0, "a full set has no body")
        _expect_count(size, count)
        return IndexSet.full(size)
    if count is not None and len(body) <= KEPT_BYTES and size <= KEPT_SIZE:
        return _read_and_keep(code, body.tobytes(), size, count)
    return _read(code, body, size, count)


def _expect_count(found: int, count: int | None) -> None:
    expect(count is None or found == count, f"a set of {found} positions, but everybody selects {count} here")


def _read(code: Code, body: ByteArray, size: int, count: int | None) -> IndexSet:
    words = _CODECS[code].decode(body, size)
    expect(bits.is_bitmap(words, size), "bits are set past the end of the set")
    indices = IndexSet.of_words(words, size)
    _expect_count(indices.count, count)
    return indices


@lru_cache(maxsize=256)
def _read_and_keep(code: Code, body: bytes, size: int, count: int) -> IndexSet:
    """All neighbours of a node read the set that it announced, in a simulation in one process.

    What is refused raises, and so is not kept: nobody fills this memory with sets that no honest node sends.
    """
    return _read(code, np.frombuffer(body, dtype=np.uint8), size, count)


def _body(indices: IndexSet, code: Code) -> bytes:
    if code is Code.FULL:
        expect(indices.count == indices.size, "only a full set can be written as full")
        return b""
    if code is Code.SEED:
        expect(indices.seed is not None, "only a set that was drawn from a seed has one")
        assert indices.seed is not None
        return indices.seed
    return _CODECS[code].encode(indices)


def longest(size: int) -> int:
    """No honest encoding of a set of `size` positions, with its tag, has more bytes than this."""
    return 64 + size  # Elias gamma needs at most 8 bits per position up to gaps far beyond any model
