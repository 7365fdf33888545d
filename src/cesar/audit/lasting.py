"""The audit of fixed groups. It decides for all rounds together, because a receiver's sums always have the same members.

A coalition holds, at any position and over all rounds, at most the sums over its receivers' groups without its own
members (docs/privacy.md). So who is exposed follows from the groups alone: no positions are drawn, and nothing depends on
what is selected, who drops out or what anybody says. After a change of the graph a receiver has seen old and new sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import networkx as nx

from cesar.audit.exposure import Progress, Tested
from cesar.grouping import Group, Groups, coalitions, describe, exposed, hears
from cesar.topology import Owners, check_collusion, parties


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSubject:
    """What is audited.

    Attributes:
        graph: who averages with whom now.
        source: where graph and groups came from.
        sparsifier: "random", "topk" or "full".
        groups: of every receiver, now.
        before: those before a change of the graph.
        names: what people call a node, where it has a name.
        owners: who runs which node; coalitions are counted in owners.
        lasting: whether the graph, and with it the groups, stays; else the audit is one of a single round.
        notes: what the reader must know.
    """

    graph: nx.Graph
    source: str
    sparsifier: str
    alpha: float
    group_size: int
    groups: Groups
    before: Groups | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    owners: Owners = field(default_factory=dict)
    lasting: bool = True
    notes: tuple[str, ...] = ()

    def name(self, node: int) -> str:
        """What a node is called."""
        return self.names.get(node, f"node {node}")

    @property
    def held(self) -> Groups:
        """All groups whose sums a receiver has seen or will see."""
        old = self.before or {}
        return {
            r: tuple(dict.fromkeys((*old.get(r, ()), *self.groups.get(r, ()))))
            for r in sorted(old.keys() | self.groups.keys())
        }

    def words(self) -> list[str]:
        """Whom every receiver hears."""
        return [
            hears(self.name(r), [[self.names.get(node, node) for node in group] for group in groups])
            for r, groups in self.groups.items()
        ]

    def promises(self, sender: int) -> list[str]:
        """For each receiver of a node: with what its values are added up before anybody sees them."""
        return [
            f"What {self.name(sender)} sends to {self.name(r)} is only ever seen added to what {self._others(group, sender)}."
            for r, groups in self.groups.items()
            for group in groups
            if sender in group
        ]

    def _others(self, group: Group, sender: int) -> str:
        *most, last = [self.name(node) for node in group if node != sender]
        return f"{', '.join(most)} and {last} send" if most else f"{last} sends"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupFinding:
    """A coalition that can compute somebody's values, and how."""

    coalition: tuple[int, ...]
    victims: tuple[int, ...]
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAudit:
    """The outcome.

    Attributes:
        sizes: how many coalitions there are of each size, and how many read somebody. Those whose members have no
            neighbour in common count as tried: their sums have nothing to do with one another.
        findings: the coalitions that read somebody, smaller ones first, without those that have a smaller one in them.
        victims: everybody who is read by one of them.
    """

    nodes: int
    collusion: int
    sizes: tuple[Tested, ...]
    findings: tuple[GroupFinding, ...]

    @property
    def exposed(self) -> bool:
        return bool(self.findings)

    @property
    def victims(self) -> frozenset[int]:
        return frozenset(node for finding in self.findings for node in finding.victims)


def audit_groups(subject: GroupSubject, collusion: int, progress: Progress | None = None) -> GroupAudit:
    """Look at every coalition of up to `collusion` owners, each with all its nodes.

    Raises:
        ConfigError: there cannot be that many colluders.
    """
    table = subject.held
    graph = nx.Graph([(r, node) for r, groups in table.items() for group in groups for node in group])
    owned = parties(graph, subject.owners)
    check_collusion(collusion, len(owned), "owners" if subject.owners else "nodes")
    whose = {node: k for k, party in enumerate(owned) for node in party}
    together = list(coalitions(graph, collusion, subject.owners))
    sizes: list[Tested] = []
    findings: list[GroupFinding] = []
    for size in range(1, collusion + 1):
        tried = [one for one in together if len({whose[node] for node in one}) == size]
        if size == 1:
            tried = owned
        exposing = 0
        for done, one in enumerate(tried):
            if progress is not None:
                progress(f"coalitions of {size}", done + 1, len(tried))
            victims = exposed(table, one)
            exposing += bool(victims)
            known = {v for old in findings if one.issuperset(old.coalition) for v in old.victims}
            if victims.keys() - known:
                new = {node: recipe for node, recipe in victims.items() if node not in known}
                sentence = describe(one, new, lambda node: subject.names.get(node, str(node)), subject.owners)
                findings.append(
                    GroupFinding(coalition=tuple(sorted(one)), victims=tuple(sorted(new)), sentence=sentence)
                )
        possible = math.comb(len(owned), size)
        sizes.append(
            Tested(
                size=size,
                possible=possible,
                tested=possible,
                exposing=exposing,
                worst=float(exposing > 0),
            )
        )
    return GroupAudit(nodes=len(graph), collusion=collusion, sizes=tuple(sizes), findings=tuple(findings))
