"""Every reproduction runs at the smoke scale, its page is drawn by a real browser, and the document says what was measured."""

from __future__ import annotations

import csv
import dataclasses
import json
import pkgutil
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cesar.cli.reproduce import app
from cesar.errors import ConfigError, DataError
from cesar.experiment import run
from cesar.experiment.paired import Difference
from cesar.reproduce import document, figures, running
from cesar.reproduce.catalogue import CATALOGUE, find
from cesar.reproduce.compare import equal, no_worse
from cesar.reproduce.figures import degree
from cesar.reproduce.figures.settings import TABLE_III
from cesar.reproduce.outcomes import read, read_all, read_shorter
from cesar.reproduce.tables import Scale, check_scale
from support.browser import browse


@pytest.fixture(scope="module")
def smoke(tmp_path_factory) -> Path:
    """All of them, one seed each."""
    out = tmp_path_factory.mktemp("smoke")
    for of in CATALOGUE.values():
        running.reproduce(of, Scale.SMOKE, out, seeds=1)
    return out


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_every_one_is_a_command_that_says_where_it_stands_in_the_paper():
    helps = {command.name: command.help for command in app.registered_commands}
    assert [name for name in helps if name in CATALOGUE] == list(CATALOGUE)
    assert helps["collusion"] == "Fig. 5b: the risk of collusion."
    assert helps["ring"] == "Not in the paper: how wide a ring."
    with pytest.raises(ConfigError, match="choose one of"):
        find("setting")
    with pytest.raises(ConfigError, match="smoke, small, medium, paper"):
        check_scale("large")


def test_every_figure_has_a_module_in_the_catalogue():
    """A module that is written and not listed would be forgotten."""
    written = {module.name for module in pkgutil.iter_modules(figures.__path__)}
    assert written == {name.partition("-")[0] for name in CATALOGUE}


def test_every_scale_can_be_built():
    """Methods fit their graphs and shares are known; CIFAR-10 has the paper's settings."""
    for of in CATALOGUE.values():
        for scale in Scale:
            for experiment in of.parts(scale).values():
                for method in experiment.method:
                    method.build(experiment.topology.degree, 0.3)
    one = find("settings").parts(Scale.PAPER)["topk-3-50"]
    assert (one.rounds, one.topology.nodes, one.topology.degree, len(one.seeds)) == (12_000, 48, 3, 5)
    assert (one.training.learning_rate, one.training.batch_size, one.training.steps_per_round) == (0.01, 8, 6)
    assert one.evaluation.test_samples is None


def test_the_medium_scale_has_the_papers_degrees_and_steps():
    one = find("settings").parts(Scale.MEDIUM)["topk-3-50"]
    assert (one.rounds, one.topology.nodes, one.topology.degree, one.seeds) == (300, 32, 3, (1, 2, 3))
    assert (one.training.learning_rate, one.training.batch_size, one.training.steps_per_round) == (0.05, 8, 6)
    assert (one.settle_rounds, one.settle_share) == (8, 0.3)
    assert [one.test_samples(done) for done in (50, 300, 301, 308)] == [2000, None, 2000, None]
    faults = {part: e.faults for part, e in find("dropouts").parts(Scale.MEDIUM).items()}
    assert [f.calm_tests for f in faults.values()] == [False, True, True]


def written(difference: float) -> str:
    return f"{difference:+.2f}".replace("-", "−")


def test_groups_are_settled_and_compared_under_one_rule(smoke):
    """The claims' figures against the runs' own tables; both partitions have the same methods."""
    shards, iid = (experiment.method for experiment in find("groups").parts(Scale.MEDIUM).values())
    assert shards == iid
    found = read(smoke / "groups")
    _, rule, _, settled, ahead, memory = (claim.check(found).ours for claim in found.of.claims)

    def end(part: str, method: str) -> dict[str, str]:
        return table(smoke / "groups" / part / method / "seed-1" / "metrics.csv")[-1]

    few, full = (end("shards", m) for m in ("groups-of-2-topk-5-memory", "d-psgd-everything"))
    assert few["round"] == full["round"] == "6"
    gap = 100 * (float(few["accuracy"]) - float(full["accuracy"]))
    assert f"shards, both settled {written(gap)} (one seed); iid" in settled
    whole = table(smoke / "groups/shards/d-psgd-everything/seed-1/metrics.csv")
    (trained,) = (row for row in whole if row["round"] == "4")
    assert (
        f"shards {written(100 * (float(few['accuracy']) - float(trained['accuracy'])))} (one seed)" in ahead
    )
    best = max(float(row["accuracy"]) for row in whole if int(row["round"]) <= 4)
    assert found.rows["shards"]["D-PSGD, everything"].best == pytest.approx(best)
    ours, plain = (
        next(row for row in table(smoke / "groups/iid" / m / "seed-1/metrics.csv") if row["round"] == "4")
        for m in ("cesar-random-30", "d-psgd-random-30-arrived")
    )
    gap = 100 * (float(ours["accuracy"]) - float(plain["accuracy"]))
    assert f"iid, random {written(gap)} (one seed)" in rule, "at the end of training, before settling"
    assert "with minus without" in memory
    (differences,) = (pair for pair in found.pairs if pair.title.startswith("Paired"))
    (row,) = (row for row in differences.rows if row[0] == "iid" and row[1].endswith("random 30 %, arrived"))
    assert row[1:] == (
        "CESAR, random 30 % − D-PSGD, random 30 %, arrived",
        f"{written(gap)} (one seed)",
        *row[3:],
    )
    assert len({(row[0], row[1]) for row in differences.rows}) == len(differences.rows) == 2 * 15


