"""Noise that members of a cell add together: how much, on which grid, and what is forgotten."""

import math

import numpy as np
import pytest

import cesar
from cesar.methods.noise import discrete_gaussian
from cesar.protocol.cell_state import CellState
from cesar.sim.wires import drive

SIZE = 20_000
SPEC = cesar.NoiseSpec(multiplier=1.5, sensitivity=0.01, bound=0.2)


def network(nodes=4, *, noise=SPEC, owners=None, **settings):
    method = cesar.Cells(size=nodes, noise=noise, **settings)
    return cesar.Ensemble(None, method, SIZE, nodes=nodes, seed=1, owners=owners)


def sums(updates, *, rounds=1, **settings):
    """The mean updates that the cell has applied."""
    ensemble = network(len(updates), **settings)
    models, found = np.zeros_like(updates), []
    for round_ in range(rounds):
        reference = models if round_ == 0 else None
        before = models.copy()
        models = drive(ensemble.exchange(models + updates, reference=reference)).vectors
        found.append(models[0] - before[0])
        assert all(np.array_equal(model, models[0]) for model in models)
        assert not any(state.unsent.any() for state in ensemble.states)
    return found, ensemble


@pytest.mark.parametrize(("members", "collusion"), [(4, 1), (6, 1), (6, 3)])
def test_a_sum_without_k_members_noise_has_sigma(members, collusion):
    updates = np.zeros((members, SIZE), dtype=np.float32)
    found, _ = sums(updates, rounds=3, collusion=collusion)
    noise = members * np.concatenate(found)  # of the sum
    honest = members - collusion
    expected = SPEC.sigma * math.sqrt(members / honest)  # all members have added theirs
    assert noise.std() == pytest.approx(expected, rel=0.02)
    assert abs(noise.mean()) < 5 * expected / math.sqrt(len(noise))


def test_an_owner_of_two_members_counts_as_one():
    updates = np.zeros((5, SIZE), dtype=np.float32)
    found, _ = sums(updates, owners={0: "a", 1: "a", 2: "b", 3: "c", 4: "d"})
    assert (5 * found[0]).std() == pytest.approx(SPEC.sigma * math.sqrt(5 / 3), rel=0.03)


def test_updates_are_in_the_sum_and_long_ones_are_scaled_down():
    draw = np.random.default_rng(1)
    updates = draw.normal(size=(4, SIZE))
    updates *= 0.1 / np.linalg.norm(updates, axis=1, keepdims=True)
    long = updates.copy()
    long[1] *= 50
    for given, expected in ((updates, updates), (long, updates * np.array([1, 2, 1, 1])[:, None])):
        found, _ = sums(given.astype(np.float32), ring_bits=32)
        rest = found[0] - expected.mean(axis=0)
        assert np.linalg.norm(rest) / math.sqrt(SIZE) == pytest.approx(
            SPEC.sigma * math.sqrt(4 / 3) / 4, rel=0.03
        )
        aligned = found[0] @ expected.mean(axis=0) / np.square(expected.mean(axis=0)).sum()
        assert aligned == pytest.approx(1, abs=0.3)


def test_noise_is_new_in_every_round_and_for_every_member():
    updates = np.zeros((4, SIZE), dtype=np.float32)
    (first, second), _ = sums(updates, rounds=2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_nothing_that_was_trained_outlives_its_round():
    """With a share of the positions, without an answer, and after a restart."""
    draw = np.random.default_rng(1)
    ensemble = network(sparsifier=cesar.RandomSubsampling(0.3))
    models = np.zeros((4, SIZE), dtype=np.float32)
    given = models + draw.normal(size=models.shape).astype(np.float32) / 1000
    result = drive(ensemble.exchange(given, reference=models, arrives=lambda a, b, frame: b != 2))
    assert all(report.unsure == 0 for report in result.reports)
    for state in ensemble.states:
        assert state.doubt is None
        assert not state.unsent.any()
    np.testing.assert_array_equal(result.vectors, [state.common for state in ensemble.states])
    saved = ensemble.states[0]
    saved.unsent[:] = 1
    ensemble.take([CellState.from_arrays(state.to_arrays()) for state in ensemble.states])
    assert not ensemble.states[0].unsent.any()


def test_what_is_announced_says_nothing_about_the_data():
    frames = []
    for scale in (1e-6, 1.0):
        ensemble = network()
        updates = np.full((4, SIZE), scale, dtype=np.float32)
        told = []
        drive(
            ensemble.exchange(
                updates,
                reference=np.zeros_like(updates),
                watch=lambda a, b, frame, told=told: told.append(
                    bytes(frame.payload)[28 + 48] if frame.kind.name == "CELL_AGREE" else None
                ),
            )
        )
        frames.append({exponent for exponent in told if exponent is not None})
    assert frames[0] == frames[1] == {SPEC.exponent + 127}


@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.7, 80.0, 70_000.0])
def test_discrete_gaussian_numbers(sigma):
    numbers = discrete_gaussian(sigma, 200_000, b"k" * 32)
    assert numbers.std() == pytest.approx(sigma if sigma > 0.5 else 0.29, rel=0.02 if sigma > 0.5 else 0.2)
    assert abs(numbers.mean()) < 5 * sigma / math.sqrt(200_000)
    if sigma < 10:
        support = np.arange(-60, 61)
        expected = np.exp(-(support**2) / (2 * sigma**2))
        expected *= len(numbers) / expected.sum()
        found = np.bincount(numbers + 60, minlength=121)
        large = expected > 20
        assert np.square((found - expected)[large] / np.sqrt(expected[large])).mean() < 3


def test_rounding_is_in_the_multiplier():
    assert SPEC.effective(SIZE) < SPEC.multiplier
    assert SPEC.effective(SIZE) == pytest.approx(SPEC.multiplier, rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"multiplier": 0.0}, "multiplier is 0.0"),
        ({"multiplier": -1.0}, "multiplier is -1.0"),
        ({"multiplier": math.inf}, "multiplier is inf"),
        ({"sensitivity": 0.0}, "sensitivity is 0.0"),
        ({"bound": 0.0}, "bound is 0.0"),
        ({"bound": 0.001}, "clip to at least that"),
        ({"bound": 1e9}, "lower bound, or raise multiplier"),
        ({"delta": 0.0}, "between 0 and 1"),
        ({"delta": 1.0}, "between 0 and 1"),
    ],
)
def test_bad_noise(settings, words):
    with pytest.raises(cesar.ConfigError, match=words):
        cesar.NoiseSpec(**{"multiplier": 1.0, "sensitivity": 0.01, "bound": 0.2, **settings})


def test_what_noise_does_not_go_with():
    with pytest.raises(cesar.ConfigError, match="noise does not go with BlockTopK"):
        cesar.Cells(noise=SPEC, sparsifier=cesar.BlockTopK(0.1))
    with pytest.raises(cesar.ConfigError, match="noise does not go with robust"):
        cesar.Cells(noise=SPEC, robust=True)
    with pytest.raises(cesar.ConfigError, match="two honest members must be left"):
        cesar.Cells(size=4, collusion=3, noise=SPEC)
