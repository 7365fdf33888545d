"""The filter: follow everybody's model with a filter, from one node's sums of all rounds.

Graph, positions and the rule of averaging are public. So at each position the numbers x of all n nodes obey

    x(t+1) = W(t) · x(t) + what training adds         y(t) = H(t) · x(t)

with known W and H. y is what one curious node holds: its own number, and sums. W makes other combinations of the same
numbers out of those that the node has seen before, and so y(t+1) is new. A Kalman filter takes all of this into account. It has
no need to know how large updates are, only how they compare between nodes and rounds: the gain does not depend on the unit.

- *Training.* An update is a direction of the node's own, which changes slowly, and noise (`Motion`). Data that differ from
  node to node make the direction strong, and it is what gives nodes away.
- *Announced sets.* Where nodes announce what changed most, a change of a sum is credited to those who announced the position:
  the update of anybody else is taken for small. Sets say much without any sum: a sample's gradient
  at the model that everybody started from is large where a node that trains on it announces (`Judge.judge_sets`).
- *Settling.* Nobody trains, so all equations are exact ones about the models at the end of training. They are solved
  together by least squares, with what the filter knew by then as the prior.

What an attacker holds comes as `Held`, round by round. Methods whose models are public up to a part that is not (the common
model of a cell and a member's update) put the public part into `base`, and the filter follows the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError, DataError
from cesar.base.seeds import SeedTree
from cesar.graph.cells import CELLS
from cesar.peer.api.flat import flatten
from cesar_lab.attack.inference import Judge, mean_and_error
from cesar_lab.attack.view import Flags, Scene, check_recorded, mixing, scene_of, sums_to
from cesar_lab.data.samples import Dataset
from cesar_lab.run import execute as run
from cesar_lab.run import recording
from cesar_lab.run.config import Experiment

Reals = NDArray[np.float64]
NOISE = 1e-6
"""Variance of what is held, relative to an update's: rounding. It also keeps repeated rows from being singular."""
BLOCK = 1 << 17  # entries of one n × n matrix for each position of a block


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What an attacker holds of one round at P positions. The first axis is 1 where all positions are alike.

    Attributes:
        rows: (P or 1, m, n), how much of each node's number is in each of m observations; zeros where there is none.
        values: (P, m), the observations.
        transition: (P or 1, n, n), what averaging then makes of the numbers.
        loud: (P, n), who announced that a position changed much; None where sets say nothing.
        base: (P, n), the public part of each node's model, to which its number is added; None for nothing.
        rounding: how far a held number may be off, in units of the model.
        trained: whether nodes trained before this round.
    """

    rows: Reals
    values: Reals
    transition: Reals
    loud: Flags | None = None
    base: Reals | None = None
    rounding: float = 0.0
    trained: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """What an attacker takes training for. An update is b + noise of variance 1, and b goes on as keep · b + change.

    Attributes:
        change: the variance of the change of b in a round.
        quiet: the variance of an update that was not announced, relative to one that was.
    """

    name: str
    change: float
    keep: float
    quiet: float = 0.03


MOTIONS = (
    Motion(name="steps", change=0.0, keep=0.0),
    Motion(name="directions", change=0.1, keep=0.99),
)


class Filter:
    """The state of knowledge about n numbers and their directions at P positions: means, and covariances in units of an
    update's variance. Covariances of positions that are alike are kept once.
    """

    def __init__(self, start: Reals, motion: Motion) -> None:
        nodes = start.shape[1]
        self._motion, self._unit = motion, np.eye(nodes)
        self.mean, self._drift = start.copy(), np.zeros_like(start)
        self.spread = np.zeros((1, nodes, nodes))
        self._both = np.zeros((1, nodes, nodes))  # of number and direction
        rest = motion.change / (1 - motion.keep**2)
        self._way = rest * self._unit[None]
        self._surprise, self._counted = np.zeros(len(start)), np.zeros(len(start))

    def train(self, loud: Flags | None) -> None:
        """Every number moves: x += g · (b + noise), with a small g where a node did not announce a change."""
        power = np.ones((1, len(self._unit))) if loud is None else np.where(loud, 1.0, self._motion.quiet)
        gain = np.sqrt(power)
        towards = self._both * gain[:, None, :]
        self.spread = self.spread + towards + _turned(towards)
        self.spread = (
            self.spread + self._way * gain[:, :, None] * gain[:, None, :] + power[:, :, None] * self._unit
        )
        self._both = self._both + self._way * gain[:, :, None]
        self.mean = self.mean + gain * self._drift

    def observe(self, rows: Reals, values: Reals) -> None:
        """Bayes: move means and covariances along what was held."""
        seen, along = rows @ self.spread, rows @ self._both
        expected = seen @ _turned(rows)
        inverse = np.asarray(np.linalg.inv(expected + NOISE * np.eye(rows.shape[1])), dtype=np.float64)
        off = values - _times(rows, self.mean)
        self._measure(off, np.diagonal(expected, axis1=1, axis2=2))
        weighted = _times(inverse, off)
        self.mean = self.mean + _times(_turned(seen), weighted)
        self._drift = self._drift + _times(_turned(along), weighted)
        self._way = _even(self._way - _turned(along) @ inverse @ along)
        self._both = self._both - _turned(seen) @ inverse @ along
        self.spread = _even(self.spread - _turned(seen) @ inverse @ seen)

    def _measure(self, off: Reals, expected: Reals) -> None:
        """How large updates are, position by position: surprises compared with what was expected of them at unit 1."""
        telling = expected > 100 * NOISE
        self._surprise += np.where(telling, off**2 / np.where(telling, expected, 1.0), 0.0).sum(axis=1)
        self._counted += np.broadcast_to(telling, off.shape).sum(axis=1)

    @property
    def variance(self) -> Reals:
        """(P,) of an update, in units of the model, as far as it was seen."""
        return self._surprise / np.maximum(self._counted, 1)

    def advance(self, transition: Reals) -> None:
        """Everybody averages, and directions change a little."""
        self.mean = _times(transition, self.mean)
        self.spread = transition @ self.spread @ _turned(transition)
        keep = self._motion.keep
        self._both = keep * (transition @ self._both)
        self._way = keep**2 * self._way + self._motion.change * self._unit
        self._drift = keep * self._drift


def _turned(matrices: Reals) -> Reals:
    return matrices.transpose(0, 2, 1)


def _even(matrices: Reals) -> Reals:
    return (matrices + _turned(matrices)) / 2


def _times(matrices: Reals, vectors: Reals) -> Reals:
    """(P or 1, i, j) and (P, j) → (P, i)."""
    result: Reals = vectors @ matrices[0].T if len(matrices) == 1 else (matrices @ vectors[..., None])[..., 0]
    return result


def follow(rounds: Sequence[Held], start: Reals, motion: Motion) -> tuple[Reals, Reals | None]:
    """All models when training ended, (P, n): as known then, and as known after settling; None if nobody settled.

    Args:
        rounds: from the first one on; those without training come last.
        start: (P, n), everybody's numbers before the first training.
    """
    trained = [held for held in rounds if held.trained]
    state = Filter(start, motion)
    for number, held in enumerate(trained):
        if number:
            state.advance(trained[number - 1].transition)
        state.train(held.loud)
        state.observe(held.rows, held.values)
    last, rest = trained[-1], rounds[len(trained) :]
    base = 0.0 if last.base is None else last.base
    then = state.mean + base
    return then, _settle(state, last, rest) + base if rest else None


def _settle(state: Filter, last: Held, rounds: Sequence[Held]) -> Reals:
    """The numbers at the end of training by least squares: x = mean + root · z, and z has unit variance."""
    rows, values, so_far = [], [], last.transition
    for held in rounds:
        rows.append(held.rows @ so_far)
        values.append(held.values)
        so_far = held.transition @ so_far
    wide = max(map(len, (*rows, state.spread)))
    matrix = np.concatenate([np.broadcast_to(one, (wide, *one.shape[1:])) for one in rows], axis=1)
    sizes, axes = np.linalg.eigh(state.spread)
    root = axes * np.sqrt(np.maximum(sizes, 0.0))[:, None, :]
    left, strength, right = np.linalg.svd(matrix @ root, full_matrices=False)
    off = np.concatenate(values, axis=1) - _times(matrix, state.mean)
    # Rounding is known in units of the model, the covariance in units of an update: 1 there is `variance` here.
    rounding = max(held.rounding for held in rounds) ** 2 / np.maximum(state.variance, 1e-30)
    along = _times(_turned(left), off) * strength / (strength**2 + np.maximum(rounding, 1e-14)[:, None])
    return state.mean + _times(root, _times(_turned(right), along))


class Source(Protocol):
    """What the nodes of a run hold, for an attacker to follow."""

    nodes: int
    size: int

    def start(self, block: slice) -> Reals:
        """(P, n), everybody's numbers before the first training."""

    def held(self, block: slice, attackers: Sequence[int]) -> Iterator[list[Held]]:
        """Of each attacker, round by round, at the positions of a block."""

    def victims(self, attacker: int) -> list[int]:
        """Whom the attacker has in some sum."""

    def hidden_among(self, attacker: int, victim: int) -> list[int]:
        """The members of the sum that the victim is in when training ends, less the attacker."""


