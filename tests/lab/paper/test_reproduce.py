"""Every reproduction runs at the smoke scale, its page is drawn by a real browser, and the document says what was measured."""

from __future__ import annotations

import csv
import dataclasses
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from cesar.base.errors import ConfigError, DataError
from cesar.cli.root import app as root
from cesar_lab.cli.reproduce import app
from cesar_lab.paper import catalogue, document, running
from cesar_lab.paper.catalogue import CATALOGUE, Claim, Scale, check_scale, find
from cesar_lab.paper.outcome import gap, read, read_all, read_shorter
from cesar_lab.paper.verdicts import RULES, Verdict, compare, judge_all
from cesar_lab.run import execute as run
from cesar_lab.show.paired import Difference
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
    assert app in [group.typer_instance for group in root.registered_groups]
    helps = {command.name: command.help for command in app.registered_commands}
    assert [name for name in helps if name in CATALOGUE] == list(CATALOGUE)
    assert helps["collusion"] == "Fig. 5b: the risk of collusion."
    assert helps["ring"] == "Not in the paper: how wide a ring."
    with pytest.raises(ConfigError, match="choose one of"):
        find("setting")
    with pytest.raises(ConfigError, match="smoke, small, medium, paper"):
        check_scale("large")


def test_every_file_is_complete():
    """A claim names a rule that there is, and compares methods that are run; every scale has its time."""
    for of in CATALOGUE.values():
        planned = {
            m["label"] for scale in Scale for part in of.experiments(scale).values() for m in part["method"]
        }
        assert of.claims
        assert set(of.takes) == set(of.needs) == set(Scale)
        for claim in of.claims:
            assert claim.decide in RULES
            named = [title for one, other, _ in claim.rule.get("compare", ()) for title in (one, other)]
            named += claim.rule.get("methods", ())
            named += [title for pair in of.compared for title in pair]
            assert {title for title in named if "*" not in title} <= planned, of.name


def test_celeba_is_iid_in_one_figure_and_not_in_the_other():
    """Section IV-B1."""
    spread = [
        find(f"datasets-{kind}").parts(Scale.PAPER)["celeba"].data.partition for kind in ("random", "topk")
    ]
    assert spread == ["iid", "user"]


def test_every_scale_can_be_built():
    """Methods fit their graphs and shares are known; CIFAR-10 has the paper's settings."""
    for of in CATALOGUE.values():
        for scale in Scale:
            for experiment in of.parts(scale).values():
                for method in experiment.method:
                    if method.name == "cells":
                        assert method.cells().plan(experiment.topology.nodes).cells
                    else:
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


def test_rules_of_averaging_are_compared_at_the_end_of_training(smoke):
    """The claims' figures against the runs' own tables; both partitions have the same methods."""
    shards, iid = (experiment.method for experiment in find("averaging").parts(Scale.MEDIUM).values())
    assert shards == iid
    found = read(smoke / "averaging")
    _, rule = (RULES[claim.decide](found, claim).ours for claim in found.of.claims)
    whole = table(smoke / "averaging/shards/d-psgd-everything/seed-1/metrics.csv")
    best = max(float(row["accuracy"]) for row in whole if int(row["round"]) <= 4)
    assert found.rows["shards"]["D-PSGD, everything"].best == pytest.approx(best)
    ours, plain = (
        next(row for row in table(smoke / "averaging/iid" / m / "seed-1/metrics.csv") if row["round"] == "4")
        for m in ("cesar-random-30", "d-psgd-random-30-arrived")
    )
    gap = 100 * (float(ours["accuracy"]) - float(plain["accuracy"]))
    assert f"iid, random {written(gap)} (one seed)" in rule, "at the end of training, before settling"
    (differences,) = (table for chart, table in found.shown if chart.title.startswith("Paired"))
    (row,) = (row for row in differences.rows if row[0] == "iid" and row[1].endswith("random 30 %, arrived"))
    assert row[1:] == (
        "CESAR, random 30 % − D-PSGD, random 30 %, arrived",
        f"{written(gap)} (one seed)",
        *row[3:],
    )
    assert len({(row[0], row[1]) for row in differences.rows}) == len(differences.rows) == 2 * 5


