"""What can be audited: a network that is planned, a recorded run, or the folder of a peers' network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import networkx as nx
import numpy as np

from cesar.audit.cells import CellSubject
from cesar.audit.exchange import Exchange, Flags, draw_patterns
from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import Owners, strict_requirement
from cesar.methods.cells import Cells
from cesar.methods.sparsify import RandomSubsampling


class Selection(StrEnum):
    """How nodes select."""

    RANDOM = "random"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of every source.

    Attributes:
        masks: s; without it that of the source.
        strict: take s from the graph instead, as `Cesar(collusion=k)` does.
        collusion: k.
        patterns: parameter positions to look at.
    """

    masks: int | None
    strict: bool
    collusion: int
    patterns: int

    def check_cells(self) -> None:
        """Refuse to be asked about masks where cells decide about them."""
        if self.masks is not None or self.strict:
            raise ConfigError("cells decide how many masks a value carries; leave --masks and --strict out")

    def requirement(self, graph: nx.Graph, usual: int, owners: Owners | None = None) -> int:
        """The s to audit, where the source itself would use `usual`."""
        if self.strict and self.masks is not None:
            raise ConfigError("--strict takes s from the graph; leave --masks out")
        return strict_requirement(graph, self.collusion, owners) if self.strict else self.masks or usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was audited, in words.

    Attributes:
        source: where graph and selections came from.
        sparsifier: "random", "topk" or "full".
        alpha: α, the fraction that a node selects.
        seed: repeats the audit.
        owners: who runs which node.
        notes: what the reader must know about how the figures were made.
    """

    graph: nx.Graph
    source: str
    sparsifier: str
    alpha: float
    seed: int
    owners: Owners = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def name(self, node: int) -> str:
        """What a node is called."""
        return f"node {node}"


Found = tuple[Subject, Exchange] | CellSubject

Reader = Callable[[Path, Question, str | None, int], Found]
"""Folder, question, name of a method, number of a round → what is to be audited."""

readers: dict[str, Reader] = {}
"""File that a folder has → who reads such folders. The laboratory adds its own, for recorded runs."""


def _graph(topology: str | Path, nodes: int, seed: int) -> tuple[nx.Graph, str]:
    """A graph by its short name, or the path of an edge list; and its origin in words."""
    if isinstance(topology, Path):
        return graphs.from_file(topology), f"graph of {topology.name}"
    return graphs.parse(
        topology, nodes, SeedTree(seed).generator("graph")
    ), f"topology {topology}, seed {seed}"


def planned(
    question: Question, topology: str | Path, nodes: int, selection: Selection, alpha: float, seed: int
) -> tuple[Subject, Exchange]:
    """A network that is only described: a graph by its short name, or the path of an edge list."""
    graph, source = _graph(topology, nodes, seed)
    masks = question.requirement(graph, 1)
    flags = _drawn(selection, len(graph), alpha, question.patterns, seed)
    subject = Subject(
        graph=graph,
        source=source,
        sparsifier=selection.value,
        alpha=1.0 if selection is Selection.FULL else alpha,
        seed=seed,
    )
    return subject, Exchange.complete(graph, flags, masks)


def planned_cells(question: Question, nodes: int, size: int, seed: int) -> CellSubject:
    """Cells of a network that is only described, as `Cells(size=m, collusion=k)` divides it."""
    question.check_cells()
    method = Cells(size=size, collusion=min(question.collusion, size - 2))
    return CellSubject(
        plan=method.plan(nodes, seed=seed),
        source=f"{nodes} nodes, seed {seed}",
        sparsifier=Selection.FULL.value,
        share=1.0,
    )


def of_folder(
    folder: Path,
    question: Question,
    method: str | None = None,
    round_: int = 0,
) -> Found:
    """A recorded run, or a network of peers; `method` and `round_` are of a run.

    Raises:
        DataError: the folder is neither.
    """
    if (folder / "roster.json").is_file():
        return _of_peers(folder, question)
    for name, read in readers.items():
        if (folder / name).is_file():
            return read(folder, question, method, round_)
    raise DataError(
        f"{folder} holds neither experiment.json (a recorded run) nor roster.json (a peers' network); "
        "name such a folder, or describe the network with --topology or --graph"
    )


def _of_peers(folder: Path, question: Question) -> Found:
    """A peers' network, or one peer of it: the signed graph and the settings. Selections are drawn, because peers
    keep none.
    """
    from cesar.methods.settings import MethodSection, check, read_toml  # noqa: PLC0415
    from cesar.peer.trust.keyfiles import CA_CERTIFICATE, read_public  # noqa: PLC0415
    from cesar.peer.trust.roster import FILE, Roster  # noqa: PLC0415

    authority = read_public((folder / "ca" if (folder / "ca").is_dir() else folder) / CA_CERTIFICATE)
    roster = Roster.load(folder / FILE, authority)
    settings = folder / ("network.toml" if (folder / "network.toml").is_file() else "peer.toml")
    section = check(MethodSection, read_toml(settings, "settings file").get("method", {}))
    if roster.plan is not None:
        question.check_cells()
        return CellSubject(
            plan=roster.plan,
            source=f"network {roster.network}, roster version {roster.version}",
            sparsifier=section.sparsifier or Selection.FULL.value,
            share=section.share or 1.0,
            names={i: m.name for i, m in roster.members.items() if m.name != f"node-{i}"},
        )
    ids = sorted(roster.graph)
    graph = nx.relabel_nodes(roster.graph, {node: k for k, node in enumerate(ids)})
    owners = {ids.index(node): owner for node, owner in roster.owners.items()}
    method = section.build(min(degree for _, degree in graph.degree), graph=graph, owners=owners).masked
    if method is None:
        raise ConfigError(f"{section.title} hides nothing; there is nothing to audit")
    # Without owners: what peers would refuse is here to be looked at.
    masks = question.requirement(graph, method.for_graph(graph).masks, owners)
    kind = section.sparsifier or Selection.FULL.value
    drawn = Selection(kind) if kind in tuple(Selection) else Selection.RANDOM
    flags = _drawn(drawn, len(graph), method.sparsifier.alpha, question.patterns, 0)
    notes = ["Peers keep no record of selections: patterns were drawn at random with the network's α."]
    if ids != list(range(len(ids))):
        notes.append(f"Nodes are counted in the order of their ids: {', '.join(map(str, ids))}.")
    subject = Subject(
        graph=graph,
        source=f"network {roster.network}, roster version {roster.version}",
        sparsifier=kind,
        alpha=method.sparsifier.alpha,
        seed=0,
        owners=owners,
        notes=tuple(notes),
    )
    return subject, Exchange.complete(graph, flags, masks)


def _drawn(kind: Selection, nodes: int, alpha: float, patterns: int, seed: int) -> Flags:
    """(n, positions), with the probabilities that the engine has."""
    if kind is Selection.FULL:
        return np.ones((nodes, 1), dtype=bool)
    RandomSubsampling(alpha)  # checks α
    return draw_patterns(nodes, patterns, alpha, seed)
