"""What can be audited: a network that is planned, a recorded run, or the folder of a peers' network."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

import networkx as nx
import numpy as np

from cesar import bits, graphs
from cesar.audit.exchange import Exchange, Flags, draw_patterns
from cesar.audit.lasting import GroupSubject
from cesar.errors import ConfigError, DataError, PrivacyError
from cesar.grouping import check_group_size, groups, plan
from cesar.methods import Cesar, Method, SecureAggregation
from cesar.seeds import SeedTree
from cesar.sim.secrets import Secrets
from cesar.sparsify import AnySparsifier, CoordinatedSubsampling, FullSharing, RandomSubsampling
from cesar.topology import Owners, strict_requirement
from cesar.types import RoundNo

if TYPE_CHECKING:
    from cesar.experiment.config import Experiment
    from cesar.peer.roster import Roster
    from cesar.settings import MethodSection


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

    def check_groups(self) -> None:
        """Refuse to be asked about masks where groups decide about them."""
        if self.masks is not None or self.strict:
            raise ConfigError("groups decide how many masks a value carries; leave --masks and --strict out")

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
        sparsifier: "random", "topk", "coordinated" or "full".
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
    coordinated = selection is Selection.COORDINATED
    subject = Subject(
        graph=graph,
        source=source,
        sparsifier=selection.value,
        alpha=1.0 if selection is Selection.FULL else alpha,
        seed=seed,
    )
    return subject, Exchange.complete(graph, flags, masks, coordinated=coordinated)


def planned_groups(
    question: Question,
    topology: str | Path,
    nodes: int,
    group_size: int,
    *,
    seed: int,
    plan_them: bool = True,
) -> GroupSubject:
    """Fixed groups on a described graph: those that `Cesar(group_size=m, collusion=k)` would have, or the first draw."""
    question.check_groups()
    check_group_size(group_size)
    graph, source = _graph(topology, nodes, seed)
    notes, draws = [], {}
    if plan_them:
        try:
            draws = plan(graph, group_size, question.collusion)
        except PrivacyError as refusal:
            notes.append(f"These groups would be refused, so the first draw was audited: {refusal}")
    else:
        notes.append("The first draw was audited, as without collusion; planning may find safer groups.")
    return GroupSubject(
        graph=graph,
        source=source,
        sparsifier="any",
        alpha=1.0,
        group_size=group_size,
        groups=groups(graph, group_size, draws=draws),
        notes=tuple(notes),
    )


def of_folder(
    folder: Path,
    question: Question,
    method: str | None = None,
    round_: int = 0,
    since: Path | None = None,
) -> tuple[Subject, Exchange] | GroupSubject:
    """A recorded run, or a network of peers; `method` and `round_` are of a run, `since` is an older roster of a network.

    Raises:
        DataError: the folder is neither.
    """
    if (folder / "roster.json").is_file():
        return _of_peers(folder, question, since)
    if since is not None:
        raise ConfigError("--since takes an older roster of a peers' network, and this is none")
    if (folder / "experiment.json").is_file():
        return _of_run(folder, question, method, round_)
    raise DataError(
        f"{folder} holds neither experiment.json (a recorded run) nor roster.json (a peers' network); "
        "name such a folder, or describe the network with --topology or --graph"
    )


def _of_peers(
    folder: Path, question: Question, since: Path | None
) -> tuple[Subject, Exchange] | GroupSubject:
    """A peers' network, or one peer of it: the signed graph and the settings. Selections are drawn, because peers
    keep none.
    """
    from cesar.peer.keyfiles import CA_CERTIFICATE, read_public  # noqa: PLC0415
    from cesar.peer.roster import FILE, Roster  # noqa: PLC0415
    from cesar.settings import MethodSection, check, read_toml  # noqa: PLC0415

    authority = read_public((folder / "ca" if (folder / "ca").is_dir() else folder) / CA_CERTIFICATE)
    roster = Roster.load(folder / FILE, authority)
    settings = folder / ("network.toml" if (folder / "network.toml").is_file() else "peer.toml")
    section = check(MethodSection, read_toml(settings, "settings file").get("method", {}))
    if roster.group_size != section.group_size:
        raise ConfigError(
            f"the roster says group_size = {roster.group_size}, but {settings} says {section.group_size}; peers refuse this"
        )
    if roster.group_size is not None:
        return _of_grouped_peers(roster, Roster.load(since, authority) if since else None, section, question)
    if since is not None:
        raise ConfigError("--since compares fixed groups, and this network has none")
    ids = sorted(roster.graph)
    graph = nx.relabel_nodes(roster.graph, {node: k for k, node in enumerate(ids)})
    owners = {ids.index(node): owner for node, owner in roster.owners.items()}
    method = _masked(section.build(min(degree for _, degree in graph.degree), graph=graph, owners=owners))
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
    return subject, Exchange.complete(graph, flags, masks, coordinated=drawn is Selection.COORDINATED)


def _of_grouped_peers(
    roster: Roster, older: Roster | None, section: MethodSection, question: Question
) -> GroupSubject:
    """The groups of a network, with those of an older roster if there is one."""
    question.check_groups()
    if older is not None and (older.network_id != roster.network_id or older.version >= roster.version):
        raise ConfigError(
            f"--since takes an older roster of the same network; this is version {older.version} of {older.network}, "
            f"and the network has version {roster.version}"
        )
    members = {**(older.members if older is not None else {}), **roster.members}
    notes = _regrouping(section)
    if older is not None:
        notes.append("Old and new groups were taken together, as if models had not changed in between.")
    since = "" if older is None else f", together with version {older.version}"
    assert roster.group_size is not None
    return GroupSubject(
        graph=roster.graph,
        source=f"network {roster.network}, roster version {roster.version}{since}",
        sparsifier=section.sparsifier or Selection.FULL.value,
        alpha=section.share or section.alpha or 1.0,
        group_size=roster.group_size,
        groups=roster.groups,
        before=None if older is None else older.groups,
        names={i: member.name for i, member in members.items() if member.name != f"node-{i}"},
        owners={**(older.owners if older is not None else {}), **roster.owners},
        notes=tuple(notes),
    )


def _of_run(
    folder: Path, question: Question, wanted: str | None, round_: int
) -> tuple[Subject, Exchange] | GroupSubject:
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
    graph = run.graph_of(experiment, seed)(round_)
    place = folder / section.folder / f"seed-{seed}"
    size = journal.parameters_of(place)
    method = _masked(run.build_method(experiment, section, seed, size=size))
    assert method is not None
    if method.group_size is not None:
        question.check_groups()
        return _of_grouped_run(experiment, section, method.for_graph(graph), graph, round_)
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


def _regrouping(section: MethodSection) -> list[str]:
    """What `regroup_after` adds to what was audited."""
    if section.regroup_after is None:
        return []
    away = f"Groups go on without a member that is away for {section.regroup_after} rounds (regroup_after)"
    return [f"{away}; the difference of sums with and without it was not looked at."]


def _of_grouped_run(
    experiment: Experiment, section: MethodSection, method: Cesar, graph: nx.Graph, round_: int
) -> GroupSubject:
    seed, dynamic = experiment.seeds[0], experiment.topology.dynamic
    notes = []
    if dynamic:
        notes.append(
            f"The graph is another in every round, and so are the groups; these are of round {round_}."
        )
    if method.regroup_after is not None:
        away = f"Groups go on without a member that is away for {method.regroup_after} rounds (regroup_after)"
        notes.append(f"{away}; the difference of sums with and without it was not looked at.")
    assert method.groups is not None
    assert method.group_size is not None
    return GroupSubject(
        graph=graph,
        source=f"{experiment.name}, {section.title}, seed {seed}",
        sparsifier=section.sparsifier or Selection.FULL.value,
        alpha=method.sparsifier.alpha,
        group_size=method.group_size,
        groups=method.groups,
        lasting=not dynamic,
        notes=tuple(notes),
    )


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
