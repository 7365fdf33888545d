"""Leakage over rounds: a curious receiver solves for its neighbours' models from its own sums.

At a position p, a sum of round t is one equation: the values of those in H, its contributors, add up to it. With independent
selections H changes from round to round, and models move slowly. So r assumes that each neighbour keeps its distance to a
reference that r knows, and solves all equations of p together by least squares: k unknowns, E equations. Where the sets never
change (full sharing) the same equation comes again and again, and the solution is the mean.

This is not the strongest attack. It takes neighbours' models for nearly still and each sum for itself. Averaging couples sums:
what a neighbour heard in one round is in what it sends in the next, by public weights. A filter follows this (`filter`).

What the estimators have in common:

    y − |H|·ref_t = Σ_{i in H} (m + e_i)     weight fade^(T−t) / |H|

m is what all members have in common, the weighted mean of the distances; e_i, what tells i from the others,
is the least-squares solution of smallest norm, or with `ridge` the one that a small ridge draws to zero.
The estimates at the end are ref_T + m + e_i. Beside them stands the mean, which tells nobody apart: the same with one unknown
for everybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar_lab.attack.inference import Judge, mean_and_error
from cesar_lab.attack.view import Scene, View, check_recorded, scene_of, view_of
from cesar_lab.data.samples import Dataset
from cesar_lab.run import execute as run
from cesar_lab.run import recording
from cesar_lab.run.config import Experiment

Reals = NDArray[np.float64]
TOLERANCE = 1e-9
"""Eigenvalues below this are zero. Gram matrices of sets are integer, so the product of their nonzero
eigenvalues is at least 1 and the smallest is at least ((k−1)/kE)^(k−1): 4·10⁻⁷ for 5 neighbours and 20 sums."""
BLOCK = 1 << 22  # numbers in the Gram matrices that are solved at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimator:
    """How a receiver separates its sums.

    Attributes:
        reference: what neighbours keep their distance to: nothing, r's own model or r's new average.
        ridge: how much e_i is drawn to zero.
        fade: weight of a round relative to the next one.
    """

    name: str
    reference: Literal["nothing", "own", "average"]
    ridge: float = 0.0
    fade: float = 1.0


ESTIMATORS = (
    Estimator(name="fixed models", reference="nothing"),
    Estimator(name="fixed distance to own model", reference="own"),
    Estimator(name="fading distance to own model", reference="own", ridge=1.0, fade=0.9),
    Estimator(name="fixed distance to average", reference="average", ridge=0.3),
    Estimator(name="the latest of each", reference="own", fade=0.05),
)


def solve(gram: Reals, moments: Reals, ridge: float = 0.0) -> Reals:
    """Least squares of smallest norm for many small systems: (P, k, k) and (P, k) give (P, k)."""
    values, vectors = np.linalg.eigh(gram)
    kept = values > TOLERANCE
    inverse = np.where(kept, 1.0 / np.where(kept, values + ridge, 1.0), 0.0)
    along = np.einsum("pij,pi->pj", vectors, moments) * inverse
    result: Reals = np.einsum("pij,pj->pi", vectors, along)
    return result


def identified(sent: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(E, k, d) → (k, d): where the sums determine a member's value, if models stand still.

    That is so iff the unit vector of i lies in the span of the sets: its projection on it has length 1.
    """
    result = np.empty(sent.shape[1:], dtype=np.bool_)
    for block in _blocks(sent):
        values, vectors = np.linalg.eigh(_gram(sent[..., block], None))
        inside = np.einsum("pij,pj->pi", vectors**2, (values > TOLERANCE).astype(np.float64))
        result[:, block] = inside.T > 1 - 1e-6
    return result