class Sums:
    """What neighbours send each other, in the clear or under masks, in recorded rounds; it is all kept in memory."""

    def __init__(self, scenes: Sequence[Scene], trained: int, start: NDArray[np.float32]) -> None:
        self.nodes, self.size = scenes[0].recorded.models.shape
        self._scenes, self._trained, self._start = scenes, trained, start
        self._sums = [[sums_to(scene, r) for r in range(self.nodes)] for scene in scenes]
        self._alike = all(
            (flags == flags[:, :1]).all() for table in self._sums for held in table for flags in held
        )

    def start(self, block: slice) -> Reals:
        """The model that all nodes begin with."""
        return np.repeat(self._start[block, None].astype(np.float64), self.nodes, axis=1)

    def held(self, block: slice, attackers: Sequence[int]) -> Iterator[list[Held]]:
        """Own numbers and sums, and how everybody averages."""
        kinds = slice(0, 1) if self._alike else block
        matrices = [mixing(scene, sums, kinds) for scene, sums in zip(self._scenes, self._sums, strict=True)]
        for attacker in attackers:
            yield [self._held(t, attacker, matrix, kinds, block) for t, matrix in enumerate(matrices)]

    def _held(self, t: int, attacker: int, matrix: Reals, kinds: slice, block: slice) -> Held:
        scene, sums = self._scenes[t], self._sums[t][attacker]
        models = scene.recorded.models[:, block].T.astype(np.float64)
        rows = np.zeros((len(matrix), 1 + len(sums), self.nodes))
        rows[:, 0, attacker] = 1.0
        for e, flags in enumerate(sums, start=1):
            rows[:, e, sorted(scene.recorded.graph[attacker])] = flags[:, kinds].T
        every = [rows]
        for _ in range(scene.steps - 1):
            every.append(every[-1] @ matrix)
        rows, whole = np.concatenate(every, axis=1), np.linalg.matrix_power(matrix, scene.steps)
        masked = scene.method.masked
        bits = 24 if masked is None else masked.ring_bits - 4
        return Held(
            rows=rows,
            values=_times(rows, models),
            transition=whole,
            loud=scene.recorded.selected[:, block].T if scene.method.sparsifier.ranks else None,
            rounding=float(np.abs(scene.recorded.models[attacker]).max()) * 2.0**-bits,
            trained=t < self._trained,
        )

    def victims(self, attacker: int) -> list[int]:
        """Its neighbours in the last round of training."""
        return sorted(self._scenes[self._trained - 1].recorded.graph[attacker])

    def hidden_among(self, attacker: int, victim: int) -> list[int]:
        """All neighbours, or in the clear the victim alone."""
        scene = self._scenes[self._trained - 1]
        return [victim] if scene.method.masked is None else self.victims(attacker)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellSummed:
    """A round of cells: (n, d) each.

    Attributes:
        models: after training, before sums.
        common: the models of the nodes' cells at which training began; they are no secret.
        handed: where a node's number went into the sum of its cell.
    """

    models: NDArray[np.float32]
    common: NDArray[np.float32]
    handed: Flags


