"""Experiments with cells: the same with any number of threads, resumable, and strict about what was saved."""

import pytest
from safetensors.numpy import load_file, safe_open, save_file

from cesar.base.errors import ConfigError, DataError
from cesar_lab.run import config
from cesar_lab.run import execute as run

TABLES = {
    "rounds": 5,
    "settle_rounds": 2,
    "seeds": [1],
    "topology": {"nodes": 9, "degree": 4},
    "training": {"steps_per_round": 2},
    "evaluation": {"every": 2},
    "faults": {"crash_rate": 0.15, "crash_point": "during_gather"},
    "method": [
        {"name": "cells"},
        {"name": "cells", "sparsifier": "random", "share": 0.3},
        {"name": "cells", "sparsifier": "topk", "share": 0.2, "block": 16, "size": 3, "graph": "complete"},
    ],
}


class Killed(Exception):
    pass


class Killer:
    """Ends a run after some rounds, as a kill would."""

    def __init__(self, after):
        self.left = after

    def started(self, *_): ...
    def finished(self, *_): ...
    def tested(self, *_): ...
    def round_done(self, *_):
        self.left -= 1
        if self.left == 0:
            raise Killed


def metrics(folder):
    return {path.parent.parent.name: path.read_bytes() for path in folder.glob("*/seed-*/metrics.csv")}


def test_threads_and_kills_do_not_change_the_metrics(tmp_path):
    experiment = config.parse(TABLES)
    for workers in (1, 2):
        run.execute(experiment, tmp_path / str(workers), workers=workers)
    first = metrics(tmp_path / "1")
    assert sorted(first) == ["cells-full-of4", "cells-random-of4-0.3", "cells-topk-of3-complete-block16-0.2"]
    assert metrics(tmp_path / "2") == first
    for after in (3, 4, 6, 8):  # each time from the last checkpoint, of training or of settling
        with pytest.raises(Killed):
            run.execute(experiment, tmp_path / "killed", observers=[Killer(after)])
    run.execute(experiment, tmp_path / "killed")
    assert metrics(tmp_path / "killed") == first


def test_runs_weighted_by_data(tmp_path):
    """Samples are those of the partition; a run that was killed goes on with the weights of its cells."""
    experiment = config.parse({**TABLES, "method": [{"name": "cells", "weight": "samples"}]})
    run.execute(experiment, tmp_path / "whole")
    with pytest.raises(Killed):
        run.execute(experiment, tmp_path / "killed", observers=[Killer(4)])
    run.execute(experiment, tmp_path / "killed")
    found = metrics(tmp_path / "killed")
    assert list(found) == ["cells-full-of4-samples"]
    assert found == metrics(tmp_path / "whole")


def test_a_checkpoint_without_what_is_unsent(tmp_path):
    experiment = config.parse({**TABLES, "method": [{"name": "cells"}]})
    with pytest.raises(Killed):
        run.execute(experiment, tmp_path, observers=[Killer(3)])
    (path,) = tmp_path.glob("*/seed-1/checkpoint.safetensors")
    with safe_open(path, framework="numpy") as file:
        metadata = file.metadata()
    held = load_file(path)
    for names, said in (
        ([name for name in held if name.startswith("cells.")], "without the unsent updates of its cells"),
        (["cells.0.unsent"], "lacks 'unsent'; without it a number could be in two sums"),
    ):
        save_file({name: array for name, array in held.items() if name not in names}, path, metadata=metadata)
        with pytest.raises(DataError, match=said):
            run.execute(experiment, tmp_path)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"size": 12}, r"9 node\(s\) make no cell of 12"),
        ({"size": 2}, "cells of 2 do not stop 1 colluding"),
        ({"sparsifier": "random"}, "name both a sparsifier and a share"),
        ({"share": 0.3}, "name both a sparsifier and a share"),
        ({"masks": 2}, "masks would change nothing"),
        ({"size": 3, "graph": "ring:2"}, "graph of 3 cells: 'ring:2' is not a topology"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, table, said):
    with pytest.raises(ConfigError, match=said):
        run.execute(config.parse({**TABLES, "method": [{"name": "cells", **table}]}), tmp_path)
    with pytest.raises(ConfigError, match="size would change nothing"):
        config.parse({**TABLES, "method": [{"name": "dpsgd", "size": 3}]})