def separate(view: View, estimator: Estimator) -> tuple[Reals, Reals]:
    """The members' models at the last round, as far as sums tell: (k, d) apart, and (k, d) the same for all."""
    counts = view.sent.sum(axis=1)
    fade = estimator.fade ** (len(view.own) - 1 - view.rounds)[:, None]
    weights = fade / np.maximum(counts, 1)
    reference = _reference(view, counts, estimator)
    distances = view.sums - counts * reference[view.rounds]
    total = (weights * counts).sum(axis=0)
    seen = total > 0
    common = (weights * distances).sum(axis=0) / np.where(seen, total, 1.0)
    middle = np.where(seen, reference[-1] + common, view.own[-1])
    rest = weights * (distances - counts * common)
    alike = np.full(
        (len(view.members), 1), len(view.members) ** -0.5
    )  # what all have in common, of length one
    apart, mean = np.empty(view.sent.shape[1:]), np.empty(view.sent.shape[1:])
    for block in _blocks(view.sent):
        sent = view.sent[..., block]
        moments = np.einsum("tip,tp->pi", sent, rest[:, block])
        gram = _gram(sent, weights[:, block])
        apart[:, block] = middle[block] + solve(gram, moments, estimator.ridge).T
        together = solve(alike.T @ gram @ alike, moments @ alike, estimator.ridge)
        mean[:, block] = middle[block] + alike @ together.T
    return apart, mean


def _reference(view: View, counts: NDArray[np.int64], estimator: Estimator) -> Reals:
    match estimator.reference:
        case "nothing":
            return np.zeros_like(view.own)
        case "own":
            return view.own
        case "average":
            total, values = view.own.copy(), np.ones_like(view.own)
            np.add.at(total, view.rounds, view.sums)
            np.add.at(values, view.rounds, counts)
            return total / values


def _gram(sent: NDArray[np.bool_], weights: Reals | None) -> Reals:
    """(E, k, P) → (P, k, k), the equations' normal matrices."""
    rows = sent.transpose(2, 0, 1).astype(np.float64)
    weighted = rows if weights is None else rows * weights.T[:, :, None]
    result: Reals = rows.transpose(0, 2, 1) @ weighted
    return result