def test_low_shares_are_set_against_full_sharing_after_settling(smoke):
    shards, iid = find("shares").parts(Scale.MEDIUM).values()
    assert shards.method == iid.method
    assert len({method.folder for method in shards.method}) == 1 + 3 * 7
    found = read(smoke / "shares")
    (claim,) = found.of.claims
    ends = {
        m: float(table(smoke / "shares/iid" / m / "seed-1/metrics.csv")[-1]["accuracy"])
        for m in ("cesar-topk-5-memory", "d-psgd-everything")
    }
    gap = 100 * (ends["cesar-topk-5-memory"] - ends["d-psgd-everything"])
    assert f"iid, CESAR at 5 % {written(gap)} (one seed)" in claim.check(found).ours


def test_what_was_not_run_is_listed(smoke, tmp_path):
    """Parts, and methods of parts that others were run of."""
    assert not read(smoke / "shares").missing
    copy = Path(shutil.copytree(smoke / "shares", tmp_path / "shares"))
    shutil.rmtree(copy / "shards")
    shutil.rmtree(copy / "iid" / "cesar-topk-5")
    shutil.rmtree(copy / "iid" / "d-psgd-topk-5-memory")
    assert read(copy).missing == ["shards", "iid (CESAR, TopK 5 % · D-PSGD, TopK 5 %, memory)"]


def test_shorter_runs_speak_until_the_claims_own_are_there(smoke, tmp_path):
    kept = Path(__file__).parents[2] / "docs" / "results"
    assert "memory" in read_shorter([kept])
    ends = [
        [
            float(table(kept / "memory" / m / f"seed-{seed}" / "metrics.csv")[-1]["accuracy"])
            for seed in (1, 2, 3)
        ]
        for m in ("with-memory", "without")
    ]
    gap = 100 * np.mean(np.subtract(*ends))
    others = [one for one in read_all([smoke]) if one.of.name != "groups"]
    text = document.write_document(others, read_shorter([kept]), tmp_path / "results.md").read_text()
    (line,) = (line for line in text.splitlines() if "**TopK with memory of what was sent" in line)
    assert f"in 120 rounds, with memory minus without {written(gap)} (" in line
    assert "learns no less: holds" in line
    whole = document.write_document(
        read_all([smoke]), read_shorter([kept]), tmp_path / "whole.md"
    ).read_text()
    assert "with memory minus without" not in whole, "smoke or not, the claim's own runs come first"


def difference(mean: float, margin: float | None) -> Difference:
    return Difference(mean=mean, error=margin, margin=margin, seeds=3)


@pytest.mark.parametrize(
    ("found", "same", "no_less"),
    [
        ([difference(0.002, 0.003)], "holds", "holds"),
        ([difference(0.002, 0.003), difference(-0.02, 0.005)], "does not hold", "does not hold"),
        ([difference(0.03, 0.005)], "does not hold", "holds"),
        ([difference(0.03, 0.05)], "cannot be decided here", "cannot be decided here"),
        ([difference(0.0, None)], "cannot be decided here", "cannot be decided here"),
        ([difference(0.0, 0.001), None], "cannot be decided here", "cannot be decided here"),
    ],
)
def test_a_verdict_needs_the_whole_interval(found, same, no_less):
    """Within a point, interval included; a single seed decides nothing."""
    assert (equal(found), no_worse(found)) == (same, no_less)


def test_accuracies_of_another_size_do_not_stand_beside_the_papers(smoke):
    accuracy = next(pair for pair in read(smoke / "settings").pairs if pair.title.startswith("Accuracy"))
    assert "paper" not in accuracy.heads
    assert {len(row) for row in accuracy.rows} == {len(accuracy.heads)}


