"""What is counted: bytes per node and round at the paper's own sizes, in real frames, on models that were really trained.

Byte counts need little training. One model trains alone for a while, then all nodes go on from it, averaging with D-PSGD that
shares everything; at some rounds every case averages these very models once, and each frame is counted. TopK ranks
what the local steps of that round changed, so its selections are those of real training. They depend on how far a
model has come: at first nodes select the same, in clusters, later hardly so. Most of 12,000 rounds are late, hence the
training alone. The cases of a table share the training.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from cesar.base import files
from cesar.base.errors import DataError
from cesar.base.seeds import SeedTree
from cesar.graph import named as graphs
from cesar.graph.neighbourhood import neighbourhoods
from cesar.methods import DPSGD
from cesar.protocol.wire import CATEGORIES
from cesar.sim import Ensemble
from cesar_lab.paper.catalogue import Exhibit, Scale, Tables, dataset_tables, scales

FILE = "bytes.csv"
ALONE = 6000
"""SGD steps of one model before bytes are counted: nearly a pass over CIFAR-10."""
STRETCH = 100
"""Steps of the model alone between two signs of life."""

Models = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a node sent in one round of a case, mean over nodes: with CESAR, or with D-PSGD at the share that CESAR had."""

    label: str
    paper: bool
    method: str
    nodes: int
    degree: int
    view2: float
    seed: int
    round_: int
    shared: float
    coordination: float
    values: float
    metadata: float
    control: float

    @property
    def bytes(self) -> float:
        """All of it."""
        return self.coordination + self.values + self.metadata + self.control


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Which training to count on: the paper's on CIFAR-10, or for seconds digits.

    Attributes:
        alone: SGD steps of the model from which all nodes start, on the whole training set.
        parts: the training set is cut into that many equal parts, of which each node has one.
        counted: the rounds that are counted, numbered from 1 after the training alone.
        cases: label, nodes, degree and CESAR's section each.
    """

    dataset: str
    model: str
    training: Tables
    alone: int
    parts: int
    nodes: int
    degree: int
    counted: tuple[int, ...]
    cases: list[Tables]

    @classmethod
    def of(cls, exhibit: Exhibit, scale: Scale) -> Counting | None:
        """What an exhibit counts, if it counts anything."""
        if exhibit.count is None:
            return None
        smoke, cases = scale is Scale.SMOKE, exhibit.cases(scale)
        tables = dataset_tables("cifar10", Scale.SMOKE if smoke else Scale.PAPER)
        nodes = max(case["nodes"] for case in cases)
        return cls(
            dataset=tables["data"]["dataset"],
            model=tables["model"]["name"],
            training=tables["training"],
            alone=100 if smoke else ALONE,
            parts=nodes if smoke else exhibit.count["parts"],
            nodes=nodes,
            degree=4 if smoke else 6,
            counted=(1, 2) if smoke else tuple(exhibit.count["rounds"]),
            cases=cases,
        )

    def about(self, counts: Sequence[Count]) -> str:
        """What was done, in words."""
        rounds, seeds = (
            ", ".join(map(str, sorted({getattr(row, name) for row in counts}))) for name in ("round_", "seed")
        )
        return (
            f"Bytes were counted on {self.dataset} with {self.model}: after {self.alone:,} SGD steps of one model alone all nodes "
            f"went on from it; counted in rounds {rounds} (seeds: {seeds}), {self.training['steps_per_round']} steps of batch "
            f"{self.training['batch_size']} at learning rate {self.training['learning_rate']:g} each. GB are bytes of a node per "
            f"round × {all_rounds():,} rounds."
        )


def all_rounds() -> int:
    """Gigabytes are those of a node in all rounds of the paper."""
    return int(scales()["paper"]["cifar10"]["rounds"])


# ── counting ────────────────────────────────────────────────────────────────────────────────────────────


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
                    progress(f"seed {seed}, round {round_}: {case['label']}")
                    nodes = case["nodes"]
                    for row in _count_case(case, seed, round_, before[:nodes], after[:nodes]):
                        writer.writerow(asdict(row))
    return read(out)


def _train(
    counting: Counting, seed: int, start: Path, data_dir: Path | None, progress: Callable[[str], None]
) -> Iterator[tuple[int, Models, Models]]:
    """(round, models before, models after local training) for every round that is to be counted."""
    from cesar.peer.api.flat import flatten  # noqa: PLC0415  (torch takes seconds to import)
    from cesar_lab.data import datasets, partition  # noqa: PLC0415
    from cesar_lab.learn import models  # noqa: PLC0415
    from cesar_lab.learn.training import Cohort, Sgd  # noqa: PLC0415

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
    graph = graphs.regular(counting.nodes, counting.degree, seeds.generator("graph"))
    full = Ensemble(graph, DPSGD(), first.shape[1], seed=seed)
    with ThreadPoolExecutor() as pool:
        if start.exists():
            first = np.load(start, allow_pickle=False)
        else:
            whole, rows = replace(sgd, steps=STRETCH), np.arange(len(data.train))
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


def _count_case(case: Tables, seed: int, round_: int, before: Models, after: Models) -> Iterator[Count]:
    """CESAR in the paper's exchange and in ours, each followed by D-PSGD with the share that CESAR had."""
    nodes, degree = case["nodes"], case["degree"]
    graph = graphs.regular(nodes, degree, SeedTree(seed).generator("graph", nodes, degree))
    for paper in (True, False) if case.get("ours", True) else (True,):
        ours = {"name": "cesar", "paper": paper, **case["cesar"]}
        found = _count_method(case, ours, graph, seed, round_, before, after, None)
        yield found
        plain = {"name": "dpsgd", "paper": paper, "sparsifier": ours["sparsifier"]}
        yield _count_method(case, plain, graph, seed, round_, before, after, found.shared)


