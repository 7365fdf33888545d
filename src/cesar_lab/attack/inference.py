"""Membership inference by a threshold on the loss (Yeom et al., 2018), on one model and on partial sums.

Paper: Section IV-B6, Fig. 7. Every node attacks a random neighbour, the victim: first the victim's model as it
was received, then its mean with the models of one, two, … further neighbours of the attacker, in random
order. Members are the victim's training samples, non-members samples of the test set. A value that a
neighbour did not send counts as the attacker's own, as it does in the attacker's own average. In cells every node is a victim, and the last model is that of its cell, which is public.

The area under the ROC curve needs no threshold: it is the probability that a member has a lower loss than a
non-member. With a non-IID partition a model gives away its classes first. So the area is also measured
against test samples of the victim's own classes alone, where only what was memorised counts.
"""

from __future__ import annotations

import copy
import math
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cesar.base.errors import DataError
from cesar.base.seeds import SeedTree
from cesar.graph.cells import CELLS
from cesar.peer.api.flat import Layout, bind
from cesar_lab.attack.view import Scene, as_sent, scene_of, sent_to
from cesar_lab.data.datasets import require
from cesar_lab.data.samples import Dataset, Samples, Task
from cesar_lab.learn.tasks import loss, sample_losses
from cesar_lab.run import execute as run
from cesar_lab.run import recording
from cesar_lab.run.config import MethodTable

Losses = NDArray[np.float32]


def auc(members: Losses, others: Losses) -> float:
    """Area under the ROC curve of "a low loss means a member"; NaN if one side is empty.

    >>> auc(np.float32([0.1, 0.3]), np.float32([0.2, 0.4]))
    0.75
    """
    if not len(members) or not len(others):
        return math.nan
    scores = -np.concatenate([members, others])
    truth = np.repeat([1, 0], [len(members), len(others)])
    return float(require("sklearn.metrics", "lab").roc_auc_score(truth, scores))


@dataclass(frozen=True, slots=True)
class Areas:
    """Two areas: against all test samples, and against those of the victim's classes alone."""

    all_classes: float
    own_classes: float


