"""Experiments: reproducible to the byte, resumable after a kill, and strict about their files."""

import csv
import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from cesar.base.errors import ConfigError, DataError, PrivacyError
from cesar_lab.run import config
from cesar_lab.run import execute as run

TABLES = {
    "rounds": 6,
    "seeds": [1],
    "topology": {"nodes": 8, "degree": 4},
    "training": {"steps_per_round": 2},
    "evaluation": {"every": 2},
    "method": [{"name": "cesar", "sparsifier": "random", "share": 0.3, "ring_bits": 16}],
}


def tables(**changes):
    return {**TABLES, **changes}


def metrics(folder):
    return {path.parent.parent.name: path.read_bytes() for path in folder.glob("*/seed-*/metrics.csv")}


def test_threads_do_not_change_the_metrics(tmp_path):
    experiment = config.parse(
        tables(
            faults={"crash_rate": 0.2},
            method=[
                {"name": "cesar", "sparsifier": "topk", "share": 0.3},
                {"name": "cesar", "sparsifier": "random", "share": 0.3, "ring_bits": 16},
                {"name": "cesar", "sparsifier": "topk", "share": 0.1, "memory": True},
                {"name": "secagg"},
                {"name": "dpsgd", "sparsifier": "topk", "share": 0.3},
            ],
            settle_rounds=2,
        )
    )
    for workers in (1, 2, 3):
        run.execute(experiment, tmp_path / str(workers), workers=workers)
    first = metrics(tmp_path / "1")
    assert len(first) == 5
    assert len(set(first.values())) == 5
    assert metrics(tmp_path / "2") == metrics(tmp_path / "3") == first


def test_another_seed_gives_other_metrics(tmp_path):
    experiment = config.parse(tables(seeds=[1, 2]))
    run.execute(experiment, tmp_path)
    rows = [path.read_bytes() for path in tmp_path.glob("*/seed-*/metrics.csv")]
    assert len(set(rows)) == 2


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from cesar_lab.run import config
    from cesar_lab.run import execute as run

    class Killer:
        def started(self, *_): pass
        def tested(self, *_): pass
        def finished(self, *_): pass
        def round_done(self, record, sent):
            if record.round_ == int(sys.argv[3]):
                os.kill(os.getpid(), signal.SIGKILL)

    run.execute(config.load(Path(sys.argv[1])), Path(sys.argv[2]), observers=[Killer()])
