"""Rounds of cells, with the engine's own frames: sums, models of cells, what is unsent, loss, lies and bad input."""

import networkx as nx
import numpy as np
import pytest

import cesar
from cesar.protocol.cell_state import CellState
from cesar.protocol.wire import Frame, Kind
from support.cell_liar import GATHER, Stage
from support.cell_network import SIZE, TENSORS, Network

SPARSIFIERS = {
    "full": cesar.FullSharing(),
    "random": cesar.RandomSubsampling(0.3),
    "blocks": cesar.BlockTopK(0.25, 16),
}


def losing(*lost):
    """Loses frames of (kind, sender, recipient); None stands for anybody."""

    def arrives(sender, recipient, frame):
        return not any(
            frame.kind is kind and a in (None, sender) and b in (None, recipient) for kind, a, b in lost
        )

    return arrives


@pytest.mark.parametrize("bits", [16, 20, 24, 32])
def test_one_cell_is_an_exact_mean(bits):
    draw = np.random.default_rng(3)
    models = draw.normal(size=(7, SIZE)).astype(np.float32)
    result = cesar.aggregate(models, None, cesar.Cells(size=4, ring_bits=bits), seed=7)
    assert result.cells == ((0, 1, 2, 3, 4, 5, 6),)
    assert {report.members for report in result.reports} == {result.cells[0]}
    np.testing.assert_allclose(
        result.vectors, np.repeat(models.mean(axis=0)[None], 7, axis=0), atol=8 * 2.0 ** (3 - bits) + 1e-7
    )


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_sums_cells_and_what_is_unsent(name):
    """Against plain numpy, for three rounds: mean inside, mean of two cells, the rest stays."""
    network = Network(10, size=5, sparsifier=SPARSIFIERS[name])
    common = np.repeat(network.start[None].astype(np.float64), 2, axis=0)
    unsent = np.zeros((10, SIZE))
    for _ in range(3):
        steps = network.draw.normal(size=network.models.shape).astype(np.float32)
        result = network.round(steps=steps)
        cells, chosen = result.cells, result.selected
        unsent += steps
        value = common.copy()
        for c, cell in enumerate(cells):
            u = chosen[cell[0]]
            value[c][u] += unsent[list(cell)].mean(axis=0)[u]
            unsent[np.ix_(list(cell), u)] = 0
        for c in (0, 1):
            told = chosen[cells[1 - c][0]]  # where the other cell tells its model
            common[c] = value[c]
            common[c][told] = (value[c][told] + value[1 - c][told]) / 2
        for c, cell in enumerate(cells):
            np.testing.assert_allclose(network.common[cell[0]], common[c], atol=1e-5)
        np.testing.assert_allclose(network.unsent, unsent, atol=1e-5)
        network.check_alike()
        np.testing.assert_allclose(
            result.vectors, [common[result.cells[1].count(i)] + unsent[i] for i in range(10)], atol=1e-5
        )


def test_blocks_with_most_to_hand_in_are_chosen():
    """The second round hands in the blocks in which the cell's first steps were largest."""
    network = Network(4, sparsifier=cesar.BlockTopK(0.25, 16))
    steps = np.full((4, SIZE), 0.001, dtype=np.float32)
    steps[:, 320:480] = np.arange(1, 5)[:, None]
    first = network.round(steps=steps)
    late = ~first.selected[0][320:480]
    second = network.round(steps=np.zeros_like(steps))
    assert late.any()
    assert second.selected[0][320:480][late].all()


def test_blocks_are_about_as_many_as_asked_for():
    network = Network(8, sparsifier=cesar.BlockTopK(0.25, 16))
    for _ in range(3):
        assert network.round().shared == pytest.approx(0.25, abs=0.02)


def test_bytes_are_those_of_the_design():
    """(2m − 1)/m values for every position, and little else."""
    size = 64 * 400
    models = np.random.default_rng(1).normal(size=(16, size)).astype(np.float32)
    result = cesar.aggregate(models, None, cesar.Cells(size=4), seed=7)
    per_node = result.bytes["values"] / (2 * size)
    np.testing.assert_allclose(per_node, 1.75, atol=1e-9)
    assert sum(result.bytes[c] for c in ("coordination", "metadata", "control")).max() < 1200


