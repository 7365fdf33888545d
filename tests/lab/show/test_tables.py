"""The benchmark page: every figure follows from the files of the runs, worked out here a second time."""

import csv
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from cesar.base.errors import ConfigError, DataError
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.run.config import MethodTable
from cesar_lab.run.machine import machine, peak_rss_bytes
from cesar_lab.show import report

METHODS = {
    "plain": {"name": "dpsgd"},
    "sparse": {"name": "dpsgd", "sparsifier": "random"},
    "secure": {"name": "secagg"},
    "ours|β": {"name": "cesar", "sparsifier": "random", "share": 0.3},
}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    out = tmp_path_factory.mktemp("lab") / "out"
    experiment = {
        "name": "Tiny",
        "rounds": 4,
        "seeds": [1, 2],
        "match_share": True,
        "data": {"test_limit": 60},
        "training": {"steps_per_round": 1},
        "topology": {"nodes": 6, "degree": 4},
        "evaluation": {"every": 2},
        "method": [{**method, "label": label} for label, method in METHODS.items()],
    }
    run.execute(config.parse(experiment), out)
    return out


@pytest.fixture
def copy(real, tmp_path):
    return Path(shutil.copytree(real, tmp_path / "copy"))


def page(directory, tmp_path):
    """The text of the page, and its two tables: first cell → the others."""
    text = report.write_tables([directory], tmp_path / "page.md").read_text("utf-8")
    lines = [line.replace(r"\|", "¦") for line in text.splitlines() if line.startswith("| ")]
    found: list[dict[str, list[str]]] = []
    for first, *others in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines):
        if first == "method":
            found.append({})
        found[-1][first.replace("¦", "|")] = others
    return text, found


def column(folder, file, name):
    """By seed, the column of a table."""
    for path in sorted(folder.glob(f"seed-*/{file}.csv")):
        with path.open(newline="") as lines:
            yield [float(row[name]) for row in csv.DictReader(lines)]


def folder_of(directory, label):
    return directory / MethodTable(name="dpsgd", label=label).folder


def seconds(directory, label, part):
    return statistics.mean(map(sum, column(folder_of(directory, label), "timing", part)))


def final(directory, label, metric="accuracy"):
    return [values[-1] for values in column(folder_of(directory, label), "metrics", metric)]


def test_results(real, tmp_path):
    _, (results, _) = page(real, tmp_path)
    assert results["method"][:2] == ["shared", "accuracy (%)"]
    assert set(results) == {"method", *METHODS}
    for label in METHODS:
        shared, metric, spread, common, sent, ratio, *spent = results[label]
        folder, values = folder_of(real, label), final(real, label)
        assert shared == f"{np.mean(list(column(folder, 'ledger', 'shared'))):.1%}"
        error = statistics.stdev(values) / 2**0.5
        assert metric == f"{100 * statistics.mean(values):.2f} ± {100 * error:.2f}"
        for cell, name in ((spread, "accuracy_spread"), (common, "mean_model_accuracy")):
            assert cell == f"{100 * statistics.mean(final(real, label, name)):.2f}"
        total = statistics.mean(b[-1] for b in column(folder, "metrics", "bytes"))
        assert sent == f"{total / 1e3:.2f}"
        full = statistics.mean(b[-1] for b in column(folder_of(real, "plain"), "metrics", "bytes"))
        assert ratio == f"{total / full:.3f}"
        parts = ("training", "protocol", "evaluation")
        assert spent == [f"{seconds(real, label, part):.1f}" for part in parts]
    assert results["method"][4] == "sent per node (kB)"


def gaps(directory, label, plain, metric="accuracy"):
    return [
        a - b for a, b in zip(final(directory, label, metric), final(directory, plain, metric), strict=True)
    ]


def test_methods_are_compared_seed_by_seed_with_their_plain_counterparts(real, tmp_path):
    _, (_, comparison) = page(real, tmp_path)
    assert set(comparison) == {"method", "sparse", "secure", "ours|β"}
    for label, plain in (("secure", "plain"), ("ours|β", "sparse"), ("sparse", "plain")):
        times = [seconds(real, m, "training") + seconds(real, m, "protocol") for m in (label, plain)]
        cells = [plain]
        for metric in ("accuracy", "mean_model_accuracy"):
            one, two = (100 * gap for gap in gaps(real, label, plain, metric))
            middle, error = (one + two) / 2, abs(one - two) / 2
            low, high = middle - 12.7062 * error, middle + 12.7062 * error  # t of one degree of freedom
            cells += [f"{middle:+.2f} ± {error:.2f}", f"{low:+.2f} to {high:+.2f}"]
        assert comparison[label] == [*cells, "2", f"{times[0] / times[1]:.3f}"]