class CellSums:
    """What members of cells hold: all cells' models, hence all cells' sums in all rounds, and their own numbers.

    A number is what a member has trained and not handed in. Where it is handed in it is gone afterwards.

    Args:
        inside: attack members of the own cell; else those of others.
    """

    def __init__(
        self,
        rounds: Sequence[CellSummed],
        cells: Sequence[Sequence[int]],
        trained: int,
        *,
        inside: bool,
        rounding: float = 0.0,
    ) -> None:
        self.nodes, self.size = rounds[0].models.shape
        self._rounds, self._trained, self._inside, self._rounding = rounds, trained, inside, rounding
        self._cells = [sorted(map(int, cell)) for cell in cells]
        self._alike = all((one.handed == one.handed[:, :1]).all() for one in rounds)

    def start(self, block: slice) -> Reals:
        """Nothing is trained yet."""
        return np.zeros((len(range(self.size)[block]), self.nodes))

    def held(self, block: slice, attackers: Sequence[int]) -> Iterator[list[Held]]:
        """The own number, and the sum of every cell."""
        for attacker in attackers:
            yield [self._held(t, attacker, block) for t in range(len(self._rounds))]

    def _held(self, t: int, attacker: int, block: slice) -> Held:
        one = self._rounds[t]
        models, base = one.models[:, block].T, one.common[:, block].T.astype(np.float64)
        handed = one.handed[:, slice(0, 1) if self._alike else block].T
        rows = np.zeros((len(handed), 1 + len(self._cells), self.nodes))
        rows[:, 0, attacker] = 1.0
        for number, cell in enumerate(self._cells, start=1):
            rows[:, number, cell] = handed[:, cell]
        return Held(
            rows=rows,
            values=_times(rows, models - base),
            transition=np.eye(self.nodes) * ~handed[:, None, :],
            base=base,
            rounding=self._rounding,
            trained=t < self._trained,
        )

    def victims(self, attacker: int) -> list[int]:
        """Its partners, or everybody else."""
        return [
            node
            for cell in self._cells
            if (attacker in cell) is self._inside
            for node in cell
            if node != attacker
        ]

    def hidden_among(self, attacker: int, victim: int) -> list[int]:
        """A cell, less the attacker, who knows its own number."""
        return next([node for node in cell if node != attacker] for cell in self._cells if victim in cell)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterResult:
    """What a filter finds out about a method: means over attackers, each with one victim for the areas.

    Attributes:
        hidden: how many models are in the mean that the victim is hidden in, on average.
        motion: the strongest idea of training, judged by the truth.
        error, error_settled, error_mean: ‖estimate − model‖ / ‖model‖ at the end of training, over all victims that an
            attacker has; of the filter then, of the filter after settling, and of that mean.
        auc_true, auc_mean: membership areas of the true model and of that mean, which one round gives at best.
        auc_trained, auc_settled: of the filter; their standard errors are of the lead over the mean.
        auc_sets: of the announced sets alone; NaN where nobody announces what changed.
    """

    title: str
    rounds: list[int]
    settled: int
    attackers: int
    hidden: float
    motion: str
    error: float
    error_settled: float
    error_mean: float
    auc_true: float
    auc_mean: float
    auc_trained: float
    auc_trained_error: float
    auc_settled: float
    auc_settled_error: float
    auc_sets: float