def test_what_is_kept_writes_the_same_document(smoke, tmp_path):
    """Tables alone, without models: the repository holds these."""
    count = document.keep([smoke], tmp_path / "results")
    kept = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert {path.suffix for path in kept} == {".csv", ".json"}
    assert len(kept) == count
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    document.write_document(read_all([smoke]), {}, tmp_path / "a" / "results.md")
    document.write_document(read_all([tmp_path / "results"]), {}, tmp_path / "b" / "results.md")
    written = [sorted(p.relative_to(tmp_path / x) for p in (tmp_path / x).rglob("*.*")) for x in "ab"]
    assert written[0] == written[1]
    assert len(written[0]) == 5, "the document and four plots"
    for name in written[0]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_papers_figures_agree_with_its_text():
    """Section IV-B2: overheads of 12 to 35 % and 7 to 11 %; accuracies up to 0.46 lower and 0.30 higher."""
    for kind, low, high in (("topk", 12, 35), ("random", 7, 11)):
        more = [100 * (s.ratio - 1) for name, s in TABLE_III.items() if name.startswith(kind)]
        assert (round(min(more)), round(max(more))) == (low, high)
    gaps = [s.accuracy[0] - s.accuracy[1] for s in TABLE_III.values()]
    assert (round(min(gaps), 2), round(max(gaps), 2)) == (-0.46, 0.3)
    per_neighbour = [total / size for total, size in degree.PAPER.values()]
    assert max(per_neighbour) / min(per_neighbour) < 1.05


def test_bytes_are_those_of_the_counts(smoke):
    """The table against sums over the file, written here once more."""
    rows = table(smoke / "settings" / "bytes.csv")
    assert len(rows) == 8 * 2 * 2 * 2  # settings, exchanges, methods, rounds
    parts = ("coordination", "values", "metadata", "control")

    def sent(method: str, exchange: str) -> float:
        chosen = [r for r in rows if (r["label"], r["method"], r["paper"]) == ("topk-6-30", method, exchange)]
        return sum(float(r[p]) for r in chosen for p in parts) / len(chosen)

    pair = read(smoke / "settings").pairs[0]
    line = next(row for row in pair.rows if row[0] == "topk-6-30")
    assert f"/ {sent('cesar', 'True') / sent('dpsgd', 'True'):.3f} (" in line[4]
    assert line[6] == f"{sent('cesar', 'False') / sent('dpsgd', 'False'):.3f}"
    assert sent("cesar", "False") < sent("cesar", "True")


def test_coordination_goes_with_view2(smoke):
    rows = [
        r for r in table(smoke / "degree" / "bytes.csv") if (r["method"], r["paper"]) == ("cesar", "True")
    ]
    each = [float(r["coordination"]) / float(r["view2"]) for r in rows]
    assert max(each) / min(each) < 1.1


def test_the_approaches_are_measured_and_attacked(smoke):
    found = read(smoke / "approaches")
    accuracy, areas = found.pairs
    titles = [row[1] for row in accuracy.rows]
    assert len(titles) == 11
    assert any("noise" in title for title in titles)
    megabytes = accuracy.heads.index("MB per node")
    sent = {row[1]: float(row[megabytes]) for row in accuracy.rows}
    full, noise = sent["D-PSGD, everything"], sent["D-PSGD, noise 0.05 and 5 gossip steps"]
    assert noise == pytest.approx(5 * full, rel=0.02)
    assert sent["CESAR"] < 0.5 * full
    assert [row[0] for row in areas.rows] == titles
    rows = {row[0]: row for row in areas.rows}
    recovered = {title: row[3] for title, row in rows.items()}
    assert rows["D-PSGD, everything"][2] == rows["D-PSGD, everything"][4], (
        "a neighbour holds the model itself"
    )
    assert recovered["D-PSGD, everything"] == "100%"
    assert {recovered[f"groups of {m}"] for m in (2, 3)} == {"0%"}, "a group's members are not told apart"


def test_overlapping_runs_are_copied(smoke, tmp_path):
    """s = 1 of one figure is a line of another, and comes out the same."""
    pair = [
        smoke / name / part / "cesar" / "seed-1"
        for name, part in (("masking", "topk"), ("settings", "topk-6-30"))
    ]
    assert len({(folder / "metrics.csv").read_bytes() for folder in pair}) == 1
    assert (
        len({(folder / "timing.csv").read_bytes() for folder in pair}) == 1
    )  # a second run would take another time
    experiment = find("masking").parts(Scale.SMOKE, 1)["topk"]
    other = experiment.model_copy(update={"rounds": experiment.rounds + 1})
    assert running.adopt(other, tmp_path / "new", smoke) == 0
    assert running.adopt(experiment, tmp_path / "new", smoke) == len(experiment.method)
    methods = tuple(m.model_copy(update={"label": f"{m.title}, again"}) for m in experiment.method)
    renamed = experiment.model_copy(update={"method": methods})
    assert running.adopt(renamed, tmp_path / "renamed", smoke) == len(methods), "names do not matter"
    summaries = (tmp_path / "renamed").glob("*/seed-1/summary.json")
    assert {json.loads(path.read_text())["title"] for path in summaries} == {m.title for m in methods}


