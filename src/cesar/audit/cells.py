"""The audit of cells. It decides for all rounds together.

What a node trains is in one sum, over its whole cell, and then it is gone: nobody ever sees it in another sum (docs/privacy.md
has the proof). So what a coalition learns follows from the cells alone. In a cell of which it owns some members it learns the
sum over the others; that is a single participant's update only if the members of one owner are left.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations

import networkx as nx

from cesar.base.sentences import listed
from cesar.graph.cells import Cell, CellPlan
from cesar.graph.neighbourhood import check_collusion, parties

FOR_ALL_ROUNDS = (
    "This holds for all rounds together: every number that a participant trains is in one sum, over its whole cell, and never "
    "in another. It holds for cells only, since version 0.3."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSubject:
    """What is audited.

    Attributes:
        source: where the cells came from.
        sparsifier: "full", "random" or "topk".
        share: how much of its update a cell hands in in a round.
        names: what people call a node, where it has a name.
        notes: what the reader must know.
    """

    plan: CellPlan
    source: str
    sparsifier: str
    share: float
    names: Mapping[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def owners(self) -> Mapping[int, str]:
        return self.plan.owners

    @property
    def graph(self) -> nx.Graph:
        """Who talks to whom."""
        return self.plan.links()

    def name(self, node: int) -> str:
        """What a node is called."""
        return self.names.get(node, f"site {node}")

    def promise(self, node: int) -> str:
        """With whom a node's updates are added up before anybody sees them.

        >>> from cesar.methods.cells import Cells
        >>> subject = CellSubject(plan=Cells().plan_of([[1, 3, 5, 9]]), source="", sparsifier="full", share=1.0)
        >>> subject.promise(3)
        'What site 3 trains is only ever seen added to what sites 1, 5 and 9 train.'
        """
        others = [other for other in self.plan.cells[self.plan.cell_of(node)] if other != node]  # type: ignore[arg-type]
        if any(other in self.names for other in others):
            said = listed(map(self.name, others))
        else:
            said = f"sites {listed(others)}" if len(others) > 1 else f"site {others[0]}"
        return f"What {self.name(node)} trains is only ever seen added to what {said} train{'s' if len(others) == 1 else ''}."

    def promises(self) -> list[str]:
        """The same for everybody."""
        return [self.promise(node) for node in sorted(node for cell in self.plan.cells for node in cell)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CellFinding:
    """Owners that together see what one participant trains."""

    cell: int
    owners: tuple[str, ...]
    victims: Cell
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAudit:
    """The outcome.

    Attributes:
        left: of each cell, how many owners' members a coalition of that size cannot tell apart.
        findings: one for each cell in which too few are left.
    """

    nodes: int
    collusion: int
    left: tuple[int, ...]
    findings: tuple[CellFinding, ...]

    @property
    def exposed(self) -> bool:
        return bool(self.findings)


def audit_cells(subject: CellSubject, collusion: int) -> CellAudit:
    """What up to `collusion` owners learn about the others, each with all its nodes.

    Raises:
        ConfigError: there cannot be that many colluders.
    """
    everybody = [node for cell in subject.plan.cells for node in cell]
    owned = parties(everybody, subject.owners)
    check_collusion(collusion, len(owned), "owners" if subject.owners else "nodes")
    left, findings = [], []
    for number, cell in enumerate(subject.plan.cells):
        inside = parties(cell, subject.owners)
        left.append(max(len(inside) - collusion, 0))
        if len(inside) - collusion <= 1:
            findings.append(_finding(subject, number, inside, collusion))
    return CellAudit(nodes=len(everybody), collusion=collusion, left=tuple(left), findings=tuple(findings))


def _finding(subject: CellSubject, number: int, inside: list[frozenset[int]], collusion: int) -> CellFinding:
    """The fewest owners that are enough to see what the last one trains."""
    who = next(iter(combinations(inside, min(collusion, len(inside) - 1))))
    victims = tuple(node for node in subject.plan.cells[number] if not any(node in party for party in who))
    owners = tuple(_owner(subject, party) for party in who)
    together = f"{listed(owners)} together see" if len(owners) > 1 else f"{owners[0]} sees"
    sentence = f"{together} what {listed(map(subject.name, victims))} train{'s' if len(victims) == 1 else ''}, in cell {number}"
    return CellFinding(cell=number, owners=owners, victims=victims, sentence=sentence)


def _owner(subject: CellSubject, party: frozenset[int]) -> str:
    first = min(party)
    return subject.owners.get(first, subject.name(first))