def test_low_shares_are_set_against_full_sharing_after_settling(smoke):
    shards, iid = find("shares").parts(Scale.MEDIUM).values()
    assert shards.method == iid.method
    assert len({method.folder for method in shards.method}) == 1 + 3 * 4
    found = read(smoke / "shares")
    (claim,) = found.of.claims
    ends = {
        m: float(table(smoke / "shares/iid" / m / "seed-1/metrics.csv")[-1]["accuracy"])
        for m in ("cesar-topk-5-memory", "d-psgd-everything")
    }
    gap = 100 * (ends["cesar-topk-5-memory"] - ends["d-psgd-everything"])
    assert f"iid, CESAR at 5 % {written(gap)} (one seed)" in RULES[claim.decide](found, claim).ours


def test_what_was_not_run_is_listed(smoke, tmp_path):
    """Parts, and methods of parts that others were run of."""
    assert not read(smoke / "shares").missing
    copy = Path(shutil.copytree(smoke / "shares", tmp_path / "shares"))
    shutil.rmtree(copy / "shards")
    shutil.rmtree(copy / "iid" / "cesar-topk-5")
    shutil.rmtree(copy / "iid" / "d-psgd-topk-5-memory")
    assert read(copy).missing == ["shards", "iid (CESAR, TopK 5 % · D-PSGD, TopK 5 %, memory)"]


def test_shorter_runs_speak_until_the_claims_own_are_there(smoke, tmp_path):
    kept = Path(__file__).parents[3] / "docs" / "results"
    assert "rules" in read_shorter([kept])
    ends = [
        [
            float(table(kept / "rules" / m / f"seed-{seed}" / "metrics.csv")[-1]["accuracy"])
            for seed in (1, 2, 3)
        ]
        for m in ("cesar-arrived", "d-psgd-arrived")
    ]
    gap = 100 * np.mean(np.subtract(*ends))
    others = [one for one in read_all([smoke]) if one.of.name != "averaging"]
    text = document.write_document(others, read_shorter([kept]), tmp_path / "results.md").read_text()
    assert (
        f'`rules` (60 rounds), in points of accuracy: "CESAR, arrived" minus "D-PSGD, arrived" {written(gap)} ('
        in text
    )
    whole = document.write_document(
        read_all([smoke]), read_shorter([kept]), tmp_path / "whole.md"
    ).read_text()
    assert '"CESAR, arrived" minus "D-PSGD, arrived"' not in whole, (
        "smoke or not, the claim's own runs come first"
    )


def test_methods_are_compared_where_both_have_sent_as_much():
    """The kept run, read here once more: CESAR's last test within a part of its bytes, the other's next one."""
    kept = Path(__file__).parents[3] / "docs" / "results"
    (judged,) = (one for one in judge_all([], read_shorter([kept])) if one.claim.decide == "same bytes")
    assert judged.found.verdict in set(Verdict) - {Verdict.MISSING}
    for method in ("secure-aggregation", "d-psgd-everything"):
        gaps = []
        for seed in range(1, 6):
            one, other = (
                [
                    (float(row["bytes"]), float(row["accuracy"]))
                    for row in table(kept / "budget-digits" / m / f"seed-{seed}" / "metrics.csv")
                ]
                for m in ("cesar", method)
            )
            sent, reached = max(step for step in one if step[0] <= 0.6 * one[-1][0])
            behind, theirs = min(step for step in other if step[0] >= sent)
            assert sent <= behind < one[-1][0]
            gaps.append(reached - theirs)
        name = {"secure-aggregation": "secure aggregation", "d-psgd-everything": "D-PSGD, everything"}[method]
        assert f'at 60 % "CESAR" minus "{name}" {written(100 * np.mean(gaps))} (' in judged.found.ours
    assert not judge_all([], {})[0].found.ours


