"""How fast the cohort trains, beside a bare PyTorch loop over the same nodes and batches on the same cores."""

from __future__ import annotations

import copy
import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from cesar.base.seeds import SeedTree
from cesar.peer.api.flat import flatten
from cesar_lab.data.samples import Dataset
from cesar_lab.learn import tasks
from cesar_lab.learn.training import Batches, Cohort, Sgd


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBenchmark:
    """What `cesar bench training` measured: SGD steps per second over all nodes.

    Attributes:
        ratio: cohort to bare loop; 1 means that nothing is lost.
    """

    cohort_steps_per_second: float
    bare_steps_per_second: float
    ratio: float


def bench_training(
    data: Dataset,
    module: nn.Module,
    parts: list[NDArray[np.int64]],
    sgd: Sgd,
    *,
    rounds: int,
    seed: int = 0,
    progress: Callable[[str], None] = lambda _: None,
) -> TrainingBenchmark:
    """Time rounds of local training in turn with a bare loop."""
    workers, seeds = os.cpu_count() or 1, SeedTree(seed)
    with ThreadPoolExecutor(workers) as pool:
        cohort = Cohort(data, module, parts, sgd, seeds=seeds, pool=pool)
        models = np.tile(flatten(module).numpy(), (len(parts), 1))
        times: dict[str, list[float]] = {"cohort": [], "bare": []}
        jobs: dict[str, Callable[[int], None]] = {
            "cohort": partial(cohort.train, models),
            "bare": bare_rounds(data, module, parts, sgd, seeds=seeds, pool=pool),
        }
        for number in range(rounds + 1):
            progress(f"round {number} of {rounds}")
            for name, job in jobs.items():
                begin = time.perf_counter()
                job(number)
                if number > 0:  # the first round warms up
                    times[name].append(time.perf_counter() - begin)
    steps = len(parts) * sgd.steps
    rates = {name: steps / statistics.median(taken) for name, taken in times.items()}
    return TrainingBenchmark(
        cohort_steps_per_second=rates["cohort"],
        bare_steps_per_second=rates["bare"],
        ratio=rates["cohort"] / rates["bare"],
    )


def bare_rounds(
    data: Dataset,
    module: nn.Module,
    parts: list[NDArray[np.int64]],
    sgd: Sgd,
    *,
    seeds: SeedTree,
    pool: Executor,
) -> Callable[[int], None]:
    """Number of a round → local training as people write it in PyTorch, with a module and an optimiser per node."""
    modules = [copy.deepcopy(module) for _ in parts]
    batches = [Batches(rows, sgd.batch_size, seeds, node) for node, rows in enumerate(parts)]

    def train(number: int, node: int) -> None:
        torch.set_num_threads(1)
        optimiser = torch.optim.SGD(modules[node].parameters(), lr=sgd.learning_rate)
        for step in range(number * sgd.steps, (number + 1) * sgd.steps):
            optimiser.zero_grad()
            batch = data.train.take(batches[node].at(step)).fields
            tasks.loss(data.task, modules[node], batch).backward()  # type: ignore[no-untyped-call]
            optimiser.step()

    return lambda number: list(pool.map(partial(train, number), range(len(parts)))).clear()
