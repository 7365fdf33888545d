"""What can be audited: a network that is planned, a recorded run, or the folder of a peers' network."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import networkx as nx
import numpy as np

from cesar import bits, graphs
from cesar.audit.exchange import Exchange, Flags, draw_patterns
from cesar.errors import ConfigError, DataError
from cesar.methods import Cesar, Method, SecureAggregation
from cesar.seeds import SeedTree
from cesar.sim.secrets import Secrets
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, FullSharing, RandomSubsampling
from cesar.topology import strict_requirement
from cesar.types import RoundNo


class Selection(StrEnum):
    """How nodes select."""

    RANDOM = "random"
    COORDINATED = "coordinated"
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

    def requirement(self, graph: nx.Graph, usual: int) -> int:
        """The s to audit, where the source itself would use `usual`."""
        if self.strict and self.masks is not None:
            raise ConfigError("--strict takes s from the graph; leave --masks out")
        return strict_requirement(graph, self.collusion) if self.strict else self.masks or usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was audited, in words.

    Attributes:
        source: where graph and selections came from.
        sparsifier: "random", "topk", "coordinated" or "full".
        alpha: α, the fraction that a node selects.
        seed: repeats the audit.
        notes: what the reader must know about how the figures were made.
    """

    graph: nx.Graph
    source: str
    sparsifier: str
    alpha: float
    seed: int
    notes: tuple[str, ...] = ()


def planned(
    question: Question, topology: str | Path, nodes: int, selection: Selection, alpha: float, seed: int
) -> tuple[Subject, Exchange]:
    """A network that is only described: a graph by its short name, or the path of an edge list."""
    if isinstance(topology, Path):
        graph, source = graphs.from_file(topology), f"graph of {topology.name}"
    else:
        graph = graphs.parse(topology, nodes, SeedTree(seed).generator("graph"))
        source = f"topology {topology}, seed {seed}"
    masks = question.requirement(graph, 1)
    flags = _drawn(selection, len(graph), alpha, question.patterns, seed)
    coordinated = selection is Selection.COORDINATED
    subject = Subject(
        graph=graph,
        source=source,
        sparsifier=selection.value,
        alpha=1.0 if selection is Selection.FULL else alpha,
        seed=seed,
    )
    return subject, Exchange.complete(graph, flags, masks, coordinated=coordinated)


def of_folder(
    folder: Path, question: Question, method: str | None = None, round_: int = 0
) -> tuple[Subject, Exchange]:
    """A recorded run, or a network of peers; `method` and `round_` are of a run.

    Raises:
        DataError: the folder is neither.
    """
    if (folder / "roster.json").is_file():
        return _of_peers(folder, question)
    if (folder / "experiment.json").is_file():
        return _of_run(folder, question, method, round_)
    raise DataError(
        f"{folder} holds neither experiment.json (a recorded run) nor roster.json (a peers' network); "
        "name such a folder, or describe the network with --topology or --graph"
    )


def _of_peers(folder: Path, question: Question) -> tuple[Subject, Exchange]:
    """A peers' network, or one peer of it: the signed graph and the settings. Selections are drawn, because peers
    keep none.
    """
    from cesar.peer.keyfiles import CA_CERTIFICATE, read_public  # noqa: PLC0415
    from cesar.peer.roster import FILE, Roster  # noqa: PLC0415
    from cesar.settings import MethodSection, check, read_toml  # noqa: PLC0415

    authority = folder / "ca" if (folder / "ca").is_dir() else folder
    roster = Roster.load(folder / FILE, read_public(authority / CA_CERTIFICATE))
    settings = folder / ("network.toml" if (folder / "network.toml").is_file() else "peer.toml")
    section = check(MethodSection, read_toml(settings, "settings file").get("method", {}))
    ids = sorted(roster.graph)
    graph = nx.relabel_nodes(roster.graph, {node: k for k, node in enumerate(ids)})
    method = _masked(section.build(min(degree for _, degree in graph.degree), graph=graph))
    if method is None:
        raise ConfigError(f"{section.title} hides nothing; there is nothing to audit")
    masks = question.requirement(graph, method.for_graph(graph).masks)
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
        notes=tuple(notes),
    )
    return subject, Exchange.complete(graph, flags, masks, coordinated=drawn is Selection.COORDINATED)