def _blocks(sent: NDArray[np.bool_]) -> Iterator[slice]:
    """Cut the positions so that memory stays small."""
    step = max(1, BLOCK // (sent.shape[1] * max(sent.shape[:2])))
    return (slice(start, start + step) for start in range(0, sent.shape[2], step))


@dataclass(frozen=True, slots=True, kw_only=True)
class LeakageResult:
    """What a method leaks over rounds: means over receivers and all neighbours that they met.

    Attributes:
        identified: fraction of (neighbour, position) that the sets determine if models stand still.
        estimator: the strongest one, judged by the truth.
        error: ‖estimate − model‖ / ‖model‖ of it; `error_mean` that of the best mean, which tells nobody
            apart.
        recovered: 1 − error² / error_mean², over all: how much of what tells a neighbour from the mean is
            found out. 0 or less means nothing.
        auc_true, auc_apart, auc_mean: membership areas of the true model, the estimate and that mean.
    """

    title: str
    dynamic: bool
    rounds: list[int]
    receivers: int
    identified: float
    estimator: str
    error: float
    error_mean: float
    recovered: float
    auc_true: float
    auc_apart: float
    auc_mean: float
    auc_error: float


def leakage(
    directory: Path,
    *,
    window: int = 20,
    receivers: int = 8,
    samples: int = 500,
    seed: int = 1,
    data_dir: Path | None = None,
) -> list[LeakageResult]:
    """Attack every method of an experiment with what a neighbour holds after its last recorded rounds.

    Args:
        window: how many of the last recorded rounds to use.
        receivers: how many nodes, drawn at random, attack in each run.
        samples: of the membership attack, which each receiver directs at one random neighbour.

    Raises:
        ConfigError: what a neighbour holds cannot be told from the recording.
        DataError: fewer rounds were recorded.
    """
    experiment = run.read(directory)
    for method in experiment.method:
        check_recorded(experiment, method)
    if window < 1:
        raise ConfigError(f"window is {window}, but there must be at least one round")
    runs = run.runs_of(experiment, directory)
    for one in runs:
        if len(recording.numbers(one.folder)) < min(window, 2):
            raise DataError(f"{one.folder} has one recorded round; run with [recording] last = {window}")
    data = run.load_data(experiment, data_dir)
    return [
        _attack(
            experiment,
            [one for one in runs if one.method == method],
            data,
            (window, receivers, samples, seed),
        )
        for method in experiment.method
    ]


@dataclass(frozen=True, slots=True)
class _Trial:
    """One receiver's attack, judged: squared errors by estimator, apart and together, and one victim."""

    apart: Reals
    mean: Reals
    norm: float
    identified: float
    victim: int
    estimates: list[tuple[Reals, Reals]]


def _attack(
    experiment: Experiment, runs: Sequence[run.Run], data: Dataset, settings: tuple[int, int, int, int]
) -> LeakageResult:
    window, receivers, samples, seed = settings
    method = runs[0].method
    trials: list[_Trial] = []
    targets: list[tuple[Judge, NDArray[np.float32]]] = []
    for one in runs:
        numbers = recording.numbers(one.folder)[-window:]
        rounds = [
            scene_of(experiment, method, one.seed, recording.read(one.folder, number)) for number in numbers
        ]
        module, parts = run.build_model(experiment, data, one.seed), recording.read_partition(one.folder)
        judge = Judge(data, module, parts, samples=samples, seeds=SeedTree(seed))
        draw = SeedTree(seed).generator("receivers", one.seed)
        for receiver in draw.permutation(len(rounds[0].recorded.models))[:receivers].tolist():
            trials.append(_try(rounds, receiver, draw))
            targets.append((judge, rounds[-1].true[trials[-1].victim]))
    apart, mean = (sum(getattr(trial, name) for trial in trials) for name in ("apart", "mean"))
    best, best_mean = int(np.argmin(apart)), int(np.argmin(mean))
    areas = np.array(
        [
            _areas(judge, trial.victim, true, trial.estimates[best][0], trial.estimates[best_mean][1])
            for trial, (judge, true) in zip(trials, targets, strict=True)
        ]
    )
    norm = sum(trial.norm for trial in trials)
    return LeakageResult(
        title=method.title,
        dynamic=experiment.topology.dynamic,
        rounds=numbers,
        receivers=len(trials),
        identified=float(np.mean([trial.identified for trial in trials])),
        estimator=ESTIMATORS[best].name,
        error=float(np.sqrt(apart[best] / norm)),
        error_mean=float(np.sqrt(mean[best_mean] / norm)),
        recovered=float(1 - apart[best] / mean[best_mean]),
        auc_true=float(areas[:, 0].mean()),
        auc_apart=float(areas[:, 1].mean()),
        auc_mean=float(areas[:, 2].mean()),
        auc_error=mean_and_error(areas[:, 1] - areas[:, 2])[1],
    )


def _try(rounds: Sequence[Scene], receiver: int, draw: np.random.Generator) -> _Trial:
    view = view_of(rounds, receiver)
    true = rounds[-1].true[view.members].astype(np.float64)
    chosen = int(draw.integers(len(view.members)))
    found = [separate(view, estimator) for estimator in ESTIMATORS]
    return _Trial(
        apart=np.array([((apart - true) ** 2).sum() for apart, _ in found]),
        mean=np.array([((mean - true) ** 2).sum() for _, mean in found]),
        norm=float((true**2).sum()),
        identified=float(identified(view.sent).mean()),
        victim=view.members[chosen],
        estimates=[(apart[chosen], mean[chosen]) for apart, mean in found],
    )


def _areas(judge: Judge, victim: int, *models: NDArray[np.floating]) -> list[float]:
    return [area.all_classes for area in judge.judge(np.stack(models).astype(np.float32), victim)]
