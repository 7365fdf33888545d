"""The report: right numbers, nothing from elsewhere, and plots that a real browser draws."""

from __future__ import annotations

import csv
import json
import re
import shutil
import statistics
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import networkx as nx
import plotly.graph_objects as go
import pytest

from cesar.base.errors import DataError
from cesar.page import MOST_EDGES, graph_figure
from cesar.protocol.wire import CATEGORIES
from cesar_lab.run import config
from cesar_lab.run import execute as run
from cesar_lab.show import report, results, study
from support.browser import browse, screen

SETTINGS = {
    "name": "Tiny",
    "rounds": 4,
    "seeds": [1, 2],
    "data": {"dataset": "digits", "test_limit": 60},
    "training": {"steps_per_round": 1},
    "topology": {"nodes": 6, "degree": 4},
    "evaluation": {"every": 2},
    "method": [
        {"name": "dpsgd"},
        {"name": "cesar", "sparsifier": "random", "share": 0.3},
        {"name": "secagg", "label": "secure"},
    ],
}
VOID = {"meta", "br", "link", "img", "input", "hr", "base"}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    """A directory that a real, tiny experiment left."""
    out = tmp_path_factory.mktemp("lab") / "tiny"
    run.execute(config.parse(SETTINGS), out)
    return out


@pytest.fixture
def copy(real, tmp_path):
    return Path(shutil.copytree(real, tmp_path / "copy"))


def table(path: Path) -> list[dict[str, float]]:
    with path.open(newline="") as file:
        return [{name: float(text) for name, text in row.items()} for row in csv.DictReader(file)]


