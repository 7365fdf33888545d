"""Members that vote: what most refuse is not applied, nobody takes an objection back, and what is far away is scaled down."""

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.kernels.slicing import spans
from cesar.protocol import cell_round, cell_vote
from cesar.protocol.cell_state import CellState, standing
from cesar.protocol.wire import Kind
from cesar.protocol.wire_cells import Claim
from cesar.sim.wires import drive

SIZE, TENSORS = 700, (100, 500, 100)
SPARSIFIERS = {
    "full": cesar.FullSharing(),
    "random": cesar.RandomSubsampling(0.3),
    "blocks": cesar.BlockTopK(0.25, 16),
}


class Network:
    """Nodes that all learn much the same, so that an honest update points where the others point."""

    def __init__(self, nodes, *, seed=1, **settings):
        self.draw = np.random.default_rng(seed)
        method = cesar.Cells(**{"ring_bits": 32, "robust": True, **settings})
        self.ensemble = cesar.Ensemble(None, method, SIZE, nodes=nodes, seed=seed, tensors=TENSORS)
        self.models = np.zeros((nodes, SIZE), dtype=np.float32)
        self.way = self.draw.normal(size=SIZE)
        self.rounds = 0

    def steps(self):
        noise = 0.5 * self.draw.normal(size=self.models.shape)
        return (self.way + noise).astype(np.float32)

    def round(self, steps=None, **options):
        reference = self.models if self.rounds == 0 else None
        steps = self.steps() if steps is None else steps
        result = drive(self.ensemble.exchange(self.models + steps, reference=reference, **options))
        self.models, self.rounds = result.vectors, self.rounds + 1
        return result

    @property
    def common(self):
        return np.array([state.common for state in self.ensemble.states])

    def check_alike(self):
        for cell in self.ensemble.plan.cells:
            for node in cell[1:]:
                np.testing.assert_array_equal(self.common[node], self.common[cell[0]])


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_honest_rounds_are_those_without_votes(name):
    """Nobody objects, and all models are what they would be anyway."""
    networks = [Network(12, size=4, sparsifier=SPARSIFIERS[name], robust=robust) for robust in (True, False)]
    for _ in range(5):
        results = [network.round() for network in networks]
        networks[0].check_alike()
    assert {report.objections for report in results[0].reports} == {0}
    assert {report.objections for report in results[1].reports} == {None}
    if (
        name == "blocks"
    ):  # a heard cell has handed in what others have not: that is far away in the first rounds
        return
    np.testing.assert_allclose(networks[0].common, networks[1].common, atol=2e-5)
    np.testing.assert_allclose(networks[0].models, networks[1].models, atol=2e-5)


@pytest.mark.parametrize("factor", [-10, 64, 1000, -1000])
@pytest.mark.parametrize("name", SPARSIFIERS)
def test_poison_is_refused(name, factor):
    """The cell's model stays; what honest members had handed in is thrown away and said to be; the next round goes on."""
    network = Network(4, sparsifier=SPARSIFIERS[name])
    network.round()
    before, states = network.common[0], network.ensemble.states
    unsent = np.array([state.unsent for state in states])
    steps = network.steps()
    steps[2] *= factor
    result = network.round(steps)
    assert {report.objections for report in result.reports} == {3}
    assert {report.refusals for report in result.reports} == {1}
    np.testing.assert_array_equal(network.common[0], before)
    chosen = result.selected[0]
    for node, report in enumerate(result.reports):
        lost = np.where(chosen, unsent[node] + steps[node], 0)
        np.testing.assert_allclose(report.discarded, lost, rtol=1e-3, atol=1e-4 * abs(factor))
        assert not network.ensemble.states[node].unsent[chosen].any()
    if name == "full":  # elsewhere the liar's memory still has some of it
        assert {report.refusals for report in network.round().reports} == {0}
        assert not np.array_equal(network.common[0], before)


def test_a_cell_that_refuses_follows_the_cells_that_it_hears():
    network = Network(8, size=4)
    liar = network.ensemble.plan.cells[0][0]
    for round_ in range(1, 9):
        steps = network.steps()
        steps[liar] *= -10
        result = network.round(steps)
        mine = [result.reports[node] for node in network.ensemble.plan.cells[0]]
        others = [result.reports[node] for node in network.ensemble.plan.cells[1]]
        assert {report.refusals for report in mine} == {round_}
        assert {report.refusals for report in others} == {0}
        network.check_alike()
    way = network.way / np.linalg.norm(network.way)
    assert min(model @ way for model in network.common) > 2 * np.linalg.norm(network.way)


@pytest.mark.parametrize("who", ["heard", "keepers"])
def test_what_is_far_away_is_scaled_down(who, monkeypatch):
    """A heard cell, or a keeper of the own one, tells values × 2³⁰: models move by no more than twice what they used to."""
    network = Network(8, size=4)
    for _ in range(6):
        network.round()
    before, cells = network.common.copy(), network.ensemble.plan.cells
    liars = cells[0] if who == "heard" else cells[1][:1]
    frame = cell_round.Exchange if who == "heard" else cell_round.Gather
    usual = max(state.distances.max() for state in network.ensemble.states)
    honest = frame.encode

    def encode(header, *fields):
        if header.sender not in liars:
            return honest(header, *fields)
        at = next(k for k, field in enumerate(fields) if isinstance(field, tuple) and k)  # exponents
        return honest(header, *fields[:at], tuple(e + 30 for e in fields[at]), *fields[at + 1 :])

    monkeypatch.setattr(frame, "encode", staticmethod(encode))
    network.round(np.zeros_like(network.models))
    network.check_alike()
    moved = False
    for node in cells[1]:
        for first, last in spans(11, 4):
            change = (network.common[node] - before[node])[64 * first : 64 * last]
            distance = np.sqrt(np.square(change, dtype=np.float64).mean())
            assert distance <= 1.001 * usual  # at weight one half, what is twice as far
            moved |= distance > 0.2 * usual
    assert moved