def test_figures_share_their_medium_runs():
    """Hours are spent once: what other figures train at degree 6 and 30 % is among the runs of `groups`."""
    shards, iid = find("groups").parts(Scale.MEDIUM).values()
    for name, part, whole in (
        ("settings", "topk-6-30", iid),
        ("settings", "random-6-30", shards),
        ("datasets-random", "cifar10", shards),
        ("dropouts", "0-percent", iid),
        ("subsampling", "cifar10", shards),
    ):
        one = find(name).parts(Scale.MEDIUM)[part]
        assert running._alike(one, whole), name
        assert all(running._twin(method, one, whole) for method in one.method), name


def test_other_settings_do_not_mix(smoke):
    with pytest.raises(ConfigError, match="choose another --out"):
        running.reproduce(find("nodes"), Scale.SMOKE, smoke, seeds=2)
    with pytest.raises(DataError, match="nothing here"):
        read_all([smoke / "nodes"])
    with pytest.raises(ConfigError, match=r"reproduce\.json"):
        read(smoke)


def test_damaged_results_are_named(smoke, tmp_path):
    for name, file in (("collusion", "collusion.json"), ("nodes", "bytes.csv")):
        copy = Path(shutil.copytree(smoke / name, tmp_path / name))
        (copy / file).write_text("label,paper\nx,True\n")
        with pytest.raises(DataError, match=file):
            read(copy)


def test_the_document_has_claims_and_tables(smoke, tmp_path):
    found = read_all([smoke])
    text = document.write_document(found, {}, tmp_path / "results.md").read_text()
    for name in CATALOGUE:
        assert f"\n## {name}\n" in text
    for claim in (
        "Matches the accuracy",
        "66.7 %",
        "Sends little more",
        "Dropouts",
        "follows View2",
        "16 bits learn as much",
    ):
        assert claim in text
    assert "not measured" not in text
    assert text.count("**does not hold**") >= 2, "collusion, and CESAR over many rounds"
    shutil.rmtree(tmp_path / "part", ignore_errors=True)
    part = Path(shutil.copytree(smoke / "masking", tmp_path / "part" / "masking"))
    shutil.rmtree(part / "random")
    text = document.write_document(read_all([part.parent]), {}, tmp_path / "part.md").read_text()
    assert "Not run: random." in text
    assert "not measured.** `cesar reproduce ring`" in text


def test_a_browser_draws_every_plot(smoke, tmp_path):
    found = read_all([smoke])
    page = document.write_report(found, tmp_path / "report.html")
    shown = browse(page, tmp_path)
    states = re.findall(r'<figure[^>]*data-state="(\w+)"', shown)
    assert states == ["drawn"] * sum(len(one.pairs) for one in found)
    for name in CATALOGUE:
        assert f'<section id="{name}">' in shown


class Stop:
    """Ends a run in its fifth round, as a power cut would."""

    def __init__(self) -> None:
        self.rounds = 0

    def started(self, title, seed, rounds, done):
        self.rounds = done

    def round_done(self, record, sent):
        self.rounds += 1
        if self.rounds == 5:
            raise KeyboardInterrupt

    def tested(self, row): ...

    def finished(self, summary): ...


def test_the_papers_scale_resumes(tmp_path, monkeypatch):
    """The paper's own configuration, but on digits, with few rounds, and tested only at the end."""
    whole = find("dropouts")

    def cut_down(scale):
        tables = whole.experiments(scale)["10-percent"]
        assert tables["rounds"] == 12_000
        small = {
            "rounds": 8,
            "data": {"dataset": "digits", "test_limit": 50},
            "model": {"name": "digits-mlp"},
        }
        return {"10-percent": {**tables, **small, "method": tables["method"][:1]}}

    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    cut = dataclasses.replace(whole, experiments=cut_down, counting=lambda _: None)
    with pytest.raises(KeyboardInterrupt):
        running.reproduce(cut, Scale.PAPER, tmp_path / "cut", seeds=1, observers=[Stop()])
    (folder,) = (tmp_path / "cut" / "dropouts" / "10-percent").glob("*/seed-1")
    assert (folder / "checkpoint.safetensors").exists()
    assert not (folder / "summary.json").exists()
    running.reproduce(cut, Scale.PAPER, tmp_path / "cut", seeds=1)
    running.reproduce(cut, Scale.PAPER, tmp_path / "whole", seeds=1)
    (straight,) = (tmp_path / "whole" / "dropouts" / "10-percent").glob("*/seed-1")
    for name in ("metrics.csv", "ledger.csv"):
        assert (folder / name).read_bytes() == (straight / name).read_bytes()
    assert len(table(folder / "ledger.csv")) == 8
    assert json.loads((folder / "summary.json").read_text())["nodes"] == 48
