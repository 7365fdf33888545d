"""Byte counts at the paper's own sizes: what is to be counted, what was, and sums over it."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cesar.errors import DataError
from cesar.reproduce.pairs import NONE, Pair, Series
from cesar.reproduce.tables import PAPER, SMOKE, Scale, Tables
from cesar.wire import CATEGORIES

FILE = "bytes.csv"
ALONE = 6000
"""SGD steps of one model before bytes are counted: nearly a pass over CIFAR-10."""
ROUNDS: int = PAPER["cifar10"]["rounds"]
"""Gigabytes are those of a node in all rounds of the paper."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One line to count: so many nodes of that degree, CESAR by its section, and D-PSGD at the measured share.

    Attributes:
        label: what the line is called; cases with the same label are compared.
        cesar: its section as an experiment's file has it.
    """

    label: str
    nodes: int
    degree: int
    cesar: Tables


@dataclass(frozen=True, slots=True, kw_only=True)
class Counting:
    """Which training to count on.

    Attributes:
        training: learning rate, batch and steps as an experiment's file has them.
        alone: SGD steps of the model from which all nodes start, on the whole training set.
        parts: the training set is cut into that many equal parts, of which each node has one.
        counted: the rounds that are counted, numbered from 1 after the training alone.
    """

    dataset: str
    model: str
    training: Tables
    alone: int
    parts: int
    nodes: int
    degree: int
    counted: tuple[int, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """What a node sent in one round, mean over nodes."""

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


def both(label: str, nodes: int, degree: int, **more: object) -> list[Case]:
    """The case in the paper's exchange and in ours."""
    return [
        Case(label=label, nodes=nodes, degree=degree, cesar={"name": "cesar", "paper": paper, **more})
        for paper in (True, False)
    ]


def on_cifar10(scale: Scale, parts: int, counted: tuple[int, ...], cases: list[Case]) -> Counting:
    """Count on CIFAR-10 at the paper's sizes; on digits, and on few nodes, if it is to be quick."""
    largest = max(case.nodes for case in cases)
    if scale is Scale.SMOKE:
        return Counting(
            dataset="digits",
            model="digits-mlp",
            training=SMOKE["training"],
            alone=100,
            parts=largest,
            nodes=largest,
            degree=4,
            counted=(1, 2),
            cases=tuple(cases),
        )
    return Counting(
        dataset="cifar10",
        model="lenet",
        training=PAPER["cifar10"]["training"],
        alone=ALONE,
        parts=parts,
        nodes=largest,
        degree=6,
        counted=counted,
        cases=tuple(cases),
    )


def read(out: Path) -> list[Count]:
    """The counts of a directory."""
    try:
        with (out / FILE).open(newline="", encoding="utf-8") as file:
            return [_parse(row) for row in csv.DictReader(file)]
    except (OSError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{out / FILE} cannot be read: {error}; remove it and count again") from None


def _parse(row: dict[str, str]) -> Count:
    numbers = ("view2", "shared", *CATEGORIES)
    return Count(
        label=row["label"],
        method=row["method"],
        paper=row["paper"] == "True",
        nodes=int(row["nodes"]),
        degree=int(row["degree"]),
        seed=int(row["seed"]),
        round_=int(row["round_"]),
        **{name: float(row[name]) for name in numbers},
    )


def gigabytes(counts: list[Count], label: str, method: str, *, printed: bool, part: str = "bytes") -> float:
    """Mean over rounds and seeds of what a node sends, in GB for all rounds of the paper."""
    rows = [row for row in counts if (row.label, row.method, row.paper) == (label, method, printed)]
    return statistics.mean(float(getattr(row, part)) for row in rows) * ROUNDS / 1e9


def mean(counts: list[Count], label: str, what: str) -> float:
    """Of a field over CESAR's rows of a label."""
    return statistics.mean(
        float(getattr(r, what)) for r in counts if r.label == label and r.method == "cesar"
    )


def labels(counts: list[Count]) -> list[str]:
    """In the order of the file."""
    return list(dict.fromkeys(row.label for row in counts))


def coordination(counts: list[Count], label: str, *, printed: bool) -> float:
    """GB of CESAR's coordination."""
    return gigabytes(counts, label, "cesar", printed=printed, part="coordination")


def coordination_series(counts: list[Count], x: list[float]) -> Iterator[Series]:
    """Both exchanges, measured."""
    for name, printed in (("CESAR, paper's exchange", True), ("CESAR, ours", False)):
        yield Series(name=name, x=x, y=[coordination(counts, n, printed=printed) for n in labels(counts)])


def per_neighbour(counts: list[Count], *, printed: bool) -> list[float]:
    """For each label the bytes of CESAR's coordination per node of View2."""
    found: dict[str, list[float]] = {}
    for row in counts:
        if row.method == "cesar" and row.paper == printed:
            found.setdefault(row.label, []).append(row.coordination / row.view2)
    return [sum(each) / len(each) for each in found.values()]


def sent_pair(counts: list[Count], *, title: str) -> Pair:
    """What a node sends, a line for each label; nothing where an exchange was not counted."""
    names = labels(counts)
    columns = {
        "CESAR, paper's exchange": ("cesar", True),
        "CESAR, ours": ("cesar", False),
        "D-PSGD at that share": ("dpsgd", False),
    }

    def sent(label: str, method: str, *, printed: bool) -> float:
        known = any((row.label, row.method, row.paper) == (label, method, printed) for row in counts)
        return gigabytes(counts, label, method, printed=printed) if known else math.nan

    values = {
        name: [sent(label, method, printed=printed) for label in names]
        for name, (method, printed) in columns.items()
    }
    return Pair(
        title=title,
        caption="GB are bytes of a node per round × all rounds of the paper.",
        axes=("case", "GB per node"),
        series=[Series(name=name, x=names, y=y, line=False) for name, y in values.items()],
        heads=("case", "% shared", *(f"{name}, GB" for name in columns)),
        rows=[
            (
                label,
                f"{100 * mean(counts, label, 'shared'):.2f}",
                *(NONE if math.isnan(y[k]) else f"{y[k]:.2f}" for y in values.values()),
            )
            for k, label in enumerate(names)
        ],
    )


def farthest(values: list[float]) -> float:
    """How far the farthest value is from the mean, as a part of it."""
    middle = sum(values) / len(values)
    return max(abs(value / middle - 1) for value in values)
