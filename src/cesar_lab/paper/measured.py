"""What else is measured, once, and kept in a file: two attacks on recorded runs, and the risk of collusion on random graphs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cesar_lab.paper.catalogue import Exhibit, Scale
from cesar_lab.show.chart import Axis, Chart, Series
from cesar_lab.show.table import NONE, Table

Saved = dict[str, Any]
Progress = Callable[[str], None]
Shown = tuple[Chart, Table]
AREA = Axis(name="area under the ROC curve")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of measurement.

    Attributes:
        of_parts: it is measured on each experiment; else once for all.
        measure: (exhibit, directory, scale, where datasets lie, progress) → what is kept.
        show: (exhibit, part, what is kept) → how it reads.
    """

    file: str
    of_parts: bool
    measure: Callable[[Exhibit, Path, Scale, Path | None, Progress], Saved]
    show: Callable[[Exhibit, str, Saved], Shown]


# ── what a neighbour makes of many rounds ───────────────────────────────────────────────────────────────


def _attack_as_neighbour(
    of: Exhibit, place: Path, scale: Scale, data_dir: Path | None, progress: Progress
) -> Saved:
    from cesar_lab.attack.leakage import leakage  # noqa: PLC0415  (torch takes seconds to import)

    assert of.measure is not None
    receivers, samples = of.measure["receivers"][scale], of.measure["samples"][scale]
    found = []
    for window in of.measure["windows"]:
        progress(f"what a neighbour makes of {window} rounds")
        results = leakage(place, window=window, receivers=receivers, samples=samples, data_dir=data_dir)
        found.append({"window": window, "methods": [asdict(result) for result in results]})
    return {"samples": samples, "windows": found}


def strongest(method: Saved) -> float:
    """The larger area of the two: with members told apart as far as they can be, and with their mean."""
    return max(float(method["auc_apart"]), float(method["auc_mean"]))


def _show_neighbour(_: Exhibit, part: str, saved: Saved) -> Shown:
    windows = saved["windows"]
    lengths = [len(one["methods"][0]["rounds"]) for one in windows]
    by_method = list(zip(*(one["methods"] for one in windows), strict=True))
    titles = [several[0]["title"] for several in by_method]
    heads = [f"after {n} round{'s' if n > 1 else ''}" for n in lengths]
    chart = Chart(
        title=f"A neighbour's attack by least squares, {part}",
        caption="Area under the ROC curve of membership inference with what least squares make of what one neighbour "
        "received, after one round and after several; 0.5 is guessing. It is not the strongest attack: it does not use that "
        "averaging couples the sums of rounds (privacy.md, Many rounds). Recovered: how much of what tells a neighbour from "
        "the mean was found out; 0 or less is nothing.",
        x=Axis(),
        y=AREA,
        series=tuple(
            Series(name=head, x=titles, y=[strongest(method) for method in one["methods"]], look="points")
            for head, one in zip(heads, windows, strict=True)
        ),
    )
    return chart, Table(
        heads=("method", *heads, "recovered", "the model itself"),
        rows=tuple(
            (
                several[0]["title"],
                *(f"{strongest(one):.3f}" for one in several),
                f"{several[-1]['recovered']:.0%}",
                f"{several[-1]['auc_true']:.3f}",
            )
            for several in by_method
        ),
    )


# ── membership inference on partial sums ────────────────────────────────────────────────────────────────


def _infer_membership(
    of: Exhibit, place: Path, scale: Scale, data_dir: Path | None, progress: Progress
) -> Saved:
    from cesar_lab.attack.inference import infer_membership  # noqa: PLC0415  (torch takes seconds to import)

    assert of.measure is not None
    progress("membership inference")
    samples = of.measure["samples"][scale]
    results = infer_membership(place, samples=samples, data_dir=data_dir)
    return {"samples": samples, "methods": [asdict(result) for result in results]}


