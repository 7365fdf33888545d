"""TensorBoard and MLflow, through their own libraries: what they read back is what the run wrote down."""

import csv
import sys

import pytest

from cesar.base.errors import ConfigError
from cesar_lab.run import config, loggers
from cesar_lab.run import execute as run

TABLES = {
    "name": "logged",
    "rounds": 4,
    "settle_rounds": 1,
    "topology": {"nodes": 4, "degree": 3},
    "data": {"test_limit": 50},
    "training": {"steps_per_round": 1},
    "evaluation": {"every": 2},
    "method": [{"name": "cesar", "sparsifier": "random", "share": 0.3}],
}
TITLE = "cesar-random-0.3-seed-1"


def logged(out, **switches):
    """Run, and return the metrics of the run's own files: name → {rounds: value}, and the shares by round."""
    experiment = config.parse(TABLES | {"logging": switches})
    run.execute(experiment, out, observers=loggers.loggers(experiment, out))
    (folder,) = out.glob("*/seed-1")
    with (folder / "metrics.csv").open(newline="") as file:
        tested = list(csv.DictReader(file))
    with (folder / "ledger.csv").open(newline="") as file:
        shared = {int(row["round"]): float(row["shared"]) for row in csv.DictReader(file)}
    names = [name for name in tested[0] if name != "round"]
    assert {"accuracy", "accuracy_spread", "mean_model_accuracy", "distance"} <= set(names)
    assert [row["round"] for row in tested] == ["2", "4", "5"]
    return {n: {int(row["round"]): float(row[n]) for row in tested} for n in names} | {"shared": shared}


def test_nothing_is_logged_unless_asked_for(tmp_path):
    assert loggers.loggers(config.parse(TABLES), tmp_path) == []


def test_tensorboard_reads_what_was_written(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    expected = logged(tmp_path, tensorboard=True)
    found = events.EventAccumulator(str(tmp_path / "tensorboard" / TITLE)).Reload()
    assert set(found.Tags()["scalars"]) == set(expected)
    for name, values in expected.items():
        read = {event.step: event.value for event in found.Scalars(name)}
        assert read == pytest.approx(values, rel=1e-6)  # event files hold float32


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    """MLflow, set up to write to a database of the test's own."""
    library = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'ml.db'}")
    yield library
    while library.active_run():
        library.end_run()


@pytest.mark.filterwarnings("ignore")  # MLflow's own use of SQLAlchemy
def test_mlflow_reads_what_was_written(tmp_path, mlflow):
    expected = logged(tmp_path / "out", mlflow=True)
    client = mlflow.MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("logged").experiment_id])
    assert (found.info.run_name, found.info.status) == (TITLE, "FINISHED")
    assert found.data.params == {"method": "cesar-random-0.3", "seed": "1", "rounds": "5"}
    assert set(found.data.metrics) == set(expected)
    for name, values in expected.items():
        history = client.get_metric_history(found.info.run_id, name)
        assert {metric.step: metric.value for metric in history} == values


@pytest.mark.filterwarnings("ignore")
def test_a_place_that_mlflow_cannot_write_to_is_an_error_before_training(tmp_path, mlflow, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nonsense://here")
    with pytest.raises(ConfigError, match=r"MLflow cannot write to nonsense.*MLFLOW_TRACKING_URI"):
        logged(tmp_path / "out", mlflow=True)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name, package", [("tensorboard", "tensorboard"), ("mlflow", "mlflow")])
def test_a_library_that_is_not_installed(tmp_path, monkeypatch, name, package):
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError, match=rf"{package}.*pip install '\.\[logging\]'"):
        logged(tmp_path / "out", **{name: True})
    assert not (tmp_path / "out").exists()