def test_errors_are_compared_with_four_digits(copy, tmp_path):
    for path in copy.glob("*/*/metrics.csv"):
        path.write_text(path.read_text().replace("accuracy", "rmse"))
    _, (_, comparison) = page(copy, tmp_path)
    found = gaps(copy, "ours|β", "sparse", "rmse")
    assert comparison["ours|β"][1].startswith(f"{statistics.mean(found):+.4f} ± ")
    assert comparison["method"][1] == "nodes (RMSE)"


def test_machine_versions_and_memory_are_those_of_the_runs(real, copy, tmp_path):
    text, _ = page(real, tmp_path)
    assert machine() in text
    versions = run.versions()
    for name in ("cesar", "python", "torch", "numpy"):
        assert f"{name} {versions[name]}" in text
    peaks = [json.loads(path.read_text())["peak_rss_bytes"] for path in real.glob("*/*/summary.json")]
    assert 0 < max(peaks) <= peak_rss_bytes()
    assert f"{max(peaks) / 1e9:.2f} GB" in text
    for path in copy.glob("*/*/summary.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "peak_rss_bytes": 5_000_000_000}))
    assert "5.00 GB" in page(copy, tmp_path)[0]
    other = {"python": "3.99", "machine": "an abacus"}
    next(copy.glob("secure/seed-2/versions.json")).write_text(json.dumps(other))
    assert "and on an abacus, python 3.99." in page(copy, tmp_path)[0]


@pytest.mark.parametrize(
    ("told", "named"),
    [
        ("model name : AMD EPYC\ncpu family : 25\nmodel : 1\n", ", AMD EPYC (family 25, model 1), "),
        ("processor : 0\nBogoMIPS : 48.00\n", ", abacus, "),
    ],
)
def test_two_generations_of_processors_have_two_names(tmp_path, monkeypatch, told, named):
    (tmp_path / "cpuinfo").write_text(told)
    monkeypatch.setattr("cesar_lab.run.machine.CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr("platform.processor", lambda: "abacus")
    assert named in machine()


def test_older_runs_say_nothing_about_memory(copy, tmp_path):
    for path in copy.glob("*/*/summary.json"):
        summary = json.loads(path.read_text())
        del summary["peak_rss_bytes"]
        path.write_text(json.dumps(summary))
    assert "Peak memory" not in page(copy, tmp_path)[0]


def test_what_is_not_complete_is_named(real, copy, tmp_path):
    assert "Not complete" not in page(real, tmp_path)[0]
    (copy / "sparse" / "seed-2" / "summary.json").unlink()
    assert "Not complete: sparse, 1 of 2 seeds, 4 of 4 rounds." in page(copy, tmp_path)[0]
    shutil.rmtree(copy / "sparse" / "seed-2")
    shutil.rmtree(copy / "sparse" / "seed-1")
    _, (results, comparison) = page(copy, tmp_path)
    assert "sparse" not in results
    assert set(comparison) == {"method", "secure", "ours|β"}
    assert comparison["ours|β"][0] == "plain"  # full sharing, for want of its own counterpart


def test_notes_and_benches_stand_beside_the_tables(tmp_path):
    bench = tmp_path / "training.json"
    bench.write_text('{"ratio": 1.0417891, "cores": 2}')
    page = report.write_tables([], tmp_path / "page.md", benches=[bench]).read_text()
    assert "## training" in page
    assert "| ratio | 1.042 |\n| cores | 2 |" in page
    with pytest.raises(ConfigError, match="a note on 'nothing'"):
        report.write_tables([], tmp_path / "page.md", notes={"nothing": "loaded machine"})
    bench.write_text("not JSON")
    with pytest.raises(DataError, match="cesar bench"):
        report.write_tables([], tmp_path / "page.md", benches=[bench])