def follow_runs(
    directory: Path,
    *,
    receivers: int = 8,
    samples: int = 500,
    seed: int = 1,
    data_dir: Path | None = None,
) -> list[FilterResult]:
    """Attack every method of an experiment with a filter, from the first round to the last.

    Args:
        receivers: how many nodes, drawn at random, attack in each run.
        samples: of the membership attack, which each of them directs at one random node that it has in a sum.

    Raises:
        ConfigError: what a node holds cannot be told from the recording.
        DataError: some round was not recorded.
    """
    experiment = run.read(directory)
    for method in experiment.method:
        if method.name == CELLS and experiment.faults.crash_rate:
            raise ConfigError(
                f"{method.title}: which sums came about is not recorded; run it with crash_rate = 0"
            )
        check_recorded(experiment, method)
        if experiment.faults.crash_rate and method.gossip_steps > 1:
            raise ConfigError(
                f"{method.title}: who missed which of several gossip steps is not recorded; run it with crash_rate = 0"
            )
        if method.correlated:
            raise ConfigError(
                f"{method.title}: every neighbour hears another model, which a filter does not follow; use cesar attack membership"
            )
    runs = run.runs_of(experiment, directory)
    for one in runs:
        numbers = recording.numbers(one.folder)
        if numbers != list(range(1, len(numbers) + 1)) or len(numbers) < experiment.rounds:
            raise DataError(f"{one.folder}: a filter needs every round; run with [recording] every = 1")
    data = run.load_data(experiment, data_dir)
    results = []
    for method in experiment.method:
        trials: dict[str, list[_Trial]] = {}
        for one in (one for one in runs if one.method == method):
            for title, found in _attack_run(experiment, one, data, (receivers, samples, seed)):
                trials.setdefault(title, []).extend(found)
        results += [_result(title, experiment, found) for title, found in trials.items()]
    return results