def test_sixteen_bits_do_not_drift():
    """Rounding is unbiased: after many rounds without training cells are where their mean was."""
    network = Network(8, ring_bits=16)
    network.round()
    mean = np.mean([network.common[cell[0]] for cell in network.ensemble.plan.cells], axis=0)
    for _ in range(30):
        network.round(steps=np.zeros_like(network.models))
    drift = np.abs(network.common[0] - mean)
    assert drift.max() < 40 * 2.0**-14
    assert abs((network.common[0] - mean).mean()) < 2.0**-14


@pytest.mark.parametrize("graph", ["exponential", "regular:3", nx.cycle_graph(4)])
def test_settling(graph):
    network = Network(16, graph=graph, sparsifier=cesar.RandomSubsampling(0.5))
    for _ in range(2):
        network.round()
    common = np.array(network.common)
    rounds = network.settle()
    for _ in range(rounds):
        result = network.round(steps=np.zeros_like(network.models))
    left = np.abs(result.vectors - common.mean(axis=0)).max()
    assert left <= 2e-3 * np.ptp(common, axis=0).max() + 1e-6
    if graph == "exponential":
        assert rounds == 2
        assert left < 1e-5


# ── loss ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["before_announce", "after_announce"])
def test_a_cell_without_a_member_stands_still(point):
    network = Network(10, size=5)
    network.round()
    before, cells = np.array(network.common), network.ensemble.plan.cells
    away, partner = cells[0][2], cells[0][1]
    result = network.round(crashes={away: point})
    assert result.reports[cells[1][0]].summed == cells[1]
    if point == "before_announce":
        assert result.reports[partner].missing == (away,)
        assert result.reports[partner].members == ()
    else:
        assert result.reports[partner].summed == ()
    np.testing.assert_array_equal(np.array(network.common)[list(cells[0])], before[list(cells[0])])
    kept = network.unsent
    assert (kept[list(cells[0])] != 0).all()
    assert not kept[list(cells[1])].any()
    result = network.round()
    assert result.reports[partner].summed == cells[0]
    assert not network.unsent.any()
    assert not network.discarded.any()