def _of_run(folder: Path, question: Question, wanted: str | None, round_: int) -> tuple[Subject, Exchange]:
    """A recorded run: graph and settings as recorded, selections drawn anew from the recorded seed."""
    from cesar.experiment import journal, run  # noqa: PLC0415  (torch takes seconds to import)

    experiment = run.read(folder)
    masked = [m for m in experiment.method if m.name != "dpsgd"]
    chosen = [m for m in masked if wanted in (None, m.title, m.folder)]
    if not chosen:
        names = ", ".join(m.title for m in masked)
        raise ConfigError(
            f"{folder} holds no masked method{f' {wanted!r}' if wanted else ''}; it has: {names or 'D-PSGD only, which hides nothing'}"
        )
    section, seed = chosen[0], experiment.seeds[0]
    if round_ >= experiment.rounds:
        raise ConfigError(f"the run has rounds 0 to {experiment.rounds - 1}, not {round_}")
    graph_of = run.graph_of(experiment, seed)
    graph, first = graph_of(round_), graph_of(0)
    place = folder / section.folder / f"seed-{seed}"
    size = journal.parameters_of(place)
    degree = round(2 * first.number_of_edges() / len(first))
    method = _masked(section.build(degree, size=size, graph=first))
    assert method is not None
    masks = question.requirement(graph, method.for_graph(graph).masks)
    flags, notes = _selected(place, method.sparsifier, len(graph), seed, round_, size, question.patterns)
    if experiment.faults.crash_rate:
        notes.append("The run had crashes; the audit takes the round as if nobody had crashed.")
    subject = Subject(
        graph=graph,
        source=f"{experiment.name}, {section.title}, seed {seed}, round {round_}",
        sparsifier=section.sparsifier or Selection.FULL.value,
        alpha=method.sparsifier.alpha,
        seed=seed,
        notes=tuple(notes),
    )
    coordinated = isinstance(method.sparsifier, CoordinatedSubsampling)
    return subject, Exchange.complete(graph, flags, masks, coordinated=coordinated)


def _masked(method: Method) -> Cesar | None:
    """The method as CESAR, if it hides anything."""
    if isinstance(method, SecureAggregation):
        return method.as_cesar()
    return method if isinstance(method, Cesar) else None


def _drawn(kind: Selection, nodes: int, alpha: float, patterns: int, seed: int) -> Flags:
    """(n, positions), with the probabilities that the engine has."""
    if kind is Selection.FULL:
        return np.ones((nodes, 1), dtype=bool)
    RandomSubsampling(alpha)  # checks α
    return draw_patterns(nodes, patterns, alpha, seed)


def _selected(
    place: Path, sparsifier: AnySparsifier, nodes: int, seed: int, round_: int, size: int, patterns: int
) -> tuple[Flags, list[str]]:
    """What the nodes of a run selected, at up to `patterns` positions: as recorded, else drawn again."""
    from cesar.experiment import recording  # noqa: PLC0415  (only runs need it)

    looked_at = np.sort(SeedTree(seed).generator("audit", "positions").permutation(size)[:patterns])
    part = f"{len(looked_at):,} of {size:,} positions, drawn at random."
    if (kept := recording.path_of(place, round_ + 1)).exists():
        return recording.read(place, round_ + 1).selected[:, looked_at], [
            f"Selections as in {kept.name}. {part}"
        ]
    if isinstance(sparsifier, FullSharing):
        return np.ones((nodes, 1), dtype=bool), []
    sets = Secrets(seed).selections(sparsifier, RoundNo(round_), nodes, size)
    if sets is None:
        note = (
            "TopK selections follow from training and were not recorded ([recording] every = N keeps them): "
            "independent ones with the same α stand in for them."
        )
        return draw_patterns(nodes, patterns, sparsifier.alpha, seed), [note]
    flags = np.stack([bits.to_bools(chosen.words, size)[looked_at] for chosen in sets])
    return flags, [
        f"Selections were not recorded; they were drawn again from the recorded seed, by the same code. {part}"
    ]
