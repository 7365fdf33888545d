"""What a node sends per round at the paper's own sizes: real frames, on models that were really trained.

Byte counts need little training. One model trains alone for a while, then all nodes go on from it, averaging with D-PSGD that
shares everything; at some rounds every case averages these very models once, and each frame is counted. TopK ranks
what the local steps of that round changed, so its selections are those of real training. They depend on how far a
model has come: at first nodes select the same, in clusters, later hardly so. Most of 12,000 rounds are late, hence the
training alone. The cases of a table share the training.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, fields, replace
from pathlib import Path

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar import files, graphs
from cesar.learn import datasets, models, partition
from cesar.learn.flat import flatten
from cesar.learn.training import Cohort, Sgd
from cesar.methods import DPSGD
from cesar.reproduce.counts import FILE, Case, Count, Counting, read
from cesar.seeds import SeedTree
from cesar.settings import MethodSection, check
from cesar.sim import Ensemble
from cesar.topology import neighbourhoods
from cesar.wire import CATEGORIES

STRETCH = 100
"""Steps of the model alone between two signs of life."""


def count(
    counting: Counting,
    seeds: Sequence[int],
    out: Path,
    *,
    data_dir: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Count]:
    """Train, count, and write `bytes.csv`; a directory that has it already is read instead.

    The model that trained alone is kept beside the directory, for the next figure to start from.
    """
    if (out / FILE).exists():
        return read(out)
    out.mkdir(parents=True, exist_ok=True)
    with (
        files.replacing(out / FILE) as draft,
        draft.open("w", newline="", encoding="utf-8", buffering=1) as file,
    ):
        writer = csv.DictWriter(file, [field.name for field in fields(Count)])
        writer.writeheader()
        for seed in seeds:
            start = out.parent / f"alone-{counting.dataset}-{counting.model}-{counting.alone}-seed-{seed}.npy"
            for round_, before, after in _train(counting, seed, start, data_dir, progress):
                for case in counting.cases:
                    progress(f"seed {seed}, round {round_}: {case.label}")
                    counts = _count_case(case, seed, round_, before[: case.nodes], after[: case.nodes])
                    writer.writerows(asdict(row) for row in counts)
    return read(out)


def _train(
    counting: Counting, seed: int, start: Path, data_dir: Path | None, progress: Callable[[str], None]
) -> Iterator[tuple[int, NDArray[np.float32], NDArray[np.float32]]]:
    """(round, models before, models after local training) for every round that is to be counted."""
    seeds, training = SeedTree(seed), counting.training
    sgd = Sgd(
        learning_rate=training["learning_rate"],
        batch_size=training["batch_size"],
        steps=training["steps_per_round"],
    )
    data = datasets.load(counting.dataset, data_dir)
    module = models.build(counting.model, data, seed=int.from_bytes(seeds.bytes(7, "init"), "little"))
    parts = partition.iid(len(data.train), counting.parts, seeds.generator("partition"))[: counting.nodes]
    first = flatten(module).numpy()[None].copy()
    rows = np.arange(len(data.train))
    graph = graphs.regular(counting.nodes, counting.degree, seeds.generator("graph"))
    full = Ensemble(graph, DPSGD(), first.shape[1], seed=seed)
    with ThreadPoolExecutor() as pool:
        if start.exists():
            first = np.load(start, allow_pickle=False)
        else:
            whole = replace(sgd, steps=STRETCH)
            alone = Cohort(data, module, [rows], whole, seeds=seeds, pool=pool)
            for k in range(counting.alone // STRETCH):
                progress(f"seed {seed}: one model alone, step {k * STRETCH:,} of {counting.alone:,}")
                alone.train(first, k)
            with files.replacing(start) as draft, draft.open("wb") as file:
                np.save(file, first)
        trained = np.tile(first[0], (counting.nodes, 1))
        cohort = Cohort(data, module, parts, sgd, seeds=seeds, pool=pool)
        for round_ in range(1, counting.counted[-1] + 1):
            progress(f"seed {seed}: training round {round_} of {counting.counted[-1]}")
            before = trained.copy()
            cohort.train(trained, round_ - 1)
            if round_ in counting.counted:
                yield round_, before, trained
            trained = full.round(trained).vectors
    full.close()


def _count_case(
    case: Case, seed: int, round_: int, before: NDArray[np.float32], after: NDArray[np.float32]
) -> Iterator[Count]:
    """CESAR, then D-PSGD with the share that CESAR had."""
    graph = graphs.regular(
        case.nodes, case.degree, SeedTree(seed).generator("graph", case.nodes, case.degree)
    )
    section = check(MethodSection, case.cesar)
    ours = _count_method(case, section, graph, seed, round_, before, after, None)
    yield ours
    baseline = MethodSection(name="dpsgd", sparsifier=section.sparsifier, paper=section.paper)
    yield _count_method(case, baseline, graph, seed, round_, before, after, ours.shared)


def _count_method(
    case: Case,
    section: MethodSection,
    graph: nx.Graph,
    seed: int,
    round_: int,
    before: NDArray[np.float32],
    after: NDArray[np.float32],
    measured: float | None,
) -> Count:
    size = after.shape[1]
    ensemble = Ensemble(graph, section.build(case.degree, measured, size=size), size, seed=seed)
    result = ensemble.round(after, reference=before)
    ensemble.close()
    return Count(
        label=case.label,
        paper=section.paper,
        method=section.name,
        nodes=case.nodes,
        degree=case.degree,
        view2=float(np.mean([len(hood.view2) for hood in neighbourhoods(graph).values()])),
        seed=seed,
        round_=round_,
        shared=result.shared,
        **{name: float(result.bytes[name].mean()) for name in CATEGORIES},
    )
