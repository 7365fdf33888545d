"""The files of one run while it goes on: tables and a checkpoint, from which it can be taken up again."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, safe_open, save_file  # type: ignore[attr-defined]

from cesar.base import files
from cesar.base.errors import DataError
from cesar.protocol.wire import CATEGORIES
from cesar_lab.run.config import Experiment
from cesar_lab.run.host import State
from cesar_lab.run.simulation import RoundRecord

Row = dict[str, float | int]

CHECKPOINT = "checkpoint.safetensors"


def parameters_of(folder: Path) -> int:
    """How many parameters the models of a run have, from its checkpoint.

    Raises:
        DataError: there is none yet.
    """
    checkpoint = folder / CHECKPOINT
    if not checkpoint.exists():
        raise DataError(f"{folder} holds no checkpoint yet; the first comes with the first test step")
    with safe_open(checkpoint, framework="numpy") as file:
        return int(file.get_slice("models").get_shape()[1])


class Journal:
    """The files of one run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._metrics: list[Row] = []
        self._ledger: list[Row] = []
        self._timing: list[Row] = []
        self.state: State | None = None
        self.next_round = 0

    @classmethod
    def open(cls, folder: Path) -> Journal:
        """A new run, or one to go on with: what came after its last checkpoint is forgotten."""
        journal = cls(folder)
        checkpoint = folder / CHECKPOINT
        if checkpoint.exists():
            with safe_open(checkpoint, framework="numpy") as file:
                journal.next_round = int(file.metadata()["next_round"])
            held = load_file(checkpoint)
            journal.state = State(held["models"], held.get("memory"), _cells_of(held))
            journal._metrics = _rows(folder / "metrics.csv", journal.next_round + 1)
            journal._ledger = _rows(folder / "ledger.csv", journal.next_round)
            journal._timing = _rows(folder / "timing.csv", journal.next_round)
        return journal

    @property
    def sent_in_all(self) -> float:
        """Bytes that a node has sent so far, on average."""
        return sum(row[category] for row in self._ledger for category in CATEGORIES)

    def add(self, record: RoundRecord) -> None:
        """Take down a round."""
        self._ledger.append(
            {"round": record.round_, **record.sent, "shared": record.shared, "crashed": record.crashed}
        )
        self._timing.append({"round": record.round_, **record.seconds, "evaluation": 0.0})

    def test(self, rounds: int, metrics: dict[str, float], seconds: float) -> Row:
        """Take down a test step."""
        sent = {f"bytes_{c}": sum(row[c] for row in self._ledger) for c in CATEGORIES}
        row: Row = {"round": rounds, **metrics, **sent, "bytes": sum(sent.values())}
        if self._metrics and self._metrics[0].keys() != row.keys():
            raise DataError(
                f"{self._folder / 'metrics.csv'} was begun by another version of cesar, which measured other things; "
                "start the run anew in another directory"
            )
        self._metrics.append(row)
        self._timing[-1]["evaluation"] = seconds
        return row

    def settled(self, experiment: Experiment) -> bool:
        """Whether settling has come to its end, maybe before its last round."""
        after = [row["distance"] for row in self._metrics if row["round"] >= experiment.rounds]
        return len(after) > 1 and after[-1] <= experiment.settle_tolerance * after[0]

    def checkpoint(self, state: State, next_round: int) -> None:
        """Write everything to disk; the checkpoint last, so that it never runs ahead of the tables."""
        for name, rows in (("metrics", self._metrics), ("ledger", self._ledger), ("timing", self._timing)):
            _write_rows(self._folder / f"{name}.csv", rows)
        arrays: dict[str, NDArray[Any]] = {"models": state.models} | (
            {} if state.memory is None else {"memory": state.memory}
        )
        for node, kept in enumerate(state.cells or ()):
            arrays |= {f"cells.{node}.{name}": array for name, array in kept.items()}
        with files.replacing(self._folder / CHECKPOINT) as draft:
            save_file(arrays, draft, metadata={"next_round": str(next_round)})

    def totals(self, experiment: Experiment) -> dict[str, object]:
        """What all rounds came to: the mean share, the seconds of each part, and the last test step."""
        spent = {
            part: sum(float(row[part]) for row in self._timing)
            for part in ("training", "protocol", "evaluation")
        }
        last = self._metrics[-1]
        trained = next(row for row in self._metrics if row["round"] >= experiment.rounds)
        return {
            "shared": self._shared(),
            "seconds": sum(spent.values()),
            **{f"seconds_{part}": value for part, value in spent.items()},
            **_metrics_of(last),
            "settle_rounds": last["round"] - experiment.rounds,
            "before_settling": {"shared": self._shared(experiment.rounds), **_metrics_of(trained)},
        }

    def _shared(self, rounds: int | None = None) -> float:
        """The mean share of all rounds, or of the first ones."""
        return float(np.mean([row["shared"] for row in self._ledger[:rounds]]))


def _cells_of(held: dict[str, NDArray[np.generic]]) -> tuple[dict[str, NDArray[np.generic]], ...] | None:
    """What members of cells keep, by nodes, from the arrays `cells.NODE.NAME` of a checkpoint."""
    found: dict[int, dict[str, NDArray[np.generic]]] = {}
    for key, array in held.items():
        if key.startswith("cells."):
            _, node, name = key.split(".", 2)
            found.setdefault(int(node), {})[name] = array
    return tuple(found[node] for node in sorted(found)) or None


def _metrics_of(row: Row) -> Row:
    return {name: value for name, value in row.items() if name != "round"}


def write_json(path: Path, value: object) -> None:
    """A value for people and programs to read."""
    files.write(path, json.dumps(value, indent=2) + "\n")


def _write_rows(path: Path, rows: list[Row]) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [])
    writer.writeheader()
    writer.writerows(rows)
    files.write(path, text.getvalue())


def _rows(path: Path, before: int) -> list[Row]:
    """The rows of a table whose round is below `before`."""
    if not path.exists():
        raise DataError(f"{path} is missing beside its checkpoint; start the run anew in another directory")
    with path.open(newline="", encoding="utf-8") as file:
        rows = [{k: _number(v) for k, v in row.items()} for row in csv.DictReader(file)]
    return [row for row in rows if row["round"] < before]


def _number(text: str) -> float | int:
    return int(text) if text.lstrip("-").isdecimal() else float(text)
