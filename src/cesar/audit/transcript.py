"""Audits and attacks from what nodes really saw: frames, and for an attack the colluders' own keys.

Nothing here looks into an engine. A transcript holds the frames that one node received, and the relay frames
that it sent, which say on what terms its sum was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar import bits, packing, ring
from cesar.audit.exchange import Exchange, Flags, distinct, views_of
from cesar.audit.exposure import exposed_at
from cesar.crypto.keys import Keyring, RoundId, digest_positions, mask_key
from cesar.crypto.keystream import Keystream
from cesar.errors import DataError
from cesar.indices import IndexSet
from cesar.methods import Cesar
from cesar.sparsify import CoordinatedSubsampling, read_set
from cesar.types import BitWords, NodeId
from cesar.wire import Announce, Frame, GroupTerms, Kind, Relay, Share, members_to_bytes, read_header

Keyrings = Mapping[NodeId, Keyring]
"""A colluder → its keys, as they are in the round of the transcripts."""


@dataclass(slots=True)
class Transcript:
    """What one node saw in one round.

    Attributes:
        announced: neighbour → its announcement.
        shares: neighbour → its share.
        relay: one of the relay frames that the node sent; all state the same terms.
        terms: neighbour → the group terms that the node sent it, where groups are fixed.
    """

    node: NodeId
    attempt: RoundId | None = None
    announced: dict[NodeId, Announce] = field(default_factory=dict)
    shares: dict[NodeId, Share] = field(default_factory=dict)
    relay: Relay | None = None
    terms: dict[NodeId, GroupTerms] = field(default_factory=dict)


class Recorder:
    """Keeps the transcripts of some nodes; pass `see` as the `watch` of `Ensemble.round`.

    Args:
        nodes: whose; by default everybody's, as an auditor of a simulation has them.
        tensors: how many tensors the model has, each with a scale of its own.
    """

    def __init__(
        self, graph: nx.Graph, method: Cesar, nodes: tuple[int, ...] | None = None, *, tensors: int = 1
    ) -> None:
        wanted = sorted(graph) if nodes is None else nodes
        self._views = {NodeId(i): tuple(NodeId(j) for j in sorted(graph[i])) for i in graph}
        self._method, self._tensors = method, tensors
        self.transcripts = {NodeId(i): Transcript(NodeId(i)) for i in wanted}

    def see(self, sender: NodeId, recipient: NodeId, frame: Frame) -> None:
        """A frame that arrived."""
        header, body = read_header(bytes(frame.payload))
        mine, theirs = self.transcripts.get(recipient), self.transcripts.get(sender)
        if theirs is not None and header.kind is Kind.RELAY:
            theirs.relay = Relay.decode(body, self._views[sender], self._tensors)
        if theirs is not None and header.kind is Kind.GROUP_TERMS:
            assert self._method.groups is not None
            group = next(one for one in self._method.groups[sender] if recipient in one)
            partners = [node for node in group if node != recipient]
            theirs.terms[recipient] = GroupTerms.decode(body, self._views[sender], partners, self._tensors)
        if mine is None:
            return
        mine.attempt = header.attempt
        if header.kind is Kind.ANNOUNCE:
            mine.announced[sender] = Announce.decode(body, self._tensors)
        elif header.kind is Kind.SHARE:
            mine.shares[sender] = Share.decode(body, self._views[recipient], self._method.explicit_indices)


def exchange_of(
    transcripts: Mapping[NodeId, Transcript], graph: nx.Graph, method: Cesar, size: int
) -> Exchange:
    """The round that transcripts show, losses and disagreements included. Receivers without a transcript count
    as having received nothing.

    Raises:
        DataError: a set cannot be told from the announcements.
    """
    views = views_of(graph)
    shape = (*views.shape, views.shape[1])
    carried, matched, arrived = np.zeros(shape, bool), np.zeros(shape, bool), np.zeros(views.shape, bool)
    for r, seen in transcripts.items():
        place = {int(node): a for a, node in enumerate(views[r]) if node >= 0}
        checks = {i: dict(zip(share.partners, share.checks, strict=True)) for i, share in seen.shares.items()}
        for i, partners in checks.items():
            arrived[r, place[i]] = True
            for j, check in partners.items():
                carried[r, place[i], place[j]] = True
                matched[r, place[i], place[j]] = checks.get(j, {}).get(i) == check
    patterns, weights = distinct(_selected(transcripts, graph, method, size))
    return Exchange(
        views=views,
        selected=patterns,
        weights=weights,
        masks=method.masks,
        coordinated=isinstance(method.sparsifier, CoordinatedSubsampling),
        carried=carried,
        matched=matched,
        arrived=arrived,
    )


def _selected(transcripts: Mapping[NodeId, Transcript], graph: nx.Graph, method: Cesar, size: int) -> Flags:
    """(n, d): what each node selected, as far as anybody heard; with coordinated subsampling towards each node."""
    flags = np.zeros((len(graph), size), dtype=bool)
    for r, seen in transcripts.items():
        if seen.attempt is None:
            continue
        if isinstance(method.sparsifier, CoordinatedSubsampling):
            flags[r] = _bools(method.sparsifier.select_for(r, seen.attempt, size))
            continue
        for i, message in seen.announced.items():
            flags[i] = _bools(_announced_set(message, method, size))
    return flags


def _announced_set(message: Announce, method: Cesar, size: int) -> IndexSet:
    indices = read_set(method.sparsifier, message.indices, size)
    if indices is None:
        raise DataError("an announcement names no positions; is this another method's transcript?")
    return indices


def _bools(indices: IndexSet) -> Flags:
    return bits.to_bools(indices.words, indices.size)


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
    flags = _selected(transcripts, graph, method, size)
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
    coordinated = isinstance(method.sparsifier, CoordinatedSubsampling)
    terms, grid = _terms(seen, view, method, flags.shape[1])
    words: dict[int, NDArray[np.int64]] = {}
    for i, share in seen.shares.items():
        own = flags[seen.node] if coordinated else flags[i]
        sets = {j: own if coordinated else own & flags[j] for j in share.partners}
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
    *,
    wide: bool = False,
) -> NDArray[np.int64]:
    """The mask that a colluder knows of a share that a node sent to the owner of the transcript, as it went into it.

    Masks of fixed groups are `wide`: 64-bit words.
    """
    assert seen.attempt is not None
    theirs = seen.announced[node].token
    key = mask_key(
        keys[colluder].secret(node, theirs.ephemeral),
        seen.attempt,
        nodes=(colluder, node),
        seeds=(seen.announced[colluder].token.seed, theirs.seed),
        receiver=seen.node,
        terms=terms,
        common=digest_positions(positions),
    )
    count = bits.count(positions)
    stream = np.empty(count, dtype=np.uint64) if wide else np.empty(count, dtype=np.uint32)
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
