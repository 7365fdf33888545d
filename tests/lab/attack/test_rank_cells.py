"""The rank test for cells: whatever colluders get in all rounds lies in the span of sums over whole cells.

Each member trains something new in every round. These are the unknowns, and numbers in the engine are combinations of
them. To see which, every unknown has a position of its own in each word of 64: there it is 1 and the others are 0. So
what a node hands in, or a cell's model, *is* its row of coefficients, once for every word, and nothing about the engine has
to be assumed. Who is under which masks comes from the frames.
"""

import contextlib
import hashlib
import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import ClassVar

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.graph.cells import CellPlan, divide, graph_of
from cesar.indices import IndexSet
from cesar.methods.positions import CellPositions
from cesar.protocol.cell_state import CellState
from cesar.protocol.wire import HEADER_BYTES, Kind
from cesar.protocol.wire_cells import Agree, Scatter
from cesar.sim.wires import drive
from support.rank import solved

WORD = 64


@dataclass(frozen=True)
class Words:
    """Hands in words as a whole, drawn by the round."""

    name: ClassVar[str] = "words"
    block: ClassVar[int] = 0
    ranks: ClassVar[bool] = False
    memory: ClassVar[bool] = False
    alpha: float

    def for_cell(self, attempt, size, scores):
        label = b"words" + struct.pack("<I", attempt.round_)
        draws = np.frombuffer(hashlib.shake_256(label).digest(4 * -(-size // WORD)), dtype="<u4")
        chosen = np.repeat(draws < self.alpha * 2**32, WORD)[:size]
        return CellPositions(IndexSet.from_positions(np.flatnonzero(chosen), size))


class Network:
    """Cells whose members train one unknown after the other, and a coalition that keeps all it gets.

    Args:
        fate: (round, kind, sender, recipient) → whether a frame arrives.
        plans: round → cells from then on, as another roster would have them; a node that is in none of them is away.

    Attributes:
        sums: word → (members, row) of every sum over a whole cell, of what the members outside the coalition handed in.
        opened: what the coalition's own keepers could add up: (members, who is in it, round).
        models: word → rows of all cells' models in all rounds, which are no secret.

    """

    def __init__(self, nodes, coalition, *, rounds, fate=None, seed=1, plans=None, **settings):
        assert nodes * rounds <= WORD
        self.method = cesar.Cells(**{"ring_bits": 32, **settings})
        self.words = 2 * (self.method.size + 1)
        self.ensemble = cesar.Ensemble(None, self.method, WORD * self.words, nodes=nodes, seed=seed)
        self.nodes, self.rounds, self.number = nodes, rounds, 0
        self.coalition, self.fate = frozenset(coalition), fate or (lambda *_: True)
        self.sums, self.models, self.opened = defaultdict(list), defaultdict(list), []
        self.plans, self.away = plans or {}, {}

    def redraw(self, cells):
        """Another division, as a peer takes it up: what it keeps moves with it."""
        ensemble, old = self.ensemble, self.ensemble.plan
        ensemble._nodes.plan = CellPlan(cells, graph_of("exponential", len(cells)), old.least, old.collusion)
        placed = {node for cell in cells for node in cell}
        self.away = dict.fromkeys(sorted(set(range(self.nodes)) - placed), "before_announce")
        for node in placed:
            ensemble._nodes.places[node] = ensemble.plan.place(node)
        for state in ensemble.states:
            state.move()

    def unknown(self, node, round_):
        return node * self.rounds + round_

    @property
    def own(self):
        """The coalition's own unknowns, as rows."""
        return np.eye(WORD)[[self.unknown(a, t) for a in sorted(self.coalition) for t in range(self.rounds)]]

    @property
    def honest(self):
        """The unknowns of all others."""
        others = [i for i in range(self.nodes) if i not in self.coalition]
        return [self.unknown(i, t) for i in others for t in range(self.rounds)]

    def run(self):
        models = start = np.zeros((self.nodes, WORD * self.words), dtype=np.float32)
        for number in range(self.rounds):
            self.number = number
            if number in self.plans:
                self.redraw(self.plans[number])
            given = models.reshape(self.nodes, self.words, WORD).copy()
            for i in range(self.nodes):
                given[i, :, self.unknown(i, self.number)] += 1
            self.members, self.handed, self.chosen, self.came = {}, {}, {}, defaultdict(dict)
            result = drive(
                self.ensemble.exchange(
                    given.reshape(self.nodes, -1),
                    reference=start if self.number == 0 else None,
                    arrives=self.arrives,
                    crashes=self.away,
                    refused=[],  # whoever heard less than others may take their help for a mistake
                )
            )
            models = result.vectors
            self.chosen = result.selected.reshape(self.nodes, self.words, WORD)[:, :, 0]
            self.add_up()
            for state in self.ensemble.states:
                for word, row in enumerate(state.common.reshape(self.words, WORD)):
                    self.models[word].append(row.astype(np.float64))
        return self

    def arrives(self, sender, recipient, frame):
        """A frame leaves: note what is in it, under whatever masks; and say whether it gets through."""
        body, cell = (
            memoryview(bytes(frame.payload))[HEADER_BYTES:],
            self.ensemble._nodes.places[sender].members,
        )
        there = self.fate(self.number, frame.kind, sender, recipient)
        if frame.kind is Kind.CELL_AGREE:
            given_up = Agree.decode(body, cell, 1).given_up
            self.members[sender] = tuple(node for node in cell if node not in given_up)
        if frame.kind is Kind.CELL_SCATTER:
            members = self.members[sender]
            self.handed[sender] = self.ensemble.states[sender].unsent.reshape(self.words, WORD).copy()
            if there:
                partners = [node for node in members if node != sender]
                checks = Scatter.decode(body, len(partners)).checks
                self.came[recipient][sender] = dict(zip(partners, checks, strict=True))
        return there

    def add_up(self):
        for members in {self.members[sender] for sender in self.handed}:
            honest = [i for i in members if i not in self.coalition]
            if all(self.members.get(i) == members and i in self.handed for i in honest):
                total = np.sum([self.handed[i] for i in honest], axis=0)
                np.testing.assert_allclose(total, np.rint(total), atol=1e-5)
                for word in np.flatnonzero(self.chosen[honest[0]]):
                    self.sums[word].append((members, np.rint(total[word]).astype(np.int64)))
        for keeper in self.coalition & self.came.keys():
            self.opened += [
                (self.members[keeper], part, self.number) for part in self.closed(self.came[keeper])
            ]

    def closed(self, came):
        """Whose masked parts a colluding keeper can add up so that no mask is left: all masks between two others must have
        come from both, and be the same. Those with a colluder it takes off itself.
        """
        parts, open_ends = nx.Graph(), set()
        parts.add_nodes_from(i for i in came if i not in self.coalition)
        for i in parts:
            for partner, check in came[i].items():
                if partner in parts and came[partner].get(i) == check:
                    parts.add_edge(i, partner)
                elif partner not in self.coalition:
                    open_ends.add(i)
        return [frozenset(part) for part in nx.connected_components(parts) if not part & open_ends]

    def check(self):
        """Everything that the coalition holds is made of sums over whole cells; the unknowns that it solves for."""
        for members, part, _ in self.opened:
            assert part == frozenset(members) - self.coalition, "a sum over a part of a cell"
        found = set()
        for word in range(self.words):
            rows = np.array([row for _, row in self.sums[word]] or [np.zeros(WORD)], dtype=np.int64)
            basis = np.concatenate([rows, self.own.astype(np.int64)])
            for row in np.unique(np.round(self.models[word], 7), axis=0):
                near, *_ = np.linalg.lstsq(basis.T.astype(float), row, rcond=None)
                np.testing.assert_allclose(near @ basis, row, atol=1e-5)
            for unknown in self.honest:
                assert len({members for members, row in self.sums[word] if row[unknown]}) <= 1
            told = np.flatnonzero(solved(basis[None])[0])
            found |= set(told.tolist()) & set(self.honest)
        return found


def fate(seed, nodes, coalition, chance, *, withheld=0.25):
    """Frames get lost by chance, one node is away for some rounds, from the middle of a round on; and colluders keep frames
    of some kinds from somebody they choose.
    """
    rng = np.random.default_rng(seed)
    gone, first = int(rng.integers(nodes)), int(rng.integers(3))
    away = range(first + 1, first + int(rng.integers(2, 6)))
    last_word = int(rng.choice([Kind.CELL_AGREE, Kind.CELL_SCATTER, Kind.CELL_EXCHANGE]))
    kinds = (Kind.CELL_AGREE, Kind.CELL_SCATTER, Kind.CELL_GATHER, Kind.CELL_EXCHANGE)
    quiet = {(a, kind) for a in coalition for kind in kinds if rng.random() < withheld}

    def arrives(number, kind, sender, recipient):
        draw = np.random.default_rng([seed, number, int(kind), sender, recipient])
        if gone in (sender, recipient) and (number in away or (number == first and kind > last_word)):
            return False
        if (sender, kind) in quiet and draw.random() < 0.5:
            return False
        return bool(draw.random() >= chance)

    return arrives


SHARED = {"everything": cesar.FullSharing(), "half of it": Words(0.5)}


@pytest.mark.parametrize("shared", SHARED)
@pytest.mark.parametrize("collusion", [1, 2])
def test_all_that_colluders_hold_are_sums_over_whole_cells(shared, collusion):
    """Nothing lost: with k colluders of each cell there is a sum for every round, and nobody is solved for."""
    network = Network(10, range(collusion), rounds=6, size=5, sparsifier=SHARED[shared], collusion=collusion)
    assert network.run().check() == set()
    assert network.opened
    assert sum(map(len, network.sums.values())) > 20


def test_one_honest_member_is_read_and_the_test_says_so():
    """A coalition that leaves one member of a cell holds sums of one, which is more than the plan promises."""
    cell = Network(8, (), rounds=4, size=4).ensemble.plan.cells[0]
    network = Network(8, cell[:3], rounds=4, size=4)
    assert network.run().check() == {network.unknown(cell[3], t) for t in range(4)}


def random_network(seed):
    rng = np.random.default_rng(seed)
    collusion = int(rng.integers(1, 3))
    size = int(rng.integers(collusion + 2, 6))
    nodes = int(
        rng.integers(size + 1, 2 * size if rng.random() < 0.6 else 13)
    )  # often one cell with members to spare
    coalition = rng.choice(nodes, collusion, replace=False).tolist()
    losses = fate(seed, nodes, coalition, rng.choice([0.0, 0.0, 0.02, 0.1]))
    sparsifier = SHARED[str(rng.choice(list(SHARED)))]
    return Network(
        nodes,
        coalition,
        rounds=WORD // nodes,
        fate=losses,
        seed=seed,
        size=size,
        sparsifier=sparsifier,
        collusion=collusion,
        patience=int(rng.integers(1, 3)),
    )


@pytest.mark.parametrize("cases", [20, pytest.param(600, marks=pytest.mark.slow)])
def test_with_losses_and_colluders_who_withhold(cases):
    """Random plans and coalitions: members come and go, answers are missing, numbers are in doubt."""
    sums = changed = 0
    for seed in range(cases):
        network = random_network(seed).run()
        assert network.check() == set(), seed
        sums += sum(map(len, network.sums.values()))
        changed += len({members for rows in network.sums.values() for members, _ in rows}) > len(
            network.ensemble.plan.cells
        )
    assert sums > 20 * cases
    assert changed > cases / 8, "sums over fewer members are part of it"


def test_numbers_that_are_not_thrown_away_in_doubt_are_found_in_two_sums(monkeypatch):
    """The rule that keeps a number out of sums over different members, left out: the test above notices."""
    monkeypatch.setattr(CellState, "take_doubt_back", lambda state, members: None)
    monkeypatch.setattr(CellState, "raise_doubt", lambda state, members, positions: None)
    noticed = 0
    for seed in range(30):
        with contextlib.suppress(AssertionError):
            noticed += bool(random_network(seed).run().check())
            continue
        noticed += 1
    assert noticed > 0


# ── withholding, as a peer did that decided whose model moves ───────────────────────────────────────────

PHASES = (Kind.CELL_AGREE, Kind.CELL_SCATTER, Kind.CELL_GATHER, Kind.CELL_EXCHANGE)


def selective(kind, first, where):
    """In a network of two cells: a member, or one of the cell that is heard, sends frames of a kind to one partner alone in some rounds; then it
    falls silent for some, so that its cell goes on without it.
    """
    network = Network(11, (), rounds=5, size=4, patience=1)
    cells = network.ensemble.plan.cells
    inside, outside = (cells[0], cells[1]) if where == "inside" else (cells[1], cells[0])
    liar = inside[-1]
    chosen = outside[0] if kind is Kind.CELL_EXCHANGE else inside[0]

    def fate(number, which, sender, recipient):
        if sender != liar or number < first:
            return True
        return number < first + 1 and (which is not kind or recipient == chosen)

    return Network(11, (liar,), rounds=5, size=4, patience=1, fate=fate)


def read_or_noticed(network):
    """Whether the coalition has more than it may, or sums that it must not have."""
    with contextlib.suppress(AssertionError):
        return bool(network.run().check())
    return True


@pytest.mark.parametrize("where", ["inside", "next door"])
@pytest.mark.parametrize("kind", PHASES, ids=lambda kind: kind.name.lower())
def test_sending_to_one_alone_changes_no_sum(kind, where):
    """Whatever is withheld from whom: a number is in sums over one set of members, and nobody is read."""
    for first in (0, 1, 2):
        network = selective(kind, first, where)
        assert network.run().check() == set()
        sets = {members for rows in network.sums.values() for members, _ in rows}
        liar = min(network.coalition)
        assert {members for members in sets if liar not in members and len(members) >= 4}


def test_withholding_is_noticed_where_nothing_is_in_doubt(monkeypatch):
    """The rule about doubt, left out: one who takes a sum and keeps the answer gets the same numbers in another sum."""
    monkeypatch.setattr(CellState, "take_doubt_back", lambda state, members: None)
    monkeypatch.setattr(CellState, "raise_doubt", lambda state, members, positions: None)
    assert any(
        read_or_noticed(selective(kind, first, "inside"))
        for kind in (Kind.CELL_SCATTER, Kind.CELL_GATHER)
        for first in (0, 1, 2)
    )


# ── redrawing, as a signer did that drew groups anew until it had read everybody ────────────────────────


def redrawn(seed):
    """Ten nodes in cells that a signer draws anew, again and again: other draws, fewer nodes, and all of them again. Its colluder withholds."""
    rng = np.random.default_rng(seed)
    everybody, least = list(range(10)), int(rng.integers(3, 6))
    plans = {}
    for number in range(1, 6):
        if rng.random() < 0.7:
            stay = sorted(rng.choice(10, int(rng.integers(2 * least, 11)), replace=False).tolist())
            plans[number] = divide(
                stay if rng.random() < 0.5 else everybody, least, 1, seed=int(rng.integers(1000))
            )
    colluder = int(rng.integers(10))
    sparsifier = SHARED[str(rng.choice(list(SHARED)))]
    losses = fate(seed, 10, [colluder], rng.choice([0.0, 0.05]), withheld=0.2)
    return Network(
        10,
        [colluder],
        rounds=6,
        fate=losses,
        seed=seed,
        plans=plans,
        size=least,
        sparsifier=sparsifier,
        patience=1,
    )


@pytest.mark.parametrize("cases", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_no_sequence_of_plans_puts_a_number_into_two_sums(cases):
    """Joins, leaves and redraws, with withholding between them: nobody is read, and every number has one set of members."""
    sums = sets = 0
    for seed in range(cases):
        network = redrawn(seed).run()
        assert network.check() == set(), seed
        sums += sum(map(len, network.sums.values()))
        sets += len({members for rows in network.sums.values() for members, _ in rows})
    assert sums > 20 * cases
    assert sets > 2 * cases, "cells did change"


def test_redrawing_is_noticed_where_nothing_is_in_doubt(monkeypatch):
    """The same plans without the rule about doubt: numbers are found in sums over different members."""
    monkeypatch.setattr(CellState, "take_doubt_back", lambda state, members: None)
    monkeypatch.setattr(CellState, "raise_doubt", lambda state, members, positions: None)
    assert any(read_or_noticed(redrawn(seed)) for seed in range(20))
