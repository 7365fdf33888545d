"""What a receiver's frames imply, worked out from its transcript with plain numpy; nothing of the package.

The format is that of docs/wire.md. Seeds are expanded by the code that makes the test vectors.
"""

from __future__ import annotations

import importlib.util
import math
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_ENTRY = struct.Struct("<BIQ")
_HEADER = struct.Struct("<2sBBII16s")
ANNOUNCE, RELAY, SHARE = 1, 2, 3
CODE = 16 + 32 + 1
"""Where the set begins in an announcement: behind a seed, an ephemeral key and one exponent."""


def _generator():
    path = Path(__file__).parents[2] / "tools" / "vectors" / "generate.py"
    spec = importlib.util.spec_from_file_location("generate", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass
class Round:
    """The first frame of each kind from or to each neighbour, with where it ends in the transcript."""

    announced: dict[int, bytes] = field(default_factory=dict)
    relayed: dict[int, bytes] = field(default_factory=dict)  # what this node sent
    shares: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    sent: dict[tuple[int, int], bytes] = field(default_factory=dict)  # (kind, recipient) → last frame
    session: bytes = b""
    more: dict[int, list[tuple[int, bytes]]] = field(default_factory=lambda: defaultdict(list))
    """All shares of each neighbour, for one that sends several."""


def rounds_of(transcript: Path) -> dict[int, Round]:
    """A transcript by rounds."""
    data, start = transcript.read_bytes(), 0
    rounds: dict[int, Round] = defaultdict(Round)
    while start + _ENTRY.size <= len(data):
        sent, peer, length = _ENTRY.unpack_from(data, start)
        start += _ENTRY.size + length
        if start > len(data):
            break
        frame = data[start - length : start]
        if not sent and (length < _HEADER.size or frame[:2] != b"CE"):
            continue  # what a liar sends need not be a frame
        magic, _, kind, round_, _, session = _HEADER.unpack_from(frame)
        assert magic == b"CE"
        this, body = rounds[round_], frame[_HEADER.size :]
        if sent:
            this.session = session
        if sent:
            this.sent[kind, peer] = body
            if kind == RELAY:
                this.relayed[peer] = body
        elif kind == ANNOUNCE:
            this.announced.setdefault(peer, body)
        elif kind == SHARE:
            this.shares.setdefault(peer, (start, body))
            this.more[peer].append((start, body))
    return dict(rounds)


@cache
def positions(seed: bytes, size: int, alpha: float) -> NDArray[np.bool_]:
    """The set that an index seed stands for."""
    flags = np.zeros(size, dtype=bool)
    flags[_tools().subsample(seed, size, alpha)[0]] = True
    return flags


_tools = cache(_generator)


@dataclass(frozen=True)
class Share:
    """One share as its receiver reads it."""

    kept: NDArray[np.bool_]
    checks: dict[int, bytes]
    words: NDArray[np.uint64]


@dataclass(frozen=True)
class Implied:
    """What the frames imply: the new model, where masks did not cancel, and who is averaged at each position."""

    vector: NDArray[np.float32]
    spoiled: NDArray[np.bool_]
    used: dict[int, NDArray[np.bool_]]
    step: float


def readings(this: Round, liars: Sequence[int], until: int) -> Iterator[Round]:
    """The round with each of the shares that liars have sent so far in turn, for one at most was taken."""
    sent = [[(liar, one) for one in this.more.get(liar, ()) if one[0] <= until] for liar in liars]
    for chosen in product(*sent):
        yield replace(this, shares={**this.shares, **dict(chosen)})


def _partners(body: bytes, view: Sequence[int], width: int) -> list[int]:
    bits = int.from_bytes(body[8 : 8 + width], "little")
    return [node for k, node in enumerate(view) if bits >> k & 1]


def implied(
    this: Round,
    own: NDArray[np.float32],
    view: Sequence[int],
    contributors: Sequence[int],
    *,
    alpha: float,
    s: int,
) -> Implied:
    """A 32-bit round with random subsampling, by the shares of the contributors."""
    size, width = len(own), (len(view) + 7) // 8
    if not contributors:
        return Implied(own, np.zeros(size, bool), {}, 0.0)
    exponent = next(iter(this.relayed.values()))[0] - 127
    sets = {j: positions(body[CODE + 1 :][:16], size, alpha) for j, body in this.announced.items()}
    assert all(body[CODE] == 6 for body in this.announced.values())
    shares = {i: _share(this.shares[i][1], view, width, sets, i, s) for i in contributors}
    total, count = np.zeros(size, np.uint64), np.zeros(size, np.int64)
    spoiled = np.zeros(size, bool)
    for i, share in shares.items():
        total[share.kept] += share.words
        count += share.kept
        for j, check in share.checks.items():
            carries = share.kept & sets[j]
            met = j in shares and shares[j].checks.get(i) == check
            spoiled |= carries & ~shares[j].kept if met else carries
    step = 2.0 ** -(32 - 1 - (math.ceil(math.log2(len(view))) + 1) - exponent)
    signed = (total & 0xFFFFFFFF).astype(np.uint32).view(np.int32).astype(np.float64)
    count[spoiled] = 0
    mean = np.where(count > 0, (signed * step + own) / (count + 1), own).astype(np.float32)
    return Implied(mean, spoiled, {i: share.kept & ~spoiled for i, share in shares.items()}, step)


def _share(body: bytes, view: Sequence[int], width: int, sets: dict, sender: int, s: int) -> Share:
    partners = _partners(body, view, width)
    end = 8 + width + 4 * len(partners)
    checks = {j: body[8 + width + 4 * k : 12 + width + 4 * k] for k, j in enumerate(partners)}
    kept = sets[sender] & (np.sum([sets[j] for j in partners], axis=0, dtype=int) >= s)
    words = np.frombuffer(body[end:], "<u4").astype(np.uint64)
    assert len(words) == kept.sum()
    return Share(kept, checks, words)