def write_table(path: Path, rows: list[dict[str, float]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def invent(out: Path, settings: dict[str, Any], *, metrics=("accuracy",), value=0.5) -> Path:
    """A directory of finished runs with invented figures: quick, and as odd as a test wants it."""
    experiment = config.parse(settings)
    out.mkdir(parents=True)
    (out / "experiment.json").write_text(json.dumps(experiment.model_dump(mode="json")))
    for method in experiment.method:
        for seed in experiment.seeds:
            folder = out / method.folder / f"seed-{seed}"
            folder.mkdir(parents=True)
            sent = dict.fromkeys(CATEGORIES, 100.0)
            rounds = range(experiment.rounds)
            write_table(
                folder / "ledger.csv", [{"round": r, **sent, "shared": 0.5, "crashed": 0} for r in rounds]
            )
            seconds = {"training": 1.0, "protocol": 0.5, "evaluation": 0.25}
            write_table(folder / "timing.csv", [{"round": r, **seconds} for r in rounds])
            rows = [
                {"round": r + 1, "test_loss": 1.0 + seed, **dict.fromkeys(metrics, value + 0.01 * seed)}
                | {f"bytes_{category}": 100.0 * (r + 1) for category in CATEGORIES}
                | {"bytes": 400.0 * (r + 1)}
                for r in rounds
            ]
            write_table(folder / "metrics.csv", rows)
            (folder / "summary.json").write_text(json.dumps({"settings": "DPSGD(<i>)"}))
            (folder / "versions.json").write_text(json.dumps({"python": "3.<u>"}))
    return out


class Page(HTMLParser):
    """What a page holds: addresses, the table's cells, and for each figure its classes and its data."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.cells: list[str] = []
        self.text = ""
        self.figures: list[dict[str, Any]] = []
        self._inside: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag == "figure":
            self.figures.append({"state": found.get("data-state"), "classes": [], "spec": None})
        if self.figures and "figure" in self._inside:
            self.figures[-1]["classes"].append(found.get("class") or "")
        if tag in ("td", "th"):
            self.cells.append("")
        if tag not in VOID:
            self._inside.append(tag)

    def handle_endtag(self, tag):
        while tag in self._inside and self._inside.pop() != tag:
            pass

    def handle_data(self, data):
        inside = self._inside[-1:]
        if inside == ["script"]:
            if "figure" in self._inside:
                self.figures[-1]["spec"] = json.loads(data)
        elif inside != ["style"]:
            self.text += data
            if "table" in self._inside and self.cells:
                self.cells[-1] += data

    def row(self, title: str) -> list[str]:
        at = next(i for i, cell in enumerate(self.cells) if cell.startswith(title))
        return self.cells[at : at + 8]

    @property
    def specs(self) -> list[dict[str, Any]]:
        return [figure["spec"] for figure in self.figures if figure["spec"]]


def read(*directories: Path, out: Path) -> Page:
    return Page(report.write_report(directories, out / "page.html").read_text(encoding="utf-8"))


def test_summary_is_mean_and_standard_error_over_seeds(real):
    rows = {row.title: row for row in results.summarise(real)}
    assert list(rows) == ["dpsgd-full", "cesar-random-0.3", "secure"]
    full = statistics.mean(
        table(real / "dpsgd-full" / f"seed-{k}" / "metrics.csv")[-1]["bytes"] for k in (1, 2)
    )
    for title, row in rows.items():
        folders = [real / title / f"seed-{k}" for k in (1, 2)]
        last = [table(folder / "metrics.csv")[-1] for folder in folders]
        accuracies = [step["accuracy"] for step in last]
        assert (row.metric, row.round_, row.rounds) == ("accuracy", 4, 4)
        assert (row.seeds, row.seeds_finished, row.seeds_planned) == (2, 2, 2)
        assert row.value == pytest.approx(statistics.mean(accuracies))
        assert row.error == pytest.approx(statistics.stdev(accuracies) / 2**0.5)
        assert row.bytes == pytest.approx(statistics.mean(step["bytes"] for step in last))
        assert row.bytes_ratio == pytest.approx(row.bytes / full)
        for part in ("training", "protocol", "evaluation"):
            spent = [sum(line[part] for line in table(folder / "timing.csv")) for folder in folders]
            assert row.as_dict()[f"seconds_{part}"] == pytest.approx(statistics.mean(spent))
        summaries = [json.loads((folder / "summary.json").read_text()) for folder in folders]
        assert row.shared == pytest.approx(statistics.mean(summary["shared"] for summary in summaries))
        assert row.test_loss == pytest.approx(statistics.mean(summary["test_loss"] for summary in summaries))


def test_the_table_shows_the_summary(real, tmp_path):
    page = read(real, out=tmp_path)
    largest = max(row.bytes for row in results.summarise(real))
    assert 1e3 < largest < 1e6
    assert "sent per node (kB)" in page.cells
    for row in results.summarise(real):
        title, share, accuracy, spread, common, sent, ratio, *_ = page.row(row.title)
        assert (title, share) == (row.title, f"{row.shared:.1%}")
        assert accuracy == f"{100 * row.value:.2f} ± {100 * row.error:.2f}"
        assert (spread, common) == (f"{100 * row.spread:.2f}", f"{100 * row.mean_model:.2f}")
        assert (sent, ratio) == (f"{row.bytes / 1000:.2f}", f"{row.bytes_ratio:.3f}")


def test_curves_hold_means_bands_and_costs(real, tmp_path):
    by_round, by_bytes, by_time, loss, _, _ = read(real, out=tmp_path).specs
    for spec, key, unit in ((by_round, "round", 1), (by_bytes, "bytes", 1000), (loss, "round", 1)):
        band, common, line = spec["data"][1], *spec["data"][5:7]  # bands lie below lines
        assert (band["meta"], line["meta"], line["name"]) == (1, 1, "cesar-random-0.3")
        assert (common["meta"], common["name"]) == (1, "cesar-random-0.3, mean of all models")
        assert (common["line"]["dash"], "dash" in line["line"]) == ("dash", False)
        steps = [table(real / line["name"] / f"seed-{k}" / "metrics.csv") for k in (1, 2)]
        metric, size = ("test_loss", 1) if spec is loss else ("accuracy", 0.01)
        pairs = list(zip(*steps, strict=True))
        assert line["x"] == pytest.approx(
            [statistics.mean(s[key] for s in pair) / unit for pair in pairs], rel=1e-5
        )
        means = [statistics.mean(s[metric] for s in pair) / size for pair in pairs]
        assert line["y"] == pytest.approx(means, rel=1e-5)
        spreads = [statistics.mean(s[f"{metric}_spread"] for s in pair) / size for pair in pairs]
        upper = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        lower = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        commons = [statistics.mean(s[f"mean_model_{metric}"] for s in pair) / size for pair in pairs]
        assert common["y"] == pytest.approx(commons, rel=1e-5)
        assert band["y"] == pytest.approx([*upper, *reversed(lower)], rel=1e-5)
    timing = [table(real / "dpsgd-full" / f"seed-{k}" / "timing.csv") for k in (1, 2)]
    spent = [
        statistics.mean(sum(r["training"] + r["protocol"] for r in t[:n]) for t in timing) for n in (2, 4)
    ]
    assert by_time["data"][4]["x"] == pytest.approx(spent, rel=1e-5)


def test_older_runs_have_bands_of_the_standard_error(tmp_path):
    page = read(invent(tmp_path / "out", SETTINGS), out=tmp_path)
    band, line = page.specs[0]["data"][0], page.specs[0]["data"][3]
    error = statistics.stdev([51.0, 52.0]) / 2**0.5
    assert line["y"] == pytest.approx([51.5] * 4)
    assert band["y"] == pytest.approx([51.5 + error] * 4 + [51.5 - error] * 4)
    assert "mean of all models" not in page.text.replace("mean of all models (points)", "")
    assert "Band: one standard error over seeds." in page.text


@pytest.fixture(scope="module")
def settled(tmp_path_factory):
    """Two seeds that train for four rounds and settle for up to three; one comes to its end sooner."""
    out = tmp_path_factory.mktemp("lab") / "settled"
    methods = [{"name": "dpsgd", "label": "full"}, {"name": "secagg", "label": "<secure>"}]
    run.execute(config.parse({**SETTINGS, "settle_rounds": 3, "method": methods}), out)
    return out


def test_settling_rounds_are_marked_and_tabled(settled, tmp_path):
    page = read(settled, out=tmp_path)
    by_round, by_settling, *_ = page.specs
    (area,) = by_round["layout"]["shapes"]
    assert (area["x0"], area["x1"]) == (4, 7)
    seeds = [table(settled / "full" / f"seed-{k}" / "metrics.csv") for k in (1, 2)]
    sent = [statistics.mean(rows[n]["bytes"] - rows[1]["bytes"] for rows in seeds) for n in range(1, 5)]
    full, secure = results.summarise(settled)
    assert (full.settle_rounds, full.round_, full.settle_bytes) == (3, 4, pytest.approx(sent[-1]))
    (word,) = by_round["layout"]["annotations"]
    low, high = sorted((full.settle_bytes, secure.settle_bytes))
    words = word["text"].removeprefix("grey: ")
    assert words == f"3 settling rounds, {low / 1000:.0f} to {high / 1000:.0f} kB per node"
    assert f"In all: {words}." in page.text
    lines = {trace["name"]: trace for trace in by_settling["data"] if "name" in trace}
    values = [statistics.mean(rows[n]["accuracy"] for rows in seeds) for n in range(1, 5)]
    assert lines["full"]["x"] == [0, 1, 2, 3]
    assert lines["full"]["y"] == pytest.approx([100 * value for value in values], rel=1e-5)
    assert full.before_settling == pytest.approx(values[0])
    cells = page.cells[page.cells.index("settling round") + 6 :]
    assert cells[0] == "full"
    assert [cells[7 * n] for n in range(4)] == ["full", "", "", ""]
    for n in range(4):
        steps = [rows[n + 1] for rows in seeds]
        spread, common = (
            statistics.mean(step[key] for step in steps) for key in ("accuracy_spread", "mean_model_accuracy")
        )
        distance = statistics.mean(step["distance"] for step in steps)
        expected = [f"{n}", *(f"{100 * value:.2f}" for value in (values[n], spread, common))]
        assert cells[7 * n + 1 : 7 * n + 7] == [*expected, f"{distance:.2e}", f"{sent[n] / 1000:.2f}"]


def test_seeds_that_settle_sooner_count_with_their_own_end(settled, tmp_path):
    copy = Path(shutil.copytree(settled, tmp_path / "copy"))
    for name in ("metrics", "ledger", "timing"):
        path = copy / "full" / "seed-1" / f"{name}.csv"
        write_table(path, table(path)[:-1])
    ends = [table(copy / "full" / f"seed-{k}" / "metrics.csv")[-1] for k in (1, 2)]
    assert [end["round"] for end in ends] == [6, 7]
    row = results.summarise(copy)[0]
    assert (row.settle_rounds, row.round_) == (2.5, 4)
    assert row.value == pytest.approx(statistics.mean(end["accuracy"] for end in ends))
    assert "2 to 3 settling rounds" in read(copy, out=tmp_path).text


def test_bars_add_up_to_what_is_sent_per_round(real, tmp_path):
    page = read(real, out=tmp_path)
    assert set(study.PARTS) == set(CATEGORIES)
    spec = next(spec for spec in page.specs if spec["data"][0]["type"] == "bar")
    for row in results.summarise(real):
        bars = [t["x"][0] for t in spec["data"] if t["type"] == "bar" and t["y"] == [row.title]]
        assert len(bars) == len(CATEGORIES)
        assert 1000 * sum(bars) == pytest.approx(row.bytes / row.rounds, rel=1e-4)


def test_the_page_needs_nothing_from_elsewhere(real, tmp_path):
    text = report.write_report([real], tmp_path / "page.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.addresses == []
    assert not {"link", "img", "iframe", "base"} & set(page.tags)
    assert "default-src 'none'" in text
    assert text.count("plotly.js v") == 1
    assert str(real.parent) not in text


def test_plotly_knows_every_attribute(real, tmp_path):
    for spec in read(real, out=tmp_path).specs:
        colours = re.sub(r'"css:\w+(/\w\w)?"', '"#123456"', json.dumps(spec))
        go.Figure(json.loads(colours))  # raises for a name or value that plotly does not have


def test_a_method_has_one_colour_everywhere(real, tmp_path):
    other = {
        **SETTINGS,
        "name": "Other",
        "method": [{"name": "secagg", "label": "secure"}, {"name": "dpsgd"}],
    }
    page = read(real, invent(tmp_path / "other", other), out=tmp_path)
    colours: dict[int, set[str]] = {}
    names: dict[str, set[int]] = {}
    for trace in (trace for spec in page.specs for trace in spec["data"] if "meta" in trace):
        shades = re.findall(r"css:(c\d)", json.dumps(trace))
        colours.setdefault(trace["meta"], set()).update(shades)
        if "name" in trace:
            title = trace["name"].removesuffix(", mean of all models")
            names.setdefault(title, set()).add(trace["meta"])
    assert names == {"dpsgd-full": {0}, "cesar-random-0.3": {1}, "secure": {2}}
    assert colours == {0: {"c0"}, 1: {"c1"}, 2: {"c2"}}
    assert len(page.specs) == 12
    assert page.addresses == ["#e0", "#e1"]


def test_one_seed_has_neither_band_nor_error(tmp_path):
    out = invent(tmp_path / "one", {**SETTINGS, "seeds": [7]})
    assert [row.error for row in results.summarise(out)] == [None] * 3
    page = read(out, out=tmp_path)
    assert "±" not in "".join(page.cells)
    assert not [trace for spec in page.specs for trace in spec["data"] if trace.get("fill")]


@pytest.mark.parametrize(
    "metrics, heading, plots", [(("rmse",), "RMSE by round", 6), ((), "Test loss by round", 5)]
)
def test_other_metrics(tmp_path, metrics, heading, plots):
    out = invent(tmp_path / "out", {**SETTINGS, "method": [{"name": "secagg"}]}, metrics=metrics)
    page = read(out, out=tmp_path)
    assert heading in page.text
    assert len(page.specs) == plots
    assert "of full D-PSGD" not in page.cells, "there is none to compare with"


def test_errors_have_a_spread_and_a_mean_model_too(tmp_path):
    names = ("rmse", "rmse_spread", "mean_model_rmse")
    page = read(invent(tmp_path / "out", SETTINGS, metrics=names), out=tmp_path)
    heads = page.cells[page.cells.index("shared") :][:4]
    assert heads == ["shared", "RMSE", "spread between nodes", "mean of all models"]
    assert page.row("secure")[2:5] == ["0.5150 ± 0.0050", "0.5150", "0.5150"]
    assert "nodes (RMSE)" in page.cells


def test_a_diverged_run_is_a_gap_not_a_broken_page(tmp_path):
    page = read(invent(tmp_path / "out", SETTINGS, value=float("nan")), out=tmp_path)
    line = next(trace for trace in page.specs[0]["data"] if "name" in trace)
    assert line["y"] == [None] * 4
    assert "nan" in page.row("secure")[2]


def test_everything_from_files_is_escaped(tmp_path):
    nasty = "<img src=x onerror=alert(1)> & %{x}"
    settings = {**SETTINGS, "name": "<script>1</script>", "method": [{"name": "dpsgd", "label": nasty}]}
    text = report.write_report([invent(tmp_path / "out", settings)], tmp_path / "p.html").read_text("utf-8")
    page = Page(text)
    assert "img" not in page.tags
    assert page.addresses == []
    assert page.tags.count("script") == 2 + len(page.specs)
    assert "u" not in page.tags
    assert "3.<u>" in page.text
    assert "DPSGD(<i>)" in page.text
    assert page.row(nasty)[0] == nasty
    assert page.specs[0]["data"][-1]["name"] == "&lt;img src=x onerror=alert(1)&gt; &amp; %{x}"


def test_a_method_is_judged_by_its_finished_seeds(copy, tmp_path):
    (copy / "secure" / "seed-2" / "summary.json").unlink()
    row = results.summarise(copy)[2]
    assert (row.seeds, row.seeds_finished, row.error) == (1, 1, None)
    assert row.value == table(copy / "secure" / "seed-1" / "metrics.csv")[-1]["accuracy"]
    assert "Not complete: secure, 1 of 2 seeds, 4 of 4 rounds." in read(copy, out=tmp_path).text


def test_while_nothing_is_finished_the_common_test_step_counts(copy, tmp_path):
    for seed in (1, 2):
        (copy / "secure" / f"seed-{seed}" / "summary.json").unlink()
    write_table(copy / "secure/seed-2/metrics.csv", table(copy / "secure/seed-2/metrics.csv")[:1])
    shutil.rmtree(copy / "cesar-random-0.3")
    full, secure = results.summarise(copy)
    assert (secure.round_, secure.seeds, secure.seeds_finished) == (2, 2, 0)
    assert secure.bytes < 0.6 * full.bytes
    assert secure.bytes_ratio == pytest.approx(1.0, abs=0.1)  # per round: half as many rounds do not matter
    page = read(copy, out=tmp_path)
    assert "Not complete: secure, 0 of 2 seeds, 2 of 4 rounds." in page.text
    assert "Not tested yet: cesar-random-0.3." in page.text


def test_a_test_step_that_is_being_written_does_not_count_yet(copy):
    path = copy / "secure" / "seed-1" / "timing.csv"
    write_table(path, table(path)[:3])
    (copy / "secure" / "seed-2" / "summary.json").unlink()
    (copy / "secure" / "seed-1" / "summary.json").unlink()
    assert results.summarise(copy)[2].round_ == 2


def test_the_configuration_can_be_run_again(real, tmp_path):
    experiment = run.read(real)
    text = report.experiment_file(experiment)
    assert config.parse(tomllib.loads(text)) == experiment
    page = read(real, out=tmp_path)
    assert all(line in page.text for line in text.splitlines())
    versions = json.loads((real / "secure" / "seed-1" / "versions.json").read_text())
    assert all(version in page.text for version in versions.values())


def test_the_graph_is_that_of_the_run(real, tmp_path):
    nodes = read(real, out=tmp_path).specs[-1]["data"][1]
    graph = run.graph_of(run.read(real), 1)(0)
    for node, hover in zip(nodes["text"], nodes["customdata"], strict=True):
        assert hover == "4 neighbours: " + ", ".join(map(str, sorted(graph[int(node)])))


def test_a_crowded_graph_is_thinned_out():
    lines, nodes = graph_figure(nx.complete_graph(450), "complete")["data"]
    assert len(lines["x"]) <= 3 * MOST_EDGES
    assert (len(nodes["x"]), nodes["mode"]) == (450, "markers")
    assert nodes["customdata"][0].endswith("12, …")


@pytest.mark.parametrize(
    "topology, words",
    [
        ({"kind": "ring", "nodes": 6}, "6 nodes on a ring graph"),
        ({"kind": "star", "nodes": 6}, "1 to 5 neighbours"),
        ({"nodes": 6, "degree": 4, "dynamic": True}, "Round 1 of seed 1; drawn anew every round"),
        ({"kind": "file", "nodes": 6, "path": "gone.txt"}, "No picture: there is no edge list gone.txt"),
    ],
)
def test_topologies_in_words(tmp_path, topology, words):
    assert words in read(invent(tmp_path / "out", {**SETTINGS, "topology": topology}), out=tmp_path).text


def test_crashes_and_matched_shares_are_mentioned(tmp_path):
    settings = {**SETTINGS, "faults": {"crash_rate": 0.1}, "match_share": True}
    text = read(invent(tmp_path / "out", settings), out=tmp_path).text
    assert "crashes with probability 0.1" in text
    assert "shares what CESAR was measured to share" in text


def test_a_folder_as_target_and_two_of_the_same_name(tmp_path):
    one, two = invent(tmp_path / "one", SETTINGS), invent(tmp_path / "two", SETTINGS)
    path = report.write_report([one, two], tmp_path)
    assert path == tmp_path / "report.html"
    assert "Tiny (one)" in Page(path.read_text("utf-8")).text


def test_directories_that_are_no_experiments(tmp_path):
    with pytest.raises(DataError, match="at least one"):
        report.write_report([], tmp_path / "p.html")
    for path in (tmp_path, tmp_path / "absent", Path(__file__)):
        with pytest.raises(DataError, match=r"no experiment\.json"):
            results.summarise(path)
    for text in ("{", "[1]", '{"rounds": "many"}', '{"name": 3}'):
        (tmp_path / "experiment.json").write_text(text)
        with pytest.raises(DataError, match="cannot be read"):
            report.write_report([tmp_path], tmp_path / "p.html")
    assert not (tmp_path / "p.html").exists()


def test_damaged_and_missing_results(copy):
    for name, text, words in (
        ("metrics.csv", "round,bytes\n4,none\n", "damaged"),
        ("metrics.csv", "round,bytes\n4\n", "damaged"),
        ("metrics.csv", "round,bytes\n4,1\n", "no column"),
        ("summary.json", "{", "damaged"),
    ):
        path = copy / "secure" / "seed-1" / name
        before = path.read_text()
        path.write_text(text)
        with pytest.raises(DataError, match=words):
            results.summarise(copy)
        path.write_text(before)
    for folder in copy.glob("*/seed-*"):
        (folder / "metrics.csv").unlink()
    with pytest.raises(DataError, match="no test step yet; the first comes after 2 rounds"):
        results.summarise(copy)


def test_seeds_without_a_common_test_step(copy):
    for seed, keep in ((1, slice(0, 1)), (2, slice(1, 2))):
        path = copy / "secure" / f"seed-{seed}" / "metrics.csv"
        write_table(path, table(path)[keep])
    with pytest.raises(DataError, match="no test step in common"):
        results.summarise(copy)


def traces(figure: dict[str, Any], name: str) -> int:
    return sum(classes.split()[:2] == ["trace", name] for classes in figure["classes"])


def test_a_browser_draws_every_plot(real, tmp_path):
    nasty = {**SETTINGS, "method": [{"name": "dpsgd", "label": "<b onclick=x>&amp; %{x}"}]}
    page = report.write_report([real, invent(tmp_path / "nasty", nasty)], tmp_path / "page.html")
    dom = browse(page, tmp_path, screen(dark=False))
    figures = Page(dom).figures
    assert [figure["state"] for figure in figures] == ["drawn"] * 12
    for figure in figures:
        assert any("main-svg" in classes for classes in figure["classes"])
        drawn = traces(figure, "scatter") + traces(figure, "bars")
        assert drawn == len(figure["spec"]["data"])
    assert [traces(figure, "bars") for figure in figures[4::6]] == [12, 4]
    assert sum(classes.split()[:1] == ["point"] for classes in figures[5]["classes"]) == 6  # the nodes
    assert "could not be drawn" not in Page(dom).text
    assert "&lt;b onclick=x&gt;&amp;amp; %{x}" in dom
    assert "cloud" not in " ".join(classes for figure in figures for classes in figure["classes"])
    assert "rgb(15, 76, 142)" in dom  # the light screen's first colour


def test_a_click_hides_a_method_in_all_plots_of_a_dark_page(real, tmp_path):
    page = report.write_report([real], tmp_path / "page.html")
    click = "<script>document.querySelector('[data-method=\"1\"]').click()</script></body>"
    page.write_text(page.read_text("utf-8").replace("</body>", click), "utf-8")
    dom = browse(page, tmp_path, screen(dark=True))
    figures = Page(dom).figures
    assert [traces(figure, "scatter") for figure in figures] == [6, 6, 6, 6, 2, 2]
    assert traces(figures[4], "bars") == 8
    assert "rgb(40, 128, 219)" in dom  # the dark screen's first colour
    assert "rgb(228, 99, 17)" not in dom  # and the second is hidden
