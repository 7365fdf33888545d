"""Audits from what nodes really saw: frames.

Nothing here looks into an engine. A transcript holds the frames that one node received, and the relay frames
that it sent, which say on what terms its sum was made.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx
import numpy as np

from cesar.audit.exchange import Exchange, Flags, distinct, views_of
from cesar.base.types import NodeId
from cesar.crypto.keys import RoundId
from cesar.kernels import bits
from cesar.methods import Cesar
from cesar.protocol.wire import Announce, Frame, Kind, Relay, Share, read_header


@dataclass(slots=True)
class Transcript:
    """What one node saw in one round.

    Attributes:
        announced: neighbour → its announcement.
        shares: neighbour → its share.
        relay: one of the relay frames that the node sent; all state the same terms.
    """

    node: NodeId
    round_id: RoundId | None = None
    announced: dict[NodeId, Announce] = field(default_factory=dict)
    shares: dict[NodeId, Share] = field(default_factory=dict)
    relay: Relay | None = None


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
        if mine is None:
            return
        mine.round_id = header.round_id
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
        EncodingError: an announcement holds no set of this method.
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
    patterns, weights = distinct(selected(transcripts, graph, method, size))
    return Exchange(
        views=views,
        selected=patterns,
        weights=weights,
        masks=method.masks,
        carried=carried,
        matched=matched,
        arrived=arrived,
    )


def selected(transcripts: Mapping[NodeId, Transcript], graph: nx.Graph, method: Cesar, size: int) -> Flags:
    """(n, d): what each node selected, as far as anybody heard."""
    flags = np.zeros((len(graph), size), dtype=bool)
    for seen in transcripts.values():
        for i, message in seen.announced.items():
            indices = method.sparsifier.read(message.indices, size)
            flags[i] = bits.to_bools(indices.words, indices.size)
    return flags
