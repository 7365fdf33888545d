"""Means weighted by data, in cells: against plain numpy, with loss, with lies about weights, and with bad input."""

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cesar
from cesar.protocol.cell_state import CellState
from cesar.protocol.wire import Kind
from support.cell_network import SIZE, Network

SIZES = (190, 17_834, 1_204, 640, 2_311, 9_980, 430, 3_333, 190, 777, 15_000, 5_120, 260, 8_192, 911, 6_005)
SPARSIFIERS = {
    "full": cesar.FullSharing(),
    "random": cesar.RandomSubsampling(0.3),
    "blocks": cesar.BlockTopK(0.25, 16),
}


def weighted(nodes, **settings):
    return Network(nodes, samples=SIZES[:nodes], weight="samples", most_samples=20_000, **settings)


def settle(network):
    for _ in range(network.settle()):
        network.round(steps=np.zeros_like(network.models))
    return network.models


def reference(network):
    """What all sites have trained, weighted by their samples."""
    w = np.array(network.samples, dtype=np.float64)
    return (
        network.start + (w[:, None] * (network.trained - network.unsent - network.discarded)).sum(0) / w.sum()
    )


@pytest.mark.parametrize("nodes", [5, 8, 9, 16])
@pytest.mark.parametrize("rounds", [1, 4])
def test_the_settled_model_is_the_weighted_mean(nodes, rounds):
    """One cell, two, two of different sizes, and four; sites of 190 to 17,834 samples."""
    network = weighted(nodes)
    for _ in range(rounds):
        network.round()
        network.check_alike()
    expected = reference(network)
    settled = settle(network)
    np.testing.assert_allclose(settled, np.repeat(expected[None], nodes, axis=0), atol=1e-4)
    plain = network.start + network.trained.mean(axis=0)
    assert np.abs(settled[0] - plain).max() > 0.1