@dataclass(frozen=True, slots=True)
class _Trial:
    """One attacker. Squared errors by motion, then and after settling; areas (motions, 2), and of truth, mean and sets."""

    errors: Reals
    mean_error: float
    norm: float
    hidden: int
    settled: int
    found: Reals
    others: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _View:
    """What attackers of one kind hold, and the truth: all models when training ended, and how often each node announced what."""

    title: str
    source: Source
    true: NDArray[np.float32]
    announced: Reals | None
    settled: int


def _views(experiment: Experiment, one: run.Run, start: NDArray[np.float32]) -> Iterator[_View]:
    rounds = [recording.read(one.folder, number) for number in recording.numbers(one.folder)]
    trained, title = experiment.rounds, one.method.title
    settled = len(rounds) - trained
    if one.method.name != CELLS:
        scenes = [scene_of(experiment, one.method, one.seed, recorded) for recorded in rounds]
        ranks = all(scene.method.sparsifier.ranks for scene in scenes[:trained])
        announced = _announced(rounds[:trained]) if ranks else None
        yield _View(title, Sums(scenes, trained, start), scenes[trained - 1].true, announced, settled)
        return
    method = one.method.cells()
    # A common model is kept as it was after a round: the next one begins at it. While settling nothing is handed in.
    common = [np.broadcast_to(start, rounds[0].models.shape), *(recorded.common for recorded in rounds)]
    summed = [
        CellSummed(models=recorded.models, common=before, handed=recorded.selected & (t < trained))
        for t, (recorded, before) in enumerate(zip(rounds, common, strict=False))
        if before is not None
    ]
    cells = method.plan(experiment.topology.nodes, seed=one.seed).cells
    largest = max(float(np.abs(recorded.models).max()) for recorded in rounds)
    for inside in (False, True) if len(cells) > 1 else (True,):
        source = CellSums(
            summed, cells, trained, inside=inside, rounding=largest * 2.0 ** (4 - method.ring_bits)
        )
        where = f"{title}, from {'inside' if inside else 'outside'}"
        announced = _announced(rounds[:trained]) if method.sparsifier.block else None
        yield _View(where, source, rounds[trained - 1].models, announced, settled)


def _announced(rounds: Sequence[recording.RecordedRound]) -> Reals:
    """(n, d): how much more often than others each node announced each position, or its cell handed it in."""
    often = np.mean([recorded.selected for recorded in rounds], axis=0)
    result: Reals = often - often.mean(axis=0)
    return result


def _attack_run(
    experiment: Experiment, one: run.Run, data: Dataset, settings: tuple[int, int, int]
) -> Iterator[tuple[str, list[_Trial]]]:
    module, parts = run.build_model(experiment, data, one.seed), recording.read_partition(one.folder)
    judge = Judge(data, module, parts, samples=settings[1], seeds=SeedTree(settings[2]))
    start = flatten(module).numpy()
    for view in _views(experiment, one, start):
        draw = SeedTree(settings[2]).generator("receivers", one.seed)
        yield view.title, list(_attack(view, judge, start, settings[0], draw))


