"""Fig. 7: membership inference on one model and on partial sums."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path

from cesar.reproduce.pairs import NONE, Pair, Series
from cesar.reproduce.reproduction import (
    Claim,
    Finding,
    Measurement,
    Outcome,
    Progress,
    Reproduction,
    Saved,
    Verdict,
    needs,
    takes,
)
from cesar.reproduce.tables import Scale, Tables, base, dpsgd

PAPER = {"everything": 0.24, "topk": 0.17, "random": 0.11}
"""How much lower the area under the ROC curve is for the mean of all neighbours than for one model, as printed."""
SAMPLES = {Scale.SMOKE: 20, Scale.SMALL: 100, Scale.MEDIUM: 1500, Scale.PAPER: 1500}


def overfit(scale: Scale) -> Tables:
    """What the attacks are tried on: non-IID data, and below the medium scale few samples, learned by heart sooner."""
    tables = base("cifar10", scale, degree=5, spread="shards")
    if scale in (Scale.MEDIUM, Scale.PAPER):
        nodes = {"topology": {**tables["topology"], "nodes": 32}}
        return tables | nodes | {"recording": {"every": 1000 if scale is Scale.PAPER else 100}}
    limit = 160 if scale is Scale.SMOKE else 400
    return tables | {"data": {**tables["data"], "train_limit": limit}, "recording": {"last": 1}}


def experiments(scale: Scale) -> dict[str, Tables]:
    """D-PSGD, which hides nothing."""
    method = [dpsgd(), dpsgd("random", 0.3), dpsgd("topk", 0.3)]
    return {"cifar10": overfit(scale) | {"method": method}}


def _attack(place: Path, scale: Scale, data_dir: Path | None, progress: Progress) -> Saved:
    from cesar.attack.membership import membership  # noqa: PLC0415  (torch takes seconds to import)

    progress("membership inference")
    results = membership(place, samples=SAMPLES[scale], data_dir=data_dir)
    return {"samples": SAMPLES[scale], "methods": [asdict(result) for result in results]}


def _pair(known: dict[str, float], part: str, saved: Saved) -> Pair:
    """The area under the ROC curve for one model, and for means of more and more."""
    rows, series = [], []
    for method in saved["methods"]:
        sums, title = method["sums"], method["title"]
        first, last = sums[0], sums[-1]
        printed = next((f"{value:.2f}" for name, value in known.items() if name in title), NONE)
        ends = [f"{one['auc']:.3f} ± {one['auc_error']:.3f}" for one in (first, last)]
        rows.append((title, *ends, f"{first['auc'] - last['auc']:.3f}", printed))
        x = [float(one["models"]) for one in sums]
        errors = [one["auc_error"] for one in sums]
        series.append(Series(name=title, x=x, y=[one["auc"] for one in sums], error=errors))
    return Pair(
        title=f"Membership inference, {part}",
        caption="Area under the ROC curve, mean over victims ± standard error; 0.5 is guessing. What "
        "a neighbour really holds, and what many rounds give away, is in Table I.",
        axes=("models in the sum", "area under the ROC curve"),
        series=series,
        heads=("method", "one model", "mean of all", "difference", "paper"),
        rows=rows,
    )


def _leaks_less(outcome: Outcome) -> Finding | None:
    saved = outcome.saved.get("cifar10/membership.json")
    if saved is None:
        return None
    less = {m["title"]: m["sums"][0]["auc"] - m["sums"][-1]["auc"] for m in saved["methods"]}
    listed = "; ".join(f"{title} {value:.3f}" for title, value in less.items())
    return Finding(
        verdict=Verdict.HOLDS if min(less.values()) > 0.05 else Verdict.FAILS,
        ours=f"The area under the ROC curve is lower for the mean of all neighbours than for one model by: {listed}.",
        why="Models here have learned fewer samples, and those by heart. What a neighbour of CESAR really holds is more than "
        "one mean: see Table I.",
    )


def inference(known: dict[str, float]) -> Measurement:
    """Try membership inference on what was recorded; `known` are differences that the paper prints."""
    return Measurement(file="membership.json", of_parts=True, measure=_attack, pair=partial(_pair, known))


MEMBERSHIP = Reproduction(
    name="membership",
    place="Fig. 7",
    brief="membership inference on partial sums",
    what="membership inference on one model and on partial sums",
    needs=needs("cifar10"),
    takes=takes("3 s", "3 min", "2 h", "4 days"),
    experiments=experiments,
    measurements=(inference(PAPER),),
    claims=(
        Claim(
            title="A sum over neighbours tells less about samples than a model",
            paper=", ".join(f"{name} {value:.2f}" for name, value in PAPER.items()),
            check=_leaks_less,
        ),
    ),
)