class Judge:
    """Runs the threshold attack on models of one architecture.

    Args:
        parts: for each node the rows of the training set that are its own.
        samples: take at most that many members, and as many test samples, per attack.
        seeds: of the choice of samples.
    """

    def __init__(
        self,
        data: Dataset,
        module: nn.Module,
        parts: Sequence[NDArray[np.int64]],
        *,
        samples: int,
        seeds: SeedTree,
    ) -> None:
        self._data, self._module, self._parts = data, module, parts
        self._samples, self._seeds = samples, seeds
        self._layout, self._local = Layout.of(module), threading.local()

    def judge(self, models: NDArray[np.float32], victim: int) -> list[Areas]:
        """Attack the victim's data with each of these models."""
        members = self._data.train.take(self._draw("members", victim, self._parts[victim]))
        others = self._data.test.take(self._draw("others", victim, np.arange(len(self._data.test))))
        alike = self._alike(victim, others)
        areas = []
        for model in models:
            inside, outside = self._losses(model, members), self._losses(model, others)
            areas.append(Areas(auc(inside, outside), auc(inside, outside[alike])))
        return areas

    def judge_sets(self, model: NDArray[np.float32], often: NDArray[np.float64], victim: int) -> Areas:
        """Attack the victim's data with nothing but how often it announced each position, (d,): a sample on which it was trained
        has a large gradient there. The gradients are those at any model that the attacker has.
        """
        members = self._data.train.take(self._draw("members", victim, self._parts[victim]))
        others = self._data.test.take(self._draw("others", victim, np.arange(len(self._data.test))))
        inside, outside = (-self._overlaps(model, often, samples) for samples in (members, others))
        return Areas(auc(inside, outside), auc(inside, outside[self._alike(victim, others)]))

    def _overlaps(self, model: NDArray[np.float32], often: NDArray[np.float64], samples: Samples) -> Losses:
        """The cosine between the magnitudes of each sample's gradient and these frequencies."""
        module, wanted = copy.deepcopy(self._module).eval(), torch.from_numpy(often.astype(np.float32))
        bind(module, self._layout, torch.from_numpy(model.copy()))
        parameters, found = tuple(module.parameters()), []
        for row in range(len(samples)):
            batch = tuple(field[row : row + 1] for field in samples.fields)
            gradients = torch.autograd.grad(
                loss(self._data.task, module, batch), parameters, allow_unused=True
            )
            flat = torch.cat(
                [
                    torch.zeros(whole.numel()) if part is None else part.reshape(-1).abs()
                    for part, whole in zip(gradients, parameters, strict=True)
                ]
            )
            found.append(float(flat @ wanted) / max(float(flat.norm()), 1e-30))
        return np.array(found, dtype=np.float32)

    def _draw(self, name: str, victim: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        return self._seeds.generator(name, victim).permutation(rows)[: self._samples]

    def _alike(self, victim: int, others: Samples) -> NDArray[np.bool_]:
        """Which of the test samples have a label that the victim trains on; none where there are no labels."""
        if self._data.labels is None or self._data.task is not Task.CLASSIFICATION:
            return np.zeros(len(others), dtype=np.bool_)
        return np.isin(others.fields[1].numpy(), self._data.labels[self._parts[victim]])

    def _losses(self, model: NDArray[np.float32], samples: Samples) -> Losses:
        if not hasattr(self._local, "module"):
            torch.set_num_threads(1)
            self._local.module = copy.deepcopy(self._module).eval()
        bind(self._local.module, self._layout, torch.from_numpy(model))
        losses: Losses = sample_losses(self._data, self._local.module, samples).numpy()
        return losses


def received(scene: Scene, attacker: int) -> tuple[list[int], NDArray[np.float32]]:
    """The attacker's neighbours and their models as it can piece them together: (neighbours, d)."""
    neighbours, sent = sent_to(scene, attacker)
    return neighbours, np.where(sent, as_sent(scene, attacker), scene.recorded.models[attacker])


def partial_means(models: NDArray[np.float32]) -> NDArray[np.float32]:
    """Row m: the mean of the first m + 1 models."""
    counts = np.arange(1, len(models) + 1)[:, None]
    return (np.cumsum(models, axis=0, dtype=np.float64) / counts).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSum:
    """What an attack on a mean of models reaches: means over victims with standard errors."""

    models: int
    auc: float
    auc_error: float
    own_classes: float
    own_classes_error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceResult:
    """One method: `rounds` are the recorded ones that were attacked, `sums` go from the victim alone on."""

    title: str
    rounds: list[int]
    victims: int
    sums: list[PartialSum]


def infer_membership(
    directory: Path,
    *,
    rounds: Sequence[int] = (),
    samples: int = 500,
    seed: int = 1,
    data_dir: Path | None = None,
) -> list[InferenceResult]:
    """Attack every method of an experiment.

    Args:
        rounds: recorded rounds to attack; by default all of them.
        samples: at most that many members, and as many non-members, per attack.

    Raises:
        DataError: nothing was recorded, or not these rounds.
    """
    experiment = run.read(directory)
    runs = run.runs_of(experiment, directory)
    wanted = {one.folder: _wanted(one.folder, rounds) for one in runs}
    data = run.load_data(experiment, data_dir)
    results = []
    for method in experiment.method:
        rows: list[NDArray[np.float64]] = []
        for one in (one for one in runs if one.method == method):
            judge = Judge(
                data,
                run.build_model(experiment, data, one.seed),
                recording.read_partition(one.folder),
                samples=samples,
                seeds=SeedTree(seed),
            )
            recorded = (recording.read(one.folder, number) for number in wanted[one.folder])
            if method.name == CELLS:
                cells = method.cells().plan(experiment.topology.nodes, seed=one.seed).cells
                areas = [_attack_cells(found, cells, judge, seed) for found in recorded]
            else:
                areas = [
                    _attack(scene_of(experiment, method, one.seed, found), judge, seed) for found in recorded
                ]
            rows.extend(np.ma.masked_invalid(np.stack(areas)).mean(axis=0).filled(np.nan))
        results.append(_result(method, wanted[runs[0].folder], np.stack(rows)))
    return results


def _wanted(folder: Path, rounds: Sequence[int]) -> list[int]:
    kept = recording.numbers(folder)
    missing = sorted(set(rounds) - set(kept))
    if missing:
        raise DataError(
            f"{folder}: round {missing[0]} was not recorded; there are {', '.join(map(str, kept))}"
        )
    return sorted(set(rounds)) or kept


def _attack(scene: Scene, judge: Judge, seed: int) -> NDArray[np.float64]:
    """(nodes, nodes − 1, 2): the areas that each node reaches, NaN beyond its neighbours.

    Who attacks whom is the same in every round and method, so that these can be compared.
    """
    nodes = len(scene.recorded.models)
    areas = np.full((nodes, nodes - 1, 2), np.nan)

    def one(attacker: int) -> None:
        neighbours, models = received(scene, attacker)
        order = SeedTree(seed).generator("order", attacker).permutation(len(neighbours))
        found = judge.judge(partial_means(models[order]), neighbours[order[0]])
        areas[attacker, : len(found)] = [(area.all_classes, area.own_classes) for area in found]

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(one, range(nodes)))
    return areas


def _attack_cells(
    recorded: recording.RecordedRound, cells: Sequence[Sequence[int]], judge: Judge, seed: int
) -> NDArray[np.float64]:
    """(nodes, nodes, 2): every node is a victim. The last area is that of its cell's model after the round, with its noise, as everybody sees it;
    those before are of means with other members' models, which nobody sees.
    """
    nodes = len(recorded.models)
    areas = np.full((nodes, nodes, 2), np.nan)
    assert recorded.common is not None
    for cell in cells:
        for victim in cell:
            order = SeedTree(seed).generator("order", victim).permutation([n for n in cell if n != victim])
            models = partial_means(recorded.models[[victim, *order]])
            models[-1] = recorded.common[victim]
            found = judge.judge(models, victim)
            areas[victim, : len(found)] = [(area.all_classes, area.own_classes) for area in found]
    return areas


def _result(method: MethodTable, rounds: list[int], areas: NDArray[np.float64]) -> InferenceResult:
    most = int((~np.isnan(areas[..., 0])).sum(axis=1).max())
    means = [[mean_and_error(areas[:, m, kind]) for kind in (0, 1)] for m in range(most)]
    sums = [
        PartialSum(models=m + 1, auc=a, auc_error=a_error, own_classes=b, own_classes_error=b_error)
        for m, ((a, a_error), (b, b_error)) in enumerate(means)
    ]
    return InferenceResult(title=method.title, rounds=rounds, victims=len(areas), sums=sums)


def mean_and_error(values: NDArray[np.float64]) -> tuple[float, float]:
    """Mean and standard error of what is there; NaN where there is too little."""
    known = values[~np.isnan(values)]
    if not len(known):
        return math.nan, math.nan
    error = float(np.std(known, ddof=1) / math.sqrt(len(known))) if len(known) > 1 else math.nan
    return float(known.mean()), error