def _show_membership(of: Exhibit, part: str, saved: Saved) -> Shown:
    rows, series = [], []
    for method in saved["methods"]:
        sums, title = method["sums"], method["title"]
        first, last = sums[0], sums[-1]
        printed = f"{of.printed[title]['area']:.2f}" if title in of.printed else NONE
        ends = [f"{one['auc']:.3f} ± {one['auc_error']:.3f}" for one in (first, last)]
        rows.append((title, *ends, f"{first['auc'] - last['auc']:.3f}", printed))
        x, y, errors = ([one[key] for one in sums] for key in ("models", "auc", "auc_error"))
        series.append(Series(name=title, x=x, y=y, error=errors))
    chart = Chart(
        title=f"Membership inference, {part}",
        caption="Area under the ROC curve, mean over victims ± standard error; 0.5 is guessing. What "
        "a neighbour really holds, and what many rounds give away, is in Table I.",
        x=Axis(name="models in the sum"),
        y=AREA,
        series=tuple(series),
    )
    return chart, Table(heads=("method", "one model", "mean of all", "difference", "paper"), rows=tuple(rows))


# ── collusion ───────────────────────────────────────────────────────────────────────────────────────────


def _draw_graphs(of: Exhibit, _: Path, scale: Scale, data_dir: Path | None, progress: Progress) -> Saved:
    """Draw graphs and colluders as the paper does."""
    from cesar.audit.collusion import plan_collusion  # noqa: PLC0415

    assert of.measure is not None
    graphs = of.measure["graphs"][scale]
    risks = plan_collusion(
        of.measure["nodes"],
        of.measure["degree"],
        of.measure["adversaries"],
        graphs=graphs,
        progress=lambda done, total: progress(f"{done:,} of {total:,} graphs"),
    )
    return {"graphs": graphs, "risks": [asdict(risk) for risk in risks]}


def most_colluders(saved: Saved) -> dict[int, Saved]:
    """By s, the risks with the most adversaries that were tried, in percent of the graphs."""
    most = max(risk["adversaries"] for risk in saved["risks"])
    return {
        risk["masks"]: {
            name: 100 * value["hits"] / value["trials"]
            for name, value in risk.items()
            if isinstance(value, dict)
        }
        for risk in saved["risks"]
        if risk["adversaries"] == most
    }


def _show_collusion(of: Exhibit, _: str, saved: Saved) -> Shown:
    assert of.measure is not None
    names = {"paper": "paper's criterion", "at_least": "at least", "at_most": "at most"}
    names |= {"at_random": "at a random position"}
    risks = most_colluders(saved)
    printed = {int(s): found["risk"] for s, found in of.printed.items()}
    series = [
        Series(name=label, x=list(risks), y=[risk[name] for risk in risks.values()])
        for name, label in names.items()
    ]
    series.append(Series(name="paper", x=list(printed), y=list(printed.values()), look="points", open=True))
    chart = Chart(
        title=f"Risk with {max(of.measure['adversaries'])} adversaries, in percent of the graphs",
        caption=f"{saved['graphs']:,} random graphs, adversaries drawn anew for each; α shares 30 % at each s. The paper's "
        "criterion overlooks differences of two sums; at least and at most enclose the true risk.",
        x=Axis(name="s"),
        y=Axis(name="risk", unit="%"),
        series=tuple(series),
    )
    return chart, Table(
        heads=("s", "paper", *names.values()),
        rows=tuple(
            (f"{s}", f"{printed[s]:.2f}" if s in printed else NONE, *(f"{risk[name]:.3g}" for name in names))
            for s, risk in risks.items()
            if s <= 16
        ),
    )


KINDS = {
    "neighbour": Kind(
        file="neighbour.json", of_parts=True, measure=_attack_as_neighbour, show=_show_neighbour
    ),
    "membership": Kind(
        file="membership.json", of_parts=True, measure=_infer_membership, show=_show_membership
    ),
    "collusion": Kind(file="collusion.json", of_parts=False, measure=_draw_graphs, show=_show_collusion),
}
