"""Colluders: the sums and values that their transcripts and their own keys give away in a round.

Nothing here looks into an engine. An attack gets frames that the colluders saw or sent, and their own keys; tests compare what it
reads with the models, and with what the audit says that it can read.
"""

from collections.abc import Mapping

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.audit.exchange import Flags
from cesar.audit.exposure import exposed_at
from cesar.audit.transcript import Transcript, exchange_of, selected
from cesar.base.types import BitWords, NodeId
from cesar.crypto.keys import Keyring, digest_positions, mask_key
from cesar.crypto.keystream import Keystream
from cesar.kernels import bits, packing, ring
from cesar.methods import Cesar
from cesar.protocol.wire import members_to_bytes

Keyrings = Mapping[NodeId, Keyring]
"""A colluder → its keys, as they are in the round of the transcripts."""


# ── one round ───────────────────────────────────────────────────────────────────────────────────────────


def attack(
    transcripts: Mapping[NodeId, Transcript], keys: Keyrings, graph: nx.Graph, method: Cesar, size: int
) -> dict[int, NDArray[np.float64]]:
    """Colluders' transcripts and keys in, other nodes' values out: node → (d,) with NaN where nothing was read.

    The colluders take their own masks off every share that reached one of them, add up what is left along the
    honest masks, and solve for single values. Values come out as they were on the ring's grid: with 32 bits the
    very float32 wherever it has no finer digits than the grid.
    """
    coalition = tuple(sorted(int(node) for node in transcripts))
    exchange = exchange_of(transcripts, graph, method, size)
    flags = selected(transcripts, graph, method, size)
    bare = {r: _unmasked(transcripts[NodeId(r)], coalition, keys, graph, method, flags) for r in coalition}
    kinds, which = np.unique(flags, axis=1, return_inverse=True)
    number = {pattern.tobytes(): k for k, pattern in enumerate(exchange.selected)}
    read: dict[int, NDArray[np.float64]] = {}
    for k, kind in enumerate(kinds.T):
        positions = np.flatnonzero(which == k)
        for victim, terms in exposed_at(exchange, coalition, number[kind.tobytes()]).items():
            value = np.zeros(len(positions))
            for r, members, factor in terms:
                scale, words = bare[r]
                total = np.sum([words[i][positions] for i in members], axis=0)
                value += float(factor) * signed(total, method.ring_bits) / scale
            read.setdefault(victim, np.full(size, np.nan))[positions] = value
    return read


def _unmasked(
    seen: Transcript,
    coalition: tuple[int, ...],
    keys: Keyrings,
    graph: nx.Graph,
    method: Cesar,
    flags: Flags,
) -> tuple[float, dict[int, NDArray[np.int64]]]:
    """The honest shares of one receiver with the colluders' masks taken off: the scale of the grid, and sender →
    (d,) words, zero where nothing was sent.
    """
    view = tuple(NodeId(i) for i in sorted(graph[seen.node]))
    terms, grid = _terms(seen, view, method, flags.shape[1])
    words: dict[int, NDArray[np.int64]] = {}
    for i, share in seen.shares.items():
        own = flags[i]
        sets = {j: own & flags[j] for j in share.partners}
        kept = own & (np.sum([*sets.values(), np.zeros_like(own)], axis=0) >= method.masks)
        values = np.zeros(len(own), dtype=np.int64)
        values[kept] = packing.unpack(share.values, grid.bits, int(kept.sum()))
        for a in set(share.partners) & set(coalition):
            node = NodeId(a)
            common = sets[node]
            mask = np.zeros(len(own), dtype=np.int64)
            mask[common] = own_mask(seen, keys, node, i, terms, bits.from_bools(common))
            values[kept] -= mask[kept]
        words[int(i)] = values
    return float(grid.scales[0]), words


def own_mask(
    seen: Transcript,
    keys: Keyrings,
    colluder: NodeId,
    node: NodeId,
    terms: bytes,
    positions: BitWords,
) -> NDArray[np.int64]:
    """The mask that a colluder knows of a share that a node sent to the owner of the transcript, as it went into it."""
    assert seen.round_id is not None
    theirs = seen.announced[node].token
    key = mask_key(
        keys[colluder].secret(node, theirs.ephemeral),
        seen.round_id,
        nodes=(colluder, node),
        seeds=(seen.announced[colluder].token.seed, theirs.seed),
        receiver=seen.node,
        terms=terms,
        common=digest_positions(positions),
    )
    count = bits.count(positions)
    stream = np.empty(count, dtype=np.uint32)
    Keystream(key.key).fill(stream)
    mask = stream.astype(np.int64)
    return mask if node < colluder else -mask  # the lower id added it


def _terms(seen: Transcript, view: tuple[NodeId, ...], method: Cesar, size: int) -> tuple[bytes, ring.Grid]:
    """What the receiver said about its sum, as it stands in the keys, and the grid that follows."""
    exponents, members = ((0,), view) if seen.relay is None else (seen.relay.exponents, seen.relay.group)
    terms = ring.exponents_to_bytes(exponents) + members_to_bytes(members, view)
    if method.decimals is not None:
        return terms, ring.decimal_grid(method.decimals, size)
    return terms, ring.binary_grid(method.ring_bits, np.array([size]), exponents, len(view))


def signed(words: NDArray[np.int64], width: int) -> NDArray[np.float64]:
    """Words modulo 2^b as the numbers between −2^(b−1) and 2^(b−1) that they stand for."""
    modulus = 1 << width
    return ((words + modulus // 2) % modulus - modulus // 2).astype(np.float64)
