"""Recorded rounds: what is kept, the same after a resume, and nothing secret."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from cesar.base.errors import ConfigError, DataError
from cesar_lab.run import config, recording
from cesar_lab.run import execute as run

TABLES = {
    "rounds": 6,
    "topology": {"nodes": 6, "degree": 3, "dynamic": True},
    "training": {"steps_per_round": 1},
    "evaluation": {"every": 2},
    "recording": {"rounds": [1], "every": 4, "last": 2},
    "method": [{"name": "cesar", "sparsifier": "topk", "share": 0.3}],
}


class Stopper:
    """Ends a run in the middle of round 4, as a fault would."""

    def started(self, *_): ...
    def tested(self, *_): ...
    def finished(self, *_): ...
    def round_done(self, record, sent):
        if record.round_ == 3:
            raise KeyboardInterrupt


def files(folder):
    return {path.name: path.read_bytes() for path in folder.glob("*/*/recording/*")}


def test_a_resumed_run_leaves_the_same_recording(tmp_path):
    experiment = config.parse(TABLES)
    run.execute(experiment, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        run.execute(experiment, tmp_path / "halted", observers=[Stopper()])
    run.execute(run.read(tmp_path / "halted"), tmp_path / "halted")
    whole = files(tmp_path / "whole")
    assert sorted(whole) == ["partition.safetensors", *(f"round-00000{n}.safetensors" for n in (1, 4, 5, 6))]
    assert files(tmp_path / "halted") == whole


def test_a_recording_holds_what_entered_the_averaging_and_no_more(tmp_path):
    experiment = config.parse(TABLES)
    run.execute(experiment, tmp_path)
    (one,) = run.runs_of(experiment, tmp_path)
    assert recording.numbers(one.folder) == [1, 4, 5, 6]
    first, last = (recording.read(one.folder, number) for number in (1, 6))
    assert sorted(first.graph.edges) == sorted(run.graph_of(experiment, 1)(0).edges)
    assert sorted(last.graph.edges) == sorted(run.graph_of(experiment, 1)(5).edges)
    assert len(np.unique(first.models, axis=0)) == 6
    assert (last.selected.sum(axis=1) == last.selected[0].sum()).all()
    after = load_file(one.folder / "checkpoint.safetensors")["models"]
    sent = last.selected[sorted(last.graph[0])]
    alone = sent.sum(axis=0) < 2
    assert (after[0, alone] == last.models[0, alone]).all()
    assert (after[0, ~alone] != last.models[0, ~alone]).mean() > 0.9
    rows = np.concatenate(recording.read_partition(one.folder))
    assert sorted(rows) == list(range(len(rows)))
    tensors = load_file(one.folder / "recording" / "round-000006.safetensors")
    assert set(tensors) == {"models", "selected", "edges"}


def test_mistakes_are_explained(tmp_path):
    with pytest.raises(ConfigError, match="round 9, but there are 6"):
        config.parse({**TABLES, "recording": {"rounds": [9]}})
    with pytest.raises(ConfigError, match="did you mean every"):
        config.parse({**TABLES, "recording": {"ever": 2}})
    with pytest.raises(DataError, match="no recorded rounds"):
        recording.numbers(tmp_path)
    with pytest.raises(DataError, match="is missing"):
        recording.read(tmp_path, 3)