"""


@pytest.mark.parametrize("killed_in", [0, 3, 5, 6])
def test_a_killed_run_ends_with_the_same_metrics(tmp_path, killed_in):
    """kill -9 before the first checkpoint, between two, in the last round of training, and while it settles."""
    file = tmp_path / "exp.json.toml"
    file.write_text(
        "rounds = 6\nsettle_rounds = 2\n[topology]\nnodes = 8\ndegree = 4\ndynamic = true\n[evaluation]\nevery = 2\n"
        '[faults]\ncrash_rate = 0.2\n[[method]]\nname = "cesar"\nsparsifier = "topk"\nshare = 0.1\n'
        "memory = true\n",
        encoding="utf-8",
    )
    script = [sys.executable, "-c", textwrap.dedent(KILLED), str(file), str(tmp_path / "out"), str(killed_in)]
    died = subprocess.run(script, check=False, env={**os.environ}, timeout=120)
    assert died.returncode == -signal.SIGKILL
    experiment = run.read(tmp_path / "out")
    assert experiment == config.load(file)
    run.execute(experiment, tmp_path / "out")
    run.execute(experiment, tmp_path / "whole")
    assert metrics(tmp_path / "out") == metrics(tmp_path / "whole")
    ledgers = [next(tmp_path.glob(f"{name}/*/*/ledger.csv")).read_bytes() for name in ("out", "whole")]
    assert ledgers[0] == ledgers[1]


def test_d_psgd_gets_the_share_that_cesar_measured(tmp_path):
    method = [{"name": "dpsgd", "sparsifier": "topk"}, {"name": "cesar", "sparsifier": "topk", "share": 0.3}]
    summaries = run.execute(config.parse(tables(match_share=True, seeds=[1, 2], method=method)), tmp_path)
    ours = [s["shared"] for s in summaries if s["method"] == "cesar"]
    theirs = [s["shared"] for s in summaries if s["method"] == "dpsgd"]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), abs=1e-3)


def test_run_directories_hold_no_secrets(tmp_path):
    """Keys follow from the seed in a simulation, but nothing of them is written down."""
    run.execute(config.parse(tables()), tmp_path)
    names = {path.name for path in tmp_path.rglob("*") if path.is_file()}
    assert names == {
        "experiment.json",
        "metrics.csv",
        "ledger.csv",
        "timing.csv",
        "summary.json",
        "versions.json",
        "checkpoint.safetensors",
    }


MISTAKES = {
    "unknown key": ({"trainin": {}}, "did you mean training"),
    "unknown key in a table": ({"training": {"lerning_rate": 0.1}}, "did you mean learning_rate"),
    "unknown key in a method": (
        {"method": [{"name": "cesar", "sparsfier": "topk"}]},
        "did you mean sparsifier",
    ),
    "unknown method": ({"method": [{"name": "fedavg"}]}, "no method 'fedavg'; known are"),
    "no method": ({"method": []}, "method"),
    "no share": ({"method": [{"name": "cesar", "sparsifier": "topk"}]}, "needs share"),
    "share and alpha": (
        {"method": [{"name": "cesar", "sparsifier": "topk", "share": 0.3, "alpha": 0.4}]},
        "not both",
    ),
    "alpha that shares nothing": (
        {"method": [{"name": "cesar", "sparsifier": "topk", "alpha": 1e-6}]},
        "nothing is ever shared.*raise alpha",
    ),
    "alpha that shares less than one parameter": (
        {"method": [{"name": "cesar", "sparsifier": "random", "alpha": 0.005}]},
        "0.36 of 4,810 parameters",
    ),
    "a sparsifier that was removed": (
        {"method": [{"name": "cesar", "sparsifier": "coordinated", "share": 0.3}]},
        "no sparsifier 'coordinated'; known are topk, random",
    ),
    "D-PSGD that shares nothing": (
        {"method": [{"name": "dpsgd", "sparsifier": "random", "share": 1e-4}]},
        "nothing is ever shared",
    ),
    "more masks than neighbours give": (
        {"method": [{"name": "cesar", "sparsifier": "random", "share": 0.3, "masks": 4}]},
        "degree of at least 5 or fewer masks",
    ),
    "a wrong method behind a right one": (
        {"method": [{"name": "dpsgd"}, {"name": "cesar", "sparsifier": "topk", "alpha": 1e-6}]},
        "nothing is ever shared",
    ),
    "degree too large": ({"topology": {"nodes": 8, "degree": 8}}, "lower the degree"),
    "odd product": ({"topology": {"nodes": 9, "degree": 5}}, "must be even"),
    "unknown dataset": ({"data": {"dataset": "mnist"}}, "mnist"),
    "unknown model": ({"model": {"name": "resnet"}}, "no model 'resnet'"),
    "model that cannot be imported": ({"model": {"name": "nowhere:make"}}, "cannot be imported"),
    "weights for a model that loads none": ({"model": {"weights": "somewhere"}}, "drop model.weights"),
    "empty nodes": ({"data": {"train_limit": 5}}, "at most 5 nodes, or more samples"),
    "empty nodes for lack of shards": (
        {"data": {"train_limit": 15, "partition": "shards"}},
        "at most 7 nodes, or more samples",
    ),
    "empty nodes by chance": (
        {
            "data": {"partition": "dirichlet", "dirichlet_alpha": 0.001},  # ten digits, each on one node
            "topology": {"nodes": 16, "degree": 4},
        },
        "take a larger alpha, fewer nodes or more samples",
    ),
    "users where there are none": ({"data": {"partition": "user"}}, "names no users"),
    "same title": ({"method": [{"name": "dpsgd"}, {"name": "dpsgd"}]}, "label"),
    "small world of odd degree": (
        {"topology": {"kind": "small-world", "nodes": 8, "degree": 3}},
        "even degree",
    ),
    "edge list that is not there": (
        {"topology": {"kind": "file", "path": "none.txt"}},
        "no edge list none.txt",
    ),
    "learning rate without end": ({"training": {"learning_rate": float("inf")}}, "learning_rate"),
    "negative rounds": ({"rounds": -1}, "rounds"),
    "match_share without cesar": (
        {"match_share": True, "method": [{"name": "dpsgd", "sparsifier": "topk"}]},
        "beside cesar with sparsifier",
    ),
    "unknown rule": ({"method": [{"name": "dpsgd", "weights": "mine"}]}, "weights"),
    "settling backwards": ({"settle_rounds": -1}, "settle_rounds"),
    "memory without ranking": (
        {"method": [{"name": "cesar", "sparsifier": "random", "share": 0.3, "memory": True}]},
        "sparsifiers that rank",
    ),
    "fixed groups, which are gone": (
        {"method": [{"name": "cesar", "sparsifier": "random", "share": 0.3, "group_size": 3}]},
        "group_size is not a setting",
    ),
    "a share that secagg would ignore": (
        {"method": [{"name": "secagg", "share": 0.3}]},
        "share would change nothing",
    ),
    "a ring that D-PSGD would ignore": (
        {"method": [{"name": "dpsgd", "ring_bits": 16}]},
        "ring_bits would change",
    ),
    "dynamic ring": ({"topology": {"kind": "ring", "dynamic": True}}, "always the same"),
    "file without a path": ({"topology": {"kind": "file"}}, "path"),
}


@pytest.mark.parametrize("changes, message", MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_explained_before_training(tmp_path, changes, message):
    with pytest.raises((ConfigError, PrivacyError), match=message):
        run.execute(config.parse(tables(**changes)), tmp_path, trust_code=True)
    assert not list(tmp_path.iterdir())


def test_a_star_is_refused_for_cesar(tmp_path):
    with pytest.raises(PrivacyError, match="neighbour"):
        run.execute(config.parse(tables(topology={"kind": "star", "nodes": 8})), tmp_path)


BROKEN_MODELS = """
import torch