@pytest.mark.parametrize("name", ["random", "blocks"])
def test_what_is_handed_in_later_counts_with_its_weight(name):
    """One cell: memory is exact, whatever is chosen when."""
    network = weighted(6, sparsifier=SPARSIFIERS[name])
    for _ in range(5):
        network.round()
        np.testing.assert_allclose(network.common[0], reference(network), atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(
    lost=st.lists(
        st.tuples(
            st.integers(0, 3),
            st.sampled_from((Kind.CELL_AGREE, Kind.CELL_SCATTER, Kind.CELL_GATHER, Kind.CELL_MISSED)),
            st.integers(0, 4),
            st.integers(0, 4),
        ),
        max_size=8,
    ),
    name=st.sampled_from(sorted(SPARSIFIERS)),
    samples=st.lists(st.integers(190, 17_834), min_size=5, max_size=5),
)
def test_loss_leaves_numbers_and_weights_together(lost, name, samples):
    """Of one cell: what is in the common model is there with its weight, and nothing else is."""
    network = Network(5, samples=samples, weight="samples", most_samples=20_000, sparsifier=SPARSIFIERS[name])
    for number in range(7):
        gone = {(kind, a, b) for when, kind, a, b in lost if when == number}
        network.round(arrives=lambda a, b, frame, gone=gone: (frame.kind, a, b) not in gone)
    states = network.ensemble.states
    assert {state.carried for state in states} == {states[0].carried}
    assert states[0].carried == (sum(samples), sum(samples))
    network.check_alike()
    np.testing.assert_allclose(network.common[0], reference(network), atol=2e-4)


def test_weights_leave_once_and_only_their_sum_is_told():
    """The first sum has one word more for every keeper; later ones have none."""
    network, lengths = weighted(4), []
    for _ in range(3):
        seen = []
        network.round(watch=lambda a, b, frame, seen=seen: seen.append(frame))
        lengths.append({len(frame.payload) for frame in seen if frame.kind is Kind.CELL_SCATTER})
        assert all(frame.kind is not Kind.CELL_MODEL for frame in seen)
    assert lengths[1] == lengths[2]
    assert {length - 4 for length in lengths[0]} == lengths[1]
    assert {state.carried.total for state in network.ensemble.states} == {float(sum(SIZES[:4]))}


def test_scales_say_nothing_of_weights():
    """What members tell one another of the size of their updates does not depend on their samples."""

    def told(samples):
        network, seen = Network(4, samples=samples, weight="samples"), []
        for _ in range(2):
            network.round(watch=lambda a, b, frame: seen.append((a, frame)))
        return [bytes(frame.payload[76:79]) for a, frame in seen if frame.kind is Kind.CELL_AGREE and a == 2]

    assert told((5, 5, 5, 5)) == told((5, 5, 90_000, 5))


def test_nobody_is_given_up_before_all_are_weighed():
    """Else the sum with it would show its weight later."""
    network = weighted(5, patience=2)
    for _ in range(4):
        result = network.round(crashes={3: "before_announce"})
        assert result.reports[0].summed == ()
    network.round()
    assert network.ensemble.states[0].carried.total == sum(SIZES[:5])
    for _ in range(3):
        result = network.round(crashes={3: "before_announce"})
    assert result.reports[0].members == (0, 1, 2, 4)
    assert network.ensemble.states[0].carried.total == sum(SIZES[:5])
    network.round()
    network.round()
    np.testing.assert_allclose(network.common[0], reference(network), atol=2e-4)


def test_a_member_that_is_given_the_model_is_given_its_weight():
    network = weighted(8)
    cell = network.ensemble.plan.cells[0]
    for _ in range(2):
        network.round()
    away = cell[1]
    states = network.ensemble.states
    states[away] = dataclasses.replace(CellState.start(network.start, 0), samples=SIZES[away])
    network.ensemble.take(states)
    network.models[away] = network.start
    for _ in range(2):
        network.round(steps=np.zeros_like(network.models))
    states = network.ensemble.states
    assert states[away].carried == states[cell[0]].carried
    network.check_alike()


def test_a_state_keeps_its_weights():
    network = weighted(8)
    network.round()
    for state in network.ensemble.states:
        again = CellState.from_arrays(state.to_arrays())
        assert (again.samples, again.carried, again.told) == (state.samples, state.carried, state.told)
    state.move()
    assert state.carried == (0.0, 0.0)


def test_a_site_cannot_change_its_weight():
    network = weighted(4)
    network.round()
    state = network.ensemble.states[1]
    state.weigh(SIZES[1])
    with pytest.raises(cesar.DataError, match="give the first number again"):
        state.weigh(5)


@pytest.mark.parametrize("samples", [0, -3, 1.5, float("nan"), True, None, 20_001])
def test_bad_samples(samples):
    method = cesar.Cells(weight="samples", most_samples=20_000)
    with pytest.raises(cesar.ConfigError, match="samples"):
        method.check_samples(samples)


def test_what_weights_do_not_go_with():
    models = np.zeros((4, SIZE), dtype=np.float32)
    with pytest.raises(cesar.ConfigError, match="sign weight"):
        cesar.aggregate(models, None, cesar.Cells(), samples=[1, 2, 3, 4])
    with pytest.raises(cesar.ConfigError, match="number of training samples"):
        cesar.aggregate(models, None, cesar.Cells(weight="samples"))
    with pytest.raises(cesar.ConfigError, match="one for each"):
        cesar.aggregate(models, None, cesar.Cells(weight="samples"), samples=[1, 2])
    with pytest.raises(cesar.ConfigError, match="one voice"):
        cesar.Cells(weight="samples", robust=True)
    noise = cesar.NoiseSpec(multiplier=1.0, sensitivity=0.1, bound=1.0)
    with pytest.raises(cesar.ConfigError, match="is itself data"):
        cesar.Cells(weight="samples", noise=noise)
    with pytest.raises(cesar.ConfigError, match="equal"):
        cesar.Cells(weight="data")
    with pytest.raises(cesar.ConfigError, match="most_samples"):
        cesar.Cells(weight="samples", most_samples=0)