def _count_method(
    case: Tables,
    method: Tables,
    graph: nx.Graph,
    seed: int,
    round_: int,
    before: Models,
    after: Models,
    measured: float | None,
) -> Count:
    from cesar.methods.settings import MethodSection, check  # noqa: PLC0415

    section, size = check(MethodSection, method), after.shape[1]
    ensemble = Ensemble(graph, section.build(case["degree"], measured, size=size), size, seed=seed)
    result = ensemble.round(after, reference=before)
    ensemble.close()
    return Count(
        label=case["label"],
        paper=section.paper,
        method=section.name,
        nodes=case["nodes"],
        degree=case["degree"],
        view2=float(np.mean([len(hood.view2) for hood in neighbourhoods(graph).values()])),
        seed=seed,
        round_=round_,
        shared=result.shared,
        **{name: float(result.bytes[name].mean()) for name in CATEGORIES},
    )


# ── what was counted ────────────────────────────────────────────────────────────────────────────────────


def read(out: Path) -> list[Count]:
    """The counts of a directory."""
    kinds: dict[object, Callable[[str], Any]]
    kinds = {"str": str, "int": int, "float": float, "bool": "True".__eq__}
    try:
        with (out / FILE).open(newline="", encoding="utf-8") as file:
            return [
                Count(**{one.name: kinds[one.type](row[one.name]) for one in fields(Count)})
                for row in csv.DictReader(file)
            ]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{out / FILE} cannot be read: {error}; remove it and count again") from None


def labels(counts: Sequence[Count]) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(row.label for row in counts))


def mean(counts: Sequence[Count], label: str, what: str, method: str = "cesar", *, paper: bool) -> float:
    """Over rounds and seeds; NaN if it was not counted."""
    rows = [row for row in counts if (row.label, row.method, row.paper) == (label, method, paper)]
    return statistics.mean(float(getattr(row, what)) for row in rows) if rows else float("nan")


def gigabytes(
    counts: Sequence[Count], label: str, method: str = "cesar", *, paper: bool, what: str = "bytes"
) -> float:
    """What a node sends in all rounds of the paper; NaN if it was not counted."""
    return mean(counts, label, what, method, paper=paper) * all_rounds() / 1e9


def per_neighbour(counts: Sequence[Count], *, paper: bool) -> list[float]:
    """For each label the bytes of CESAR's coordination per node of View2."""
    return [
        mean(counts, label, "coordination", paper=paper) / mean(counts, label, "view2", paper=paper)
        for label in labels(counts)
    ]