def test_a_member_that_was_offered_something_else_knows_no_outcome():
    """Masks of ballots are made for what was seen; who has seen something else does not spoil a count, it is noticed."""
    network = Network(4)
    network.round()
    before = network.common[0]

    def arrives(sender, recipient, frame):
        if frame.kind is Kind.CELL_OFFER and (sender, recipient) == (1, 3):
            forged = bytearray(frame.payload)
            forged[-2] ^= 0x40
            network.ensemble.nodes[3].receive(1, bytes(forged))
            return False
        return True

    result = network.round(arrives=arrives)
    assert {report.objections for report in result.reports} == {None}
    assert result.reports[0].unequal == ((0, 3),)
    assert result.reports[3].unequal == ((0, 3), (1, 3), (2, 3))
    np.testing.assert_array_equal(network.common[0], before)
    assert all(report.unsure == SIZE for report in result.reports)
    result = network.round()  # over the same members: what was in doubt is handed in again
    assert {report.objections for report in result.reports} == {0}
    assert all(report.unsure == 0 and report.discarded is None for report in result.reports)


@pytest.mark.parametrize("kind", [Kind.CELL_OFFER, Kind.CELL_VOTE, Kind.CELL_GATHER])
def test_lost_frames_lose_nothing(kind):
    network = Network(4, sparsifier=cesar.RandomSubsampling(0.3))
    network.round()
    network.round(arrives=lambda a, b, frame: not (frame.kind is kind and (a, b) == (1, 3)))
    for _ in range(2):
        result = network.round()
    network.check_alike()
    assert {report.objections for report in result.reports} == {0}


def test_a_member_that_comes_back_scales_down_like_the_others():
    """It is given the distances with the model."""
    network = Network(10, size=5)
    away = network.ensemble.plan.cells[0][2]
    for round_ in range(14):
        gone = {away: "before_announce"} if 2 <= round_ < 5 else None
        network.round(crashes=gone)
    network.check_alike()
    states = network.ensemble.states
    for node in network.ensemble.plan.cells[0]:
        np.testing.assert_array_equal(states[node].distances, states[away].distances)


def test_the_state_keeps_distances():
    network = Network(8, size=4)
    for _ in range(3):
        network.round()
    state = network.ensemble.states[0]
    again = CellState.from_arrays(state.to_arrays())
    np.testing.assert_array_equal(again.distances, state.distances)
    assert (again.recent, again.refusals) == (state.recent, state.refusals)
    assert len(state.recent) == 4


def test_one_keeper_alone_is_not_believed_about_a_vote():
    """It would say that most had agreed to its slice, and hand it on."""
    base, keepers = bytes(32), (0, 1, 2, 3)
    claims = {n: Claim(base, 5, keepers, (b"", b"", b"", b"")) for n in keepers}
    claims[2] = Claim(base, 5, keepers, (b"", b"", b"x" * 32, b""))
    assert standing(claims).behind == {0: (2,), 1: (2,), 3: (2,)}
    judged = standing(claims, lambda nodes: len(list(nodes)) > 1)
    assert judged.behind == {}
    assert judged.disputed == {2: ()}
    assert judged.chain == base


@pytest.mark.parametrize("members", [3, 4, 8, 32])
def test_ballots_count_objections_and_nobody_takes_one_back(members):
    draw = np.random.default_rng(members)
    for objections in range(members):
        total = sum(cell_vote.fill_ballot(k < objections, members, draw.bytes) for k in range(members))
        assert cell_vote.count_objections(total, members) == objections
        for _ in range(5):
            forged = total + draw.integers(2**16, size=len(total), dtype=np.uint32)
            assert cell_vote.count_objections(forged, members) >= objections
            few = total.copy()
            few[draw.integers(len(few))] += np.uint32(draw.integers(1, 2**16))
            assert cell_vote.count_objections(few, members) >= objections


def test_objections():
    draw = np.random.default_rng(1)
    own = draw.normal(size=500).astype(np.float32)

    def objects(mean):
        return cell_vote.objects_to(*cell_vote.products(np.asarray(mean, dtype=np.float64), own))

    assert not objects(own)
    assert not objects(1.99 * own)
    assert objects(2.01 * own)
    assert objects(-0.01 * own)
    assert not objects(np.zeros(500))
    own[:] = 0
    assert not objects(np.ones(500))


def test_distances_of_cells_that_lost_a_member():
    """Slices of three lie across those of four; each keeps what concerns it."""
    known = cell_vote.no_distances(4)
    assert cell_vote.most_distance(known, 12, cell_vote.Span(0, 3), 7.0) == 7.0
    known = cell_vote.remember(known, 12, 3, {0: 1.0, 1: 2.0, 2: 4.0})
    assert known[:, -1].tolist() == [1.0, 1.5, 3.0, 4.0]
    assert cell_vote.most_distance(known, 12, cell_vote.Span(0, 3), 7.0) == 2.0
    assert cell_vote.most_distance(known, 12, cell_vote.Span(0, 6), 7.0) == 2.5


def test_what_votes_cost():
    """Two more frames to each member, and the values of one slice more."""
    sent = []
    for robust in (False, True):
        network = Network(16, size=4, robust=robust, ring_bits=16, graph=nx.cycle_graph(4))
        sent.append(network.round().tally.bytes)
    ballots = 2 * cell_vote.DRAWS * cell_vote.boxes(4)
    more = sent[1]["values"] - sent[0]["values"]
    assert more.sum() == 16 * 3 * ballots + 2 * SIZE * 3 * 4