def test_a_defence_is_judged_by_the_longest_window():
    """The kept attack of 20 rounds; against D-PSGD, which shows models, the same areas say the opposite."""
    found = read(Path(__file__).parents[3] / "docs" / "results" / "approaches")
    (claim,) = (claim for claim in found.of.claims if claim.decide == "defence")
    last = {one["title"]: one for one in found.saved["cifar10"]["windows"][-1]["methods"]}
    judged = RULES["defence"](found, claim)
    assert f"CESAR {last['CESAR']['auc_apart']:.3f}, secure aggregation" in judged.ours

    def verdict(**changes) -> str:
        return RULES["defence"](found, dataclasses.replace(claim, rule={**claim.rule, **changes})).verdict

    assert judged.verdict == verdict() == "refuted"
    assert verdict(other="D-PSGD, random 30%") == "confirmed"
    assert verdict(least=0.5) == "not decided"
    assert RULES["defence"](found, dataclasses.replace(claim, rule={**claim.rule, "other": "none"})) is None


def difference(mean: float, margin: float | None) -> Difference:
    return Difference(mean=mean, error=margin, margin=margin, seeds=3)


@pytest.mark.parametrize(
    ("found", "same", "no_less"),
    [
        ([(0.002, 0.003)], "confirmed", "confirmed"),
        ([(0.002, 0.003), (-0.02, 0.005)], "refuted", "refuted"),
        ([(0.03, 0.005)], "better than claimed", "confirmed"),
        ([(0.03, 0.005), (-0.03, 0.005)], "refuted", "refuted"),
        ([(0.03, 0.005), (0.0, 0.05)], "not decided", "not decided"),
        ([(0.012, 0.005)], "not decided", "confirmed"),
        ([(0.03, None)], "not decided", "not decided"),
        ([(0.03, 0.005), (-0.03, None), None], "better than claimed", "confirmed"),
    ],
)
def test_a_verdict_needs_the_whole_interval(found, same, no_less):
    """Within a point, interval included; a single seed decides nothing."""
    named = {f"part {k}": one and difference(*one) for k, one in enumerate(found)}
    verdicts = [compare(named, equal=equal) for equal in (True, False)]
    assert [one.verdict for one in verdicts] == [same, no_less]
    assert [bool(one.because) for one in verdicts] == [one.verdict is Verdict.OPEN for one in verdicts]


def test_who_has_the_lower_error_is_ahead(smoke):
    row = read(smoke / "ring").rows["cifar10"]["CESAR"]
    better, worse = (dataclasses.replace(row, metric="rmse", trained_by_seed={1: v}) for v in (0.8, 0.9))
    assert gap(better, worse, "trained").mean == pytest.approx(0.1)
    higher, lower = (dataclasses.replace(row, metric="accuracy", trained_by_seed={1: v}) for v in (0.9, 0.8))
    assert gap(higher, lower, "trained").mean == pytest.approx(0.1)


def test_bytes_are_judged_by_what_the_paper_prints(smoke):
    """Rules on bytes, with other figures printed."""
    found = read(smoke / "settings")

    def verdict(decide: str, **changes) -> str:
        (claim,) = (claim for claim in found.of.claims if claim.decide == decide)
        changed: Claim = dataclasses.replace(claim, rule={**claim.rule, **changes})
        return RULES[decide](found, changed).verdict

    assert [verdict("saving", printed=saved) for saved in (0.1, 0.99)] == ["better than claimed", "refuted"]
    limits = {"wide": [0, 1000], "low": [0, 0.001], "high": [1000, 2000]}
    judged = {
        name: verdict("overhead", printed=dict.fromkeys(("random", "topk"), limit))
        for name, limit in limits.items()
    }
    assert judged == {"wide": "confirmed", "low": "refuted", "high": "better than claimed"}
    assert verdict("gigabytes", within={"random": 1e9, "topk": 1e9}, ratio_within=1e9) == "confirmed"
    assert verdict("gigabytes", within={"random": 0, "topk": 0}) == "refuted"


