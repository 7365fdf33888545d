"""Fig. 5b: the risk of collusion."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

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
from cesar.reproduce.tables import Scale

PAPER = {9: 1.45, 13: 0.0}
"""Percent of graphs at risk by s, with 15 adversaries among 100 nodes of degree 25, as printed."""
GRAPHS = {Scale.SMOKE: 500, Scale.SMALL: 50_000, Scale.MEDIUM: 50_000, Scale.PAPER: 250_000}


def _draw(folder: Path, scale: Scale, data_dir: Path | None, progress: Progress) -> Saved:
    """Draw graphs and colluders as the paper does."""
    from cesar.audit.collusion import plan_collusion  # noqa: PLC0415

    risks = plan_collusion(
        100,
        25,
        [5, 10, 15],
        graphs=GRAPHS[scale],
        progress=lambda done, total: progress(f"{done:,} of {total:,} graphs"),
    )
    return {"graphs": GRAPHS[scale], "risks": [asdict(risk) for risk in risks]}


def _about(saved: Saved) -> str:
    return f"{saved['graphs']:,} random graphs, adversaries drawn anew for each; α shares 30 % at each s."


def _value(risk: dict[str, Any], name: str) -> float:
    return 100 * float(risk[name]["hits"]) / float(risk[name]["trials"])


def _pair(part: str, saved: Saved) -> Pair:
    names = {"paper": "paper's criterion", "at_least": "at least", "at_random": "at a random position"}
    most = [risk for risk in saved["risks"] if risk["adversaries"] == 15]
    series = [Series(name="paper", x=list(PAPER), y=list(PAPER.values()), line=False)]
    series += [
        Series(name=label, x=[float(r["masks"]) for r in most], y=[_value(r, name) for r in most])
        for name, label in names.items()
    ]
    rows = [
        (
            f"{risk['masks']}",
            f"{PAPER[risk['masks']]:.2f}" if risk["masks"] in PAPER else NONE,
            *(f"{_value(risk, name):.3g}" for name in ("paper", "at_least", "at_most", "at_random")),
        )
        for risk in most
        if risk["masks"] <= 16
    ]
    return Pair(
        title="Risk with 15 adversaries, in percent of the graphs",
        caption="The paper's criterion overlooks differences of two sums; at least and at most enclose the true risk.",
        axes=("s", "risk (%)"),
        series=series,
        heads=("s", "paper", "paper's criterion", "at least", "at most", "at a random position"),
        rows=rows,
    )


def _risk(outcome: Outcome) -> Finding | None:
    found = {
        risk["masks"]: risk for risk in outcome.saved["collusion.json"]["risks"] if risk["adversaries"] == 15
    }
    lines = [
        f"s = {s}: {_value(found[s], 'paper'):.3g} % by the paper's criterion, really between {_value(found[s], 'at_least'):.3g} "
        f"and {_value(found[s], 'at_most'):.3g} %"
        for s in PAPER
        if s in found
    ]
    same = all(_value(found[s], "at_least") <= PAPER[s] + 0.2 for s in PAPER if s in found)
    return Finding(
        verdict=Verdict.HOLDS if same else Verdict.FAILS,
        ours=f"{'; '.join(lines)}.",
        why="The printed figures come out with the paper's criterion, which overlooks that colluders can take the "
        "difference of two sums (design/005-worst-pair.md).",
    )


COLLUSION = Reproduction(
    name="collusion",
    place="Fig. 5b",
    brief="the risk of collusion",
    what="risk that colluders read somebody's value, on random 25-regular graphs of 100 nodes",
    needs=needs("nothing"),
    takes=takes("1 s", "1 min", "1 min", "5 min"),
    measurements=(
        Measurement(file="collusion.json", of_parts=False, measure=_draw, pair=_pair, about=_about),
    ),
    claims=(
        Claim(
            title="s masks protect against colluders",
            paper="with 15 colluders among 100 nodes a risk of 1.45 % at s = 9, and none at s = 13",
            check=_risk,
        ),
    ),
)
