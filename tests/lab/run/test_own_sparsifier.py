"""A sparsifier that is no part of the package: once it is known by name, experiments use it like any other."""

import csv
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from cesar.base.errors import ConfigError
from cesar.indices import IndexSet
from cesar.methods import sparsify
from cesar_lab.run import config
from cesar_lab.run import execute as run


@dataclass(frozen=True, slots=True)
class First:
    """The first α·d parameters."""

    name: ClassVar[str] = "first"
    ranks: ClassVar[bool] = False
    drawn: ClassVar[bool] = False
    memory: ClassVar[bool] = False
    alpha: float

    def count(self, size):
        return max(1, round(self.alpha * size))

    def select(self, vector, reference, entropy):
        return IndexSet.from_positions(np.arange(self.count(len(vector))), len(vector))

    def write(self, indices, code):
        return sparsify.write_set(indices, code)

    def read(self, data, size, *, within=None):
        return sparsify.read_counted(data, size, self.count(size), within=within)


TABLES = {
    "rounds": 2,
    "topology": {"nodes": 6, "degree": 4},
    "training": {"steps_per_round": 1},
    "method": [
        {"name": "cesar", "sparsifier": "first", "alpha": 0.2},
        {"name": "dpsgd", "sparsifier": "first", "alpha": 0.2},
    ],
}


def test_an_experiment_with_a_sparsifier_of_somebody_elses(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="there is no sparsifier 'first'"):
        config.parse(TABLES)
    monkeypatch.setitem(sparsify.KNOWN, "first", First)
    run.execute(config.parse(TABLES), tmp_path)
    folders = {path.parent.parent.name: path for path in tmp_path.glob("*/seed-*/metrics.csv")}
    assert sorted(folders) == ["cesar-first-0.2", "dpsgd-first-0.2"]
    sent = {name: [*csv.DictReader(path.read_text().splitlines())][-1] for name, path in folders.items()}
    words = 2 * 4 * round(0.2 * 4810)  # rounds, neighbours, positions
    assert [float(sent[name]["bytes_values"]) for name in sorted(sent)] == [4 * words, 4 * words]