def test_more_masks_are_judged_by_the_bytes_of_both(smoke):
    found = read(smoke / "masking")
    (claim,) = (claim for claim in found.of.claims if claim.decide == "by masks")
    rows = [
        r for r in table(smoke / "masking" / "bytes.csv") if (r["method"], r["paper"]) == ("cesar", "True")
    ]
    sent = {
        s: np.mean(
            [
                sum(float(r[p]) for p in ("coordination", "values", "metadata", "control"))
                for r in rows
                if r["label"] == f"topk, s = {s}"
            ]
        )
        for s in (1, 3)
    }
    more = 100 * (sent[3] / sent[1] - 1)
    judged = RULES["by masks"](found, claim)
    assert f"{more:+.1f} % bytes" in judged.ours
    exact = dataclasses.replace(claim, rule={**claim.rule, "printed": {"more": more}, "within": 0.1})
    assert RULES["by masks"](found, exact).verdict == "confirmed"
    far = dataclasses.replace(claim, rule={**claim.rule, "printed": {"more": more + 1}, "within": 0.1})
    assert RULES["by masks"](found, far).verdict == "refuted"


def test_time_is_judged_by_the_benchmarks_beside_the_document(smoke):
    """1.11 to 1.57 in the paper."""

    def verdict(**ratios: float) -> str:
        timed = {f"overhead-cesar-{name}": {"ratio_to_dpsgd": ratio} for name, ratio in ratios.items()}
        (found,) = (one for one in judge_all([], {}, timed) if one.claim.decide == "timed")
        return found.found.verdict

    assert verdict(random=1.2, topk=1.3) == "confirmed"
    assert verdict(random=1.2, topk=1.6) == "refuted"
    assert verdict(random=1.05) == "better than claimed"
    assert verdict() == "not run"


def test_shares_that_differ_are_named(smoke):
    """TopK of CESAR shares what unions have; D-PSGD shares what it was to."""
    found = read(smoke / "settings")
    (claim,) = (claim for claim in found.of.claims if claim.rule.get("shares"))
    line = found.rows["topk-6-30"]
    changed = {
        "topk-6-30": line | {"CESAR": dataclasses.replace(line["CESAR"], shared=0.5)},
    }
    told = RULES["equal"](dataclasses.replace(found, rows=changed), claim).ours
    assert "(topk-6-30: 50.00 % were shared, against" in told


def test_accuracies_of_another_size_do_not_stand_beside_the_papers(smoke):
    found = read(smoke / "settings")
    for scale in (Scale.SMOKE, Scale.PAPER):
        shown = dataclasses.replace(found, scale=scale).shown
        accuracy = next(table for chart, table in shown if chart.title.startswith("Accuracy"))
        assert ("paper" in accuracy.heads) == (scale is Scale.PAPER)
    known = {row[:2]: row[accuracy.heads.index("paper")] for row in accuracy.rows}
    assert known["topk-3-30", "CESAR"] == "71.88"
    assert known["random-6-50", "D-PSGD, random"] == "55.62"


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
    assert len(written[0]) == 6, "the document and five plots"
    for name in written[0]:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_the_papers_figures_agree_with_its_text():
    """Section IV-B2: overheads of 12 to 35 % and 7 to 11 %; accuracies up to 0.46 lower and 0.30 higher."""
    printed = find("settings").printed
    for kind, low, high in (("topk", 12, 35), ("random", 7, 11)):
        pairs = [line["gigabytes"] for name, line in printed.items() if name.startswith(kind)]
        more = [100 * (cesar / dpsgd - 1) for cesar, dpsgd in pairs]
        assert (round(min(more)), round(max(more))) == (low, high)
    gaps = [float(line["metric"]["CESAR*"]) - float(line["metric"]["D-PSGD*"]) for line in printed.values()]
    assert (round(min(gaps), 2), round(max(gaps), 2)) == (-0.46, 0.3)
    each = [line["coordination"] / line["view2"] for line in find("degree").printed.values()]
    assert max(each) / min(each) < 1.05


