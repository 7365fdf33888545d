"""Table I: the approaches, with the strongest attack that we have on what a neighbour really holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from cesar.reproduce.figures import membership
from cesar.reproduce.pairs import Pair, Series
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
from cesar.reproduce.tables import Scale, Tables, cesar, dpsgd, secagg

NOISE = (0.01, 0.05)
"""σ: a fifth of the size that a parameter has after training, which hides little, and that size, which hurts."""
WINDOWS = (1, 20)
HIDDEN = 0.02
"""Up to this part of what tells a node from its group nothing counts as found out: estimates are noisy."""
FEW = "groups of 2, TopK 5 %, memory"
GROUPED = {2: "groups of 2", 3: "groups of 3"}
RECEIVERS = {Scale.SMOKE: 2, Scale.SMALL: 8, Scale.MEDIUM: 16, Scale.PAPER: 16}


def experiments(scale: Scale) -> dict[str, Tables]:
    """All approaches on non-IID data, at degree 6 so that groups of three fit."""
    noise = [
        {
            "name": "dpsgd",
            "noise": sigma,
            "gossip_steps": 5,
            "label": f"D-PSGD, noise {sigma} and 5 gossip steps",
        }
        for sigma in NOISE
    ]
    sparse = {"name": "cesar", "sparsifier": "random", "share": 0.3}
    few = {"sparsifier": "topk", "share": 0.05, "memory": True}
    ours: list[Tables] = [
        {**sparse, "sparsifier": "coordinated", "label": "coordinated"},
        *({**sparse, "group_size": size, "label": GROUPED[size]} for size in (2, 3)),
        {**sparse, **few, "group_size": 2, "label": FEW},
    ]
    method = [dpsgd(), dpsgd("random", 0.3), *noise, secagg(), *cesar("random", 0.3), *ours]
    tables = membership.overfit(scale)
    topology = {"topology": {**tables["topology"], "degree": 6}}
    return {"cifar10": tables | topology | {"recording": {"last": max(WINDOWS)}, "method": method}}


def _attack(place: Path, scale: Scale, data_dir: Path | None, progress: Progress) -> Saved:
    from cesar.attack.leakage import leakage  # noqa: PLC0415  (torch takes seconds to import)

    found = []
    for window in WINDOWS:
        progress(f"what a neighbour makes of {window} rounds")
        results = leakage(
            place,
            window=window,
            receivers=RECEIVERS[scale],
            samples=membership.SAMPLES[scale],
            data_dir=data_dir,
        )
        found.append({"window": window, "methods": [asdict(result) for result in results]})
    return {"samples": membership.SAMPLES[scale], "windows": found}


def strongest(method: Saved) -> float:
    """The larger area of the two: with members told apart as far as they can be, and with their mean."""
    return max(float(method["auc_apart"]), float(method["auc_mean"]))


def _pair(part: str, saved: Saved) -> Pair:
    """How well a neighbour infers membership after one round and after many."""
    windows = saved["windows"]
    titles = [method["title"] for method in windows[0]["methods"]]
    columns = [[strongest(method) for method in one["methods"]] for one in windows]
    true = [method["auc_true"] for method in windows[-1]["methods"]]
    recovered = [method["recovered"] for method in windows[-1]["methods"]]
    lengths = [len(one["methods"][0]["rounds"]) for one in windows]
    return Pair(
        title=f"The strongest attack of a neighbour, {part}",
        caption="Area under the ROC curve of membership inference with the best that one neighbour can make of what it "
        "received, after one round and after several; 0.5 is guessing. `Recovered` is how much of what tells a neighbour from "
        "the mean (of its group, where there are groups) was found out; 0 or less is nothing.",
        axes=("rounds", "area under the ROC curve"),
        series=[
            Series(name=title, x=[float(n) for n in lengths], y=[column[k] for column in columns])
            for k, title in enumerate(titles)
        ],
        heads=(
            "method",
            *(f"after {n} round{'s' if n > 1 else ''}" for n in lengths),
            "recovered",
            "the model itself",
        ),
        rows=[
            (title, *(f"{column[k]:.3f}" for column in columns), f"{recovered[k]:.0%}", f"{true[k]:.3f}")
            for k, title in enumerate(titles)
        ],
    )


def _recovered(outcome: Outcome, titles: Sequence[str]) -> dict[str, Saved]:
    """What a neighbour made of the longest window, by method."""
    saved = outcome.saved.get("cifar10/neighbour.json")
    methods = [] if saved is None else saved["windows"][-1]["methods"]
    return {method["title"]: method for method in methods if method["title"] in titles}


def _told(found: dict[str, Saved]) -> str:
    return "; ".join(
        f"{title}: {method['recovered']:.0%} recovered, area {strongest(method):.3f} (the model itself: {method['auc_true']:.3f})"
        for title, method in found.items()
    )


def _hides(titles: Sequence[str], more: str, outcome: Outcome) -> Finding | None:
    """Whether nothing of these methods' models was found out."""
    found = _recovered(outcome, titles)
    if not found:
        return None
    hidden = all(method["recovered"] <= HIDDEN for method in found.values())
    return Finding(
        verdict=Verdict.HOLDS if hidden else Verdict.FAILS,
        ours=f"After {max(WINDOWS)} rounds: {_told(found)}.",
        why=more,
    )


APPROACHES = Reproduction(
    name="approaches",
    place="Table I",
    brief="the approaches, measured and attacked",
    what="the approaches measured: accuracy, bytes, and what a neighbour makes of all that it received",
    needs=needs("cifar10"),
    takes=takes("10 s", "25 min", "8 h", "18 days"),
    experiments=experiments,
    measurements=(Measurement(file="neighbour.json", of_parts=True, measure=_attack, pair=_pair),),
    claims=(
        Claim(
            title="Masks hide a node's model from its neighbours",
            paper="private, as a tick",
            check=partial(
                _hides,
                ("CESAR, paper", "CESAR", "coordinated"),
                "A receiver gets sums of s + 1 members, over other members in every round, of models that change slowly.",
            ),
        ),
        Claim(
            title="Fixed groups hide it in any number of rounds",
            check=partial(_hides, (*GROUPED.values(), FEW), "The area left is that of a group's mean."),
        ),
    ),
)