def _attack(
    view: _View, judge: Judge, start: NDArray[np.float32], receivers: int, draw: np.random.Generator
) -> Iterator[_Trial]:
    source, true, announced = view.source, view.true, view.announced
    attackers = draw.permutation(source.nodes)[:receivers].tolist()
    targets = [int(draw.choice(source.victims(attacker))) for attacker in attackers]
    estimates, errors = _estimate(source, attackers, targets, true)
    for k, (attacker, victim) in enumerate(zip(attackers, targets, strict=True)):
        hidden = source.hidden_among(attacker, victim)
        mean = true[hidden].mean(axis=0, dtype=np.float64)
        models = np.stack([true[victim], mean, *estimates[k].reshape(-1, source.size)]).astype(np.float32)
        areas = [area.all_classes for area in judge.judge(models, victim)]
        victims = source.victims(attacker)
        means = [true[source.hidden_among(attacker, v)].mean(axis=0, dtype=np.float64) for v in victims]
        yield _Trial(
            errors=errors[k],
            mean_error=float(((np.stack(means) - true[victims]) ** 2).sum()),
            norm=float((true[victims].astype(np.float64) ** 2).sum()),
            hidden=len(hidden),
            settled=view.settled,
            found=np.array(areas[2:]).reshape(len(MOTIONS), 2),
            others=(
                areas[0],
                areas[1],
                np.nan
                if announced is None
                else judge.judge_sets(start, announced[victim], victim).all_classes,
            ),
        )


def _estimate(
    source: Source, attackers: Sequence[int], targets: Sequence[int], true: NDArray[np.float32]
) -> tuple[NDArray[np.float32], Reals]:
    """The victims' models, (attackers, motions, 2, d), then and after settling; and squared errors over all that an
    attacker could have chosen, (attackers, motions, 2). Without settling both are the same.
    """
    estimates = np.empty((len(attackers), len(MOTIONS), 2, source.size), dtype=np.float32)
    errors = np.zeros((len(attackers), len(MOTIONS), 2))
    step = max(1, BLOCK // source.nodes**2)
    for first in range(0, source.size, step):
        block = slice(first, min(first + step, source.size))
        start = source.start(block)
        for k, rounds in enumerate(source.held(block, attackers)):
            victims = source.victims(attackers[k])
            for number, motion in enumerate(MOTIONS):
                then, after = follow(rounds, start, motion)
                for late, found in enumerate((then, then if after is None else after)):
                    estimates[k, number, late, block] = found[:, targets[k]]
                    errors[k, number, late] += ((found[:, victims].T - true[victims, block]) ** 2).sum()
    return estimates, errors


def _result(title: str, experiment: Experiment, trials: Sequence[_Trial]) -> FilterResult:
    norm = sum(trial.norm for trial in trials)
    errors = np.sum([trial.errors for trial in trials], axis=0)
    best = int(np.argmin(errors.sum(axis=1)))
    found = np.stack([trial.found[best] for trial in trials])
    true, mean, sets = np.array([trial.others for trial in trials]).T
    settled = trials[0].settled
    (trained, after), (then, late) = found.T, np.sqrt(errors[best] / norm)
    return FilterResult(
        title=title,
        rounds=list(range(1, experiment.rounds + 1)),
        settled=settled,
        attackers=len(trials),
        hidden=float(np.mean([trial.hidden for trial in trials])),
        motion=MOTIONS[best].name,
        error=float(then),
        error_settled=float(late) if settled else np.nan,
        error_mean=float(np.sqrt(sum(trial.mean_error for trial in trials) / norm)),
        auc_true=float(true.mean()),
        auc_mean=float(mean.mean()),
        auc_trained=float(trained.mean()),
        auc_trained_error=mean_and_error(trained - mean)[1],
        auc_settled=float(after.mean()) if settled else np.nan,
        auc_settled_error=mean_and_error(after - mean)[1] if settled else np.nan,
        auc_sets=float(sets.mean()),
    )