def test_bytes_are_those_of_the_counts(smoke):
    """The table against sums over the file, written here once more."""
    rows = table(smoke / "settings" / "bytes.csv")
    assert len(rows) == 8 * 2 * 2 * 2  # settings, exchanges, methods, rounds
    parts = ("coordination", "values", "metadata", "control")

    def sent(method: str, exchange: str) -> float:
        chosen = [r for r in rows if (r["label"], r["method"], r["paper"]) == ("topk-6-30", method, exchange)]
        return sum(float(r[p]) for r in chosen for p in parts) / len(chosen)

    _, shown = read(smoke / "settings").shown[0]
    line = next(row for row in shown.rows if row[0] == "topk-6-30")
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
    accuracy, areas = (table for _, table in found.shown)
    titles = [row[1] for row in accuracy.rows]
    assert len(titles) == 7
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
    """Hours are spent once: what other figures train at degree 6 and 30 % is among the runs of `averaging`."""
    shards, iid = find("averaging").parts(Scale.MEDIUM).values()
    for name, part, whole in (
        ("settings", "topk-6-30", iid),
        ("settings", "random-6-30", shards),
        ("datasets-random", "cifar10", shards),
        ("dropouts", "0-percent", iid),
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
    elsewhere = [
        c
        for of in CATALOGUE.values()
        for c in of.claims
        if c.rule.get("compare") == [] or c.decide in ("timed", "same bytes")
    ]
    assert text.count("**not run**") == len(elsewhere), "all others are decided by runs of their own"
    assert text.count("**refuted**") >= 2, "collusion, and CESAR over many rounds"
    assert "*Not decided:* there is one seed only." in text
    shutil.rmtree(tmp_path / "part", ignore_errors=True)
    part = Path(shutil.copytree(smoke / "masking", tmp_path / "part" / "masking"))
    shutil.rmtree(part / "random")
    text = document.write_document(read_all([part.parent]), {}, tmp_path / "part.md").read_text()
    assert "Not run: random." in text
    assert "not run.** `cesar reproduce ring`" in text
    judged = judge_all(read_all([part.parent]), {})
    assert [one.name for one in judged] == [name for name, of in CATALOGUE.items() for _ in of.claims]


def test_a_browser_draws_every_plot(smoke, tmp_path):
    found = read_all([smoke])
    page = document.write_report(found, {}, tmp_path / "report.html")
    shown = browse(page, tmp_path)
    states = re.findall(r'<figure[^>]*data-state="(\w+)"', shown)
    assert states == ["drawn"] * sum(len(one.shown) for one in found)
    for name in CATALOGUE:
        assert f'<section id="{name}">' in shown
    assert shown.count("<b>refuted</b>") >= 2


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
    whole, real = find("dropouts"), catalogue.dataset_tables
    assert whole.experiments(Scale.PAPER)["10-percent"]["rounds"] == 12_000

    def on_digits(dataset, scale):
        few = {"rounds": 8, "data": {"dataset": "digits", "test_limit": 50}, "model": {"name": "digits-mlp"}}
        return catalogue.merge(real(dataset, scale), few)

    monkeypatch.setattr(catalogue, "dataset_tables", on_digits)
    monkeypatch.setattr(run, "CHECKPOINT_SECONDS", 0.0)
    (part,) = whole.part
    one = {**part, "each": [[part["each"][0][1]]], "method": part["method"][1:2]}
    cut = dataclasses.replace(whole, part=(one,), count=None)
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