@pytest.mark.parametrize("name", list(SPARSIFIERS))
def test_a_cell_that_stands_still_listens(name):
    """Two cells, and a member of the first is away. Its model stays, and what its keepers hear is told with the next sum; the second
    cell hears what the first has heard before it does.
    """
    network = Network(10, size=5, sparsifier=SPARSIFIERS[name])
    quiet = np.zeros_like(network.models)
    apart = quiet.copy()
    cells = network.ensemble.plan.cells
    apart[list(cells[1])] = 1.0
    network.round(steps=quiet)
    away, states = cells[0][2], network.ensemble.states
    before = states[cells[0][0]].common.copy()
    for _ in range(3):
        result = network.round(steps=apart, crashes={away: "before_announce"})
        assert result.reports[cells[0][0]].heard == (1,)
        assert result.reports[cells[0][0]].members == ()
        np.testing.assert_array_equal(states[cells[0][0]].common, before)
        assert states[away].overheard is None
    listened = [states[n].overheard for n in cells[0] if n != away]
    assert any(found is not None and found.change.max() > 0.5 for found in listened)
    # Where the first cell listens the second gives half of its steps away; about the slice of the member that is away nobody speaks.
    moved = states[cells[1][0]].common - before
    words = [11 * number // 5 for number in range(6)]
    lost = slice(64 * words[2], 64 * words[3])
    if name == "full":
        assert moved[lost].mean() > 1.01 * moved.mean()
    result = network.round(steps=quiet)
    assert result.reports[away].summed == cells[0]
    network.check_alike()
    heard = states[cells[0][0]].common - before
    assert heard.max() > 0.5
    if name == "full":
        np.testing.assert_allclose(heard, 1.5, rtol=1e-5)  # half of three steps, wherever they were meanwhile
        assert all(state.overheard is None for state in states)


def test_nobody_trains_on_what_was_overheard():
    """A cell whose model cannot be trained on speaks while all members but one are away: those who are there go on from the model that
    all of the cell hold.
    """
    network = Network(10, size=5, patience=50)
    cells = network.ensemble.plan.cells
    network.round()
    dead = np.zeros_like(network.models)
    dead[list(cells[1])] = 1e6
    held = network.ensemble.states[cells[0][0]].common.copy()
    gone = dict.fromkeys(cells[0][1:], "before_announce")
    network.round(steps=dead, crashes=gone)
    result = network.round(steps=np.zeros_like(dead), crashes=gone)
    lonely = network.ensemble.states[cells[0][0]]
    assert lonely.overheard is not None
    np.testing.assert_array_equal(lonely.common, held)
    np.testing.assert_array_equal(result.vectors[cells[0][0]], held + lonely.unsent)


def test_nothing_is_unsent_and_a_slice_is_lost():
    """What is unsent after a whole sum of a large model is a row of zeros that nobody writes to."""
    size = 1 << 18
    stage = Stage(4, size=size)
    stage.round(np.ones((4, size), dtype=np.float32))
    assert not stage.unsent(0).any()
    stage.round(None, lambda sender, _, kind, __: [] if (sender, kind) == (2, GATHER) else None)
    assert stage.cells("summed")[0] == (0, 1, 3)
    stage.round(np.ones((4, size), dtype=np.float32))
    stage.round(np.zeros((4, size), dtype=np.float32))
    for n in stage.nodes:
        np.testing.assert_array_equal(stage.common(n), stage.common(0))
        assert not stage.unsent(n).any()


def test_what_was_overheard_survives_a_restart():
    network = Network(10, size=5)
    cells = network.ensemble.plan.cells
    network.round()
    network.round(crashes={cells[0][2]: "before_announce"})
    state = network.ensemble.states[cells[0][0]]
    again = CellState.from_arrays(state.to_arrays())
    assert again.overheard.first == state.overheard.first
    np.testing.assert_array_equal(again.overheard.change, state.overheard.change)
    kept = state.to_arrays()
    network.round()
    assert state.overheard is None
    # It may still be on its way to the disk.
    np.testing.assert_array_equal(kept["overheard"], again.overheard.change)
    again.move()
    assert again.overheard is None


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_a_masked_slice_that_is_lost_stays_with_its_node(name):
    network = Network(4, sparsifier=SPARSIFIERS[name])
    network.round()
    result = network.round(arrives=losing((Kind.CELL_SCATTER, 1, 2)))
    assert result.reports[0].summed == (0, 1, 3)
    assert result.reports[0].unsure > 0
    network.check_alike()
    network.check_account()
    for _ in range(3):
        result = network.round()
    assert result.reports[0].summed == (0, 1, 2, 3)
    assert not network.discarded.any()
    network.check_account()


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_an_answer_that_is_lost_is_handed_on(name):
    """Member 3 lacks slice 1: it says so, is given it, and throws away what it trained on another model."""
    network = Network(4, sparsifier=SPARSIFIERS[name])
    network.round()
    network.round(arrives=losing((Kind.CELL_GATHER, 1, 3)))
    assert not np.array_equal(network.common[3], network.common[0])
    seen = []
    result = network.round(watch=lambda a, b, frame: seen.append((frame.kind, a, b)))
    assert (Kind.CELL_MISSED, 0, 3) in seen
    assert result.reports[0].behind == (3,)
    assert result.reports[0].members == ()
    assert result.reports[3].discarded is not None
    assert np.flatnonzero(network.discarded.any(axis=1)).tolist() == [0, 1, 2, 3]
    network.check_alike()
    network.check_account()
    assert network.round().reports[3].summed == (0, 1, 2, 3)
    network.check_account()


@pytest.mark.parametrize("name", SPARSIFIERS)
@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_whatever_gets_lost(name, seed):
    """Random loss in all phases: at the end members are alike, and the account is even."""
    network = Network(5, size=4, seed=seed, sparsifier=SPARSIFIERS[name], patience=100)
    fate = np.random.default_rng(seed)
    for _ in range(25):
        network.round(arrives=lambda *_: fate.random() > 0.04)
    for _ in range(4):
        result = network.round()
    assert result.reports[0].summed == (0, 1, 2, 3, 4)
    network.check_alike()
    network.check_account()


def test_patience_ends():
    """A cell of five goes on as four after two rounds; who comes back is given the model, and is in the next sum."""
    network = Network(5, size=4, patience=2)
    network.round()
    gone = {4: "before_announce"}
    members = [network.round(crashes=gone).reports[0].members for _ in range(4)]
    assert members == [(), (), (0, 1, 2, 3), (0, 1, 2, 3)]
    kinds = []
    for _ in range(2):  # they do not wait for it in the first
        result = network.round(watch=lambda a, b, frame: kinds.append((frame.kind, a, b)))
    assert (Kind.CELL_MODEL, 0, 4) in kinds
    assert {(a, b) for kind, a, b in kinds if kind is Kind.CELL_VOUCH} == {(1, 4), (2, 4), (3, 4)}
    assert result.reports[4].discarded is not None
    for _ in range(3):
        result = network.round()
    assert result.reports[4].summed == (0, 1, 2, 3, 4)
    network.check_alike()


def test_members_at_one_link_vouch_for_one_model():
    """Member 0 alone began a gathering that came to nothing: it holds the same model, and can give it to member 4."""
    network = Network(5, size=4, patience=1)
    gone = {4: "before_announce"}
    for crashes in ({}, gone, gone, gone):
        network.round(crashes=crashes)
    network.round(crashes=gone, arrives=losing((Kind.CELL_AGREE, 0, None)))
    claims = [state.claim for state in network.ensemble.states]
    assert claims[0] != claims[1]
    assert claims[0].chain() == claims[1].chain() != claims[4].chain()
    for _ in range(3):
        result = network.round()
    assert result.reports[4].summed == (0, 1, 2, 3, 4)
    network.check_alike()


def test_a_cell_that_would_be_too_small_waits():
    network = Network(4, patience=2)
    network.round()
    before = np.array(network.common)
    for _ in range(6):
        assert network.round(crashes={3: "before_announce"}).reports[0].members == ()
    np.testing.assert_array_equal(network.common, before)
    assert network.round().reports[0].summed == (0, 1, 2, 3)
    network.check_account()


def test_numbers_in_doubt_are_not_handed_in_with_others():
    """What may be in a sum of five is thrown away before a sum of four; a different set would give the difference."""
    network = Network(5, size=4, patience=1)
    network.round()
    network.round(arrives=losing((Kind.CELL_SCATTER, 4, 0)))
    doubt = [state.doubt for state in network.ensemble.states]
    assert all(item is not None and item.members == (0, 1, 2, 3, 4) for item in doubt)
    unsure = network.unsent.copy()
    gone = {4: "before_announce"}
    network.round(crashes=gone, steps=np.zeros_like(network.models))
    result = network.round(crashes=gone, steps=np.zeros_like(network.models))
    assert result.reports[0].members == (0, 1, 2, 3)
    for node in range(4):
        np.testing.assert_allclose(network.discarded[node], unsure[node], atol=1e-5)


def test_scores_are_not_added_up_with_others():
    """What was scored among five is not scored among four: the difference would be the score of the one that left."""
    network = Network(5, size=4, patience=1, sparsifier=cesar.BlockTopK(0.1, 64))
    network.round()
    still, gone = np.zeros_like(network.models), {4: "before_announce"}
    scores = []
    for crashes in ({}, gone, gone):
        result = network.round(steps=still, crashes=crashes)
        scores.append(network.ensemble.states[0].scores.copy())
    assert result.reports[0].members == (0, 1, 2, 3)
    waits = np.flatnonzero([part.any() for part in np.split(network.unsent[0], range(64, SIZE, 64))])
    assert len(waits) >= 7
    assert (scores[0][waits] > 150).all()  # five members wait there
    assert (scores[2][waits] < 20).all()  # rounding, at the most
    for _ in range(12):  # what is new counts, and all of it is handed in some day
        network.round(crashes=gone)
    assert (network.ensemble.states[0].scores > 150).any()


def test_a_silent_cell_is_left_out():
    network = Network(12, size=4)
    network.round()
    silent = network.ensemble.plan.graph.heard(0, 1)[0].cell
    crashes = dict.fromkeys(network.ensemble.plan.cells[silent], "before_announce")
    result = network.round(crashes=crashes)
    keeper = network.ensemble.plan.cells[0][0]
    assert result.reports[keeper].heard == ()
    assert result.reports[keeper].summed == network.ensemble.plan.cells[0]
    network.check_alike()


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_restart_from_a_saved_state():
    """All that counts is in the state: a run that goes on from it ends the same."""
    one, other = Network(4, sparsifier=SPARSIFIERS["blocks"]), Network(4, sparsifier=SPARSIFIERS["blocks"])
    for network in (one, other):
        network.round()
        network.round(arrives=losing((Kind.CELL_GATHER, 1, 3)))
    saved = [CellState.from_arrays(state.to_arrays()) for state in other.ensemble.states]
    fresh = cesar.Ensemble(None, other.method, SIZE, nodes=4, seed=1, tensors=TENSORS, first_round=2)
    fresh.take(saved)
    other.ensemble = fresh
    for _ in range(3):
        one.round()
        other.round()
    np.testing.assert_array_equal(one.models, other.models)


def test_a_state_without_what_is_unsent():
    network = Network(4)
    network.round()
    arrays = network.ensemble.states[0].to_arrays()
    del arrays["unsent"]
    with pytest.raises(cesar.DataError, match="lacks 'unsent'; without it a number could be in two sums"):
        CellState.from_arrays(arrays)


def test_a_state_saved_before_frames_left_is_in_doubt():
    network = Network(4)
    saved = {}

    def watch(sender, recipient, frame):
        if frame.kind is Kind.CELL_SCATTER and sender == 2 and not saved:
            saved.update(network.ensemble.states[2].to_arrays())

    network.round(watch=watch)
    state = CellState.from_arrays(saved)
    assert state.handed is None
    assert state.doubt is not None
    assert state.doubt.members == (0, 1, 2, 3)
    np.testing.assert_array_equal(state.doubt.values, state.unsent)


@pytest.mark.parametrize("name", SPARSIFIERS)
def test_a_state_that_was_set_back_hands_in_nothing_old(name):
    """Member 2 is put back to a state from before a sum that nobody answered: what it has trained since is all that it hands in."""
    network = Network(5, size=4, patience=1, sparsifier=SPARSIFIERS[name])
    network.round()
    saved = network.ensemble.states[2].to_arrays()
    network.round(arrives=losing((Kind.CELL_GATHER, None, None)))
    node = network.ensemble.nodes[2]
    node.state = CellState.from_arrays(saved)
    old = node.state.unsent.copy()
    node.distrust()
    network.models[2] = node.state.common + old
    lost = network.round(steps=np.zeros_like(network.models)).reports[2].discarded
    if name == "full":
        assert lost is None  # nothing was left over then
    else:
        np.testing.assert_allclose(lost, old, atol=1e-5)
    np.testing.assert_allclose(node.state.unsent, 0, atol=1e-5)
    network.round()
    assert network.round().reports[2].summed == (0, 1, 2, 3, 4)
    network.check_alike()


def test_a_round_that_runs_when_a_state_proves_old_ends_without_a_sum():
    network = Network(4)
    network.round()
    node, left = network.ensemble.nodes[2], []

    def arrives(sender, recipient, frame):
        left.append((frame.kind, sender))
        if (frame.kind, recipient) == (Kind.CELL_AGREE, 2) and node.state.doubt is None:
            node.distrust()
        return True

    result = network.round(arrives=arrives)
    assert (Kind.CELL_SCATTER, 2) not in left
    assert result.reports[2].summed == ()
    for _ in range(3):
        result = network.round()
    assert result.reports[2].summed == (0, 1, 2, 3)
    network.check_alike()


# ── lies ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_keeper_that_gives_members_different_models_is_named():
    """Keeper 1 tells member 3 something else: digests differ, nobody hands anything in, and all are alike again."""
    network = Network(4)
    network.round()
    before = network.common[0].copy()
    forged = _forging(network, keeper=1, victim=3)
    network.round(arrives=forged)
    assert not np.array_equal(network.common[3], network.common[0])
    sums = []
    result = network.round(watch=lambda a, b, frame: sums.append(frame.kind))
    assert Kind.CELL_SCATTER not in sums
    assert all(report.disputed == ((1, (3,)),) for report in result.reports)
    network.check_alike()
    np.testing.assert_array_equal(network.common[0][256:320], before[256:320])  # a part of slice 1
    assert all(report.discarded is not None for report in result.reports)
    assert network.round().reports[0].summed == (0, 1, 2, 3)


@pytest.mark.parametrize("bits", [16, 32])
def test_a_slice_of_noise_is_thrown_away(bits):
    """Member 1 sends keeper 2 noise in the place of its values: honest members cannot have brought that sum."""
    network = Network(4, ring_bits=bits)
    network.round()
    before = network.common[0].copy()
    noise = np.random.default_rng(5)

    def arrives(sender, recipient, frame):
        if frame.kind is Kind.CELL_SCATTER and (sender, recipient) == (1, 2):
            turned = bytearray(frame.payload)
            turned[-160:] = noise.bytes(160)  # of about 175 values; the rest is as it was
            network.ensemble.nodes[2].receive(1, bytes(turned))
            return False
        return True

    result = network.round(arrives=arrives)
    assert result.reports[0].summed == (0, 1, 3)
    network.check_alike()
    assert np.abs(network.common[0] - before).max() < 10


def _forging(network, keeper, victim):
    """Delivers a forged answer to the victim in place of the keeper's."""

    def arrives(sender, recipient, frame):
        if frame.kind is Kind.CELL_GATHER and (sender, recipient) == (keeper, victim):
            forged = bytearray(frame.payload)
            forged[-2] ^= 0x40
            network.ensemble.nodes[victim].receive(keeper, bytes(forged))
            return False
        return True

    return arrives


def test_different_models_give_masks_that_do_not_cancel():
    """Even if digests were not compared: the chain is in every key."""
    network = Network(4)
    network.round()
    states = network.ensemble.states
    keys = set()
    for chain in (states[0].claim.chain(), bytes(32)):
        secret = network.ensemble._secrets.pair(0, 1)
        terms = cesar.crypto.keys.cell_terms(0, (0, 1, 2, 3), b"", bytes(32), chain)
        round_id = network.ensemble._secrets.round_id(1)
        key = cesar.crypto.keys.cell_mask_key(
            secret, round_id, nodes=(0, 1), seeds=(bytes(16), bytes(16)), cell=0, terms=terms
        )
        keys.add(key.key)
    assert len(keys) == 2


# ── bad input ───────────────────────────────────────────────────────────────────────────────────────────


def test_models_that_cannot_be_used():
    network = Network(4)
    bad = network.models.copy()
    bad[2, 5] = np.nan
    with pytest.raises(cesar.DataError, match="node 2: the model holds 1 value"):
        network.ensemble.round(bad)
    with pytest.raises(cesar.DataError, match=r"vectors are \(4, 10\)"):
        network.ensemble.round(np.zeros((4, 10), dtype=np.float32))
    with pytest.raises(cesar.DataError, match="members of cell 0 begin at different models"):
        network.ensemble.round(network.models, reference=np.eye(4, SIZE, dtype=np.float32))
    with pytest.raises(cesar.ConfigError, match="how many nodes are there"):
        cesar.Ensemble(None, cesar.Cells(), SIZE)
    with pytest.raises(cesar.ConfigError, match="of another network"):
        cesar.Ensemble(None, cesar.Cells().for_nodes(8), SIZE, nodes=9)


def refuses(node, sender, payload):
    """Whether a node refuses a frame, which it must do by name; it must never fail on one."""
    error = None
    try:
        node.receive(sender, payload)
    except cesar.RemoteProtocolError as raised:
        error = raised
    assert error is None or (error.peer == sender and error.reason.value != "fault"), error
    return error is not None


def test_frames_that_are_cut_grown_or_turned():
    """Whatever a member sends: it is taken, or refused by name; never an error of another kind."""
    draw = np.random.default_rng(5)
    for sparsifier in SPARSIFIERS.values():
        network = Network(8, size=4, sparsifier=sparsifier, ring_bits=16)
        members = network.ensemble.nodes
        refused = 0

        def meddle(sender, recipient, frame: Frame, members=members):
            nonlocal refused
            payload = bytes(frame.payload)
            cut = int(draw.integers(len(payload)))
            turned = bytearray(payload)
            turned[cut] ^= int(draw.integers(1, 256))
            for forged in (payload[:cut], payload + b"\0", bytes(turned) if cut < 28 else payload[:-1]):
                refused += refuses(members[recipient], sender, forged)
            return True

        for _ in range(3):
            network.round(arrives=meddle, refused=[])
        for _ in range(4):
            network.round()
        network.check_alike()
        assert refused > 300
        assert np.isfinite(network.models).all()


def test_turned_values_never_raise():
    """Values, scales and digests that were turned on their way: rounds end, and models stay finite."""
    draw = np.random.default_rng(6)
    network = Network(8, size=4, sparsifier=SPARSIFIERS["blocks"], ring_bits=16)
    members = network.ensemble.nodes

    def meddle(sender, recipient, frame):
        if draw.random() > 0.1 or len(frame.payload) == 28:
            return True
        turned = bytearray(frame.payload)
        turned[int(draw.integers(28, len(turned)))] ^= int(draw.integers(1, 256))
        refuses(members[recipient], sender, bytes(turned))
        return False

    for _ in range(25):
        network.round(arrives=meddle, refused=[])
        assert np.isfinite(network.models).all()
    for _ in range(6):
        network.round(steps=np.zeros_like(network.models))
    network.check_alike()