def nan():
    module = torch.nn.Linear(64, 10)
    torch.nn.init.constant_(module.weight, float("nan"))
    return module

def infinite():
    module = torch.nn.Linear(64, 10)
    torch.nn.init.constant_(module.bias, float("inf"))
    return module

def nothing(): pass

empty = torch.nn.ReLU
"""


@pytest.mark.parametrize(
    "factory, message",
    [
        ("nan", "parameter weight starts with NaN"),
        ("infinite", "parameter bias starts with NaN or infinity; mend the factory"),
        ("nothing", "must return a torch.nn.Module"),
        ("empty", "with parameters"),
    ],
)
def test_a_broken_model_is_refused_before_training(tmp_path, monkeypatch, factory, message):
    (tmp_path / "broken_models.py").write_text(BROKEN_MODELS, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match=message):
        run.execute(
            config.parse(tables(model={"name": f"broken_models:{factory}"})),
            tmp_path / "out",
            trust_code=True,
        )
    assert not (tmp_path / "out").exists()


def test_an_own_model_is_trained(tmp_path, monkeypatch):
    (tmp_path / "own_model.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n",
        encoding="utf-8",
    )
    monkeypatch.syspath_prepend(tmp_path)
    (summary,) = run.execute(
        config.parse(tables(model={"name": "own_model:make"})), tmp_path / "out", trust_code=True
    )
    assert summary["accuracy"] > 0.3


def test_overrides(tmp_path):
    file = tmp_path / "exp.toml"
    file.write_text('[[method]]\nname = "dpsgd"\n', encoding="utf-8")
    experiment = config.load(file, ("training.learning_rate=0.5", "method.0.label=mine", "seeds=[4, 5]"))
    assert experiment.training.learning_rate == 0.5
    assert experiment.method[0].title == "mine"
    assert experiment.seeds == (4, 5)
    with pytest.raises(ConfigError, match="key=value"):
        config.load(file, ("rounds",))
    for nowhere in ("method.1.share=0.3", "method.first.share=0.3", "seeds.x.y=1", "name.x=1"):
        with pytest.raises(ConfigError, match="no such place"):
            config.load(file, ("seeds=[1]", "name=mine", nowhere))
    with pytest.raises(ConfigError, match="did you mean rounds"):
        config.load(file, ("round=3",))


def test_a_list_of_shares_stands_for_several_methods():
    method = [{"name": "cesar", "sparsifier": "topk", "share": [0.1, 0.3]}]
    titles = [m.title for m in config.parse(tables(method=method)).method]
    assert titles == ["cesar-topk-0.1", "cesar-topk-0.3"]


def test_the_resolved_configuration_reads_back(tmp_path):
    experiment = config.parse(tables())
    run.execute(experiment, tmp_path)
    assert run.read(tmp_path) == experiment
    assert json.loads((tmp_path / "experiment.json").read_text())["training"]["learning_rate"] == 0.1


# ── settling and memory ─────────────────────────────────────────────────────────────────────────────────

SHARDS = {
    "rounds": 8,
    "seeds": [1],
    "data": {"partition": "shards"},
    "topology": {"nodes": 16, "degree": 6},
    "training": {"steps_per_round": 5},
    "evaluation": {"every": 4, "test_samples": 100, "all_at_end": True},
    "method": [{"name": "cesar", "sparsifier": "topk", "share": 0.05, "memory": True}],
}


def rows_of(folder):
    with next(folder.glob("*/*/metrics.csv")).open(newline="") as file:
        return [{key: float(value) for key, value in row.items()} for row in csv.DictReader(file)]


def test_settling_brings_every_node_to_the_mean_of_all_models(tmp_path):
    (summary,) = run.execute(config.parse({**SHARDS, "settle_rounds": 8}), tmp_path)
    rows = rows_of(tmp_path)
    assert [row["round"] for row in rows] == [4, *range(8, 17)]
    trained, settled = rows[1], rows[-1]
    distances = [row["distance"] for row in rows[1:]]
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < distances[0] / 10
    assert trained["accuracy"] < trained["mean_model_accuracy"] - 0.1, "label shards keep nodes apart"
    assert settled["accuracy"] == pytest.approx(trained["mean_model_accuracy"], abs=0.03)
    assert settled["accuracy_spread"] < trained["accuracy_spread"]
    assert summary["settle_rounds"] == 8
    assert summary["before_settling"]["accuracy"] == trained["accuracy"]
    assert summary["accuracy"] == settled["accuracy"]


def test_a_matched_share_is_that_of_training(tmp_path):
    """Settling rounds share 30 % here, six times as much, and do not count."""
    method = [{"name": "cesar", "sparsifier": "topk", "share": 0.05}, {"name": "dpsgd", "sparsifier": "topk"}]
    tables = {**SHARDS, "rounds": 2, "settle_rounds": 2, "match_share": True, "method": method}
    ours, plain = run.execute(config.parse(tables), tmp_path)
    assert ours["shared"] > 0.1
    assert ours["before_settling"]["shared"] < ours["shared"] - 0.05
    assert plain["before_settling"]["shared"] == pytest.approx(ours["before_settling"]["shared"], rel=0.01)


def test_settling_can_be_tested_now_and_then(tmp_path):
    evaluation = {**SHARDS["evaluation"], "settle_every": 3}
    run.execute(config.parse({**SHARDS, "settle_rounds": 5, "evaluation": evaluation}), tmp_path)
    assert [row["round"] for row in rows_of(tmp_path)] == [4, 8, 11, 13]


def test_settling_ends_when_not_much_changes(tmp_path):
    tables = {**SHARDS, "settle_rounds": 30, "settle_tolerance": 0.3}
    (summary,) = run.execute(config.parse(tables), tmp_path)
    after = [row["distance"] for row in rows_of(tmp_path) if row["round"] >= 8]
    assert 1 < summary["settle_rounds"] < 12
    assert after[-1] <= 0.3 * after[0] < after[-2]


def test_a_checkpoint_without_the_memory_that_a_method_needs_is_refused(tmp_path):
    experiment = config.parse({**SHARDS, "rounds": 8})
    run.execute(experiment, tmp_path)
    (checkpoint,) = tmp_path.glob("*/*/checkpoint.safetensors")
    (checkpoint.parent / "summary.json").unlink()
    held = load_file(checkpoint)
    assert held["memory"].shape == held["models"].shape
    save_file({"models": held["models"]}, checkpoint, metadata={"next_round": "4"})
    with pytest.raises(DataError, match=r"without the memory.*start it anew"):
        run.execute(experiment, tmp_path)


def test_a_run_of_another_version_is_not_mixed_with_this_one(tmp_path):
    """Its table has other columns."""
    experiment = config.parse(TABLES)
    run.execute(experiment, tmp_path)
    (table,) = tmp_path.glob("*/*/metrics.csv")
    (table.parent / "summary.json").unlink()
    rows = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()]
    table.write_text("".join(",".join(row[:2]) + "\n" for row in rows), encoding="utf-8")
    held = load_file(table.parent / "checkpoint.safetensors")
    save_file(held, table.parent / "checkpoint.safetensors", metadata={"next_round": "2"})
    with pytest.raises(DataError, match=r"another version of cesar.*start the run anew"):
        run.execute(experiment, tmp_path)
