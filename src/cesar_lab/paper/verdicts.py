"""What measurements say about a claim.

A rule is named in the claim's file and handed what was measured. It finds nothing where nothing was run; else it has
figures, and one of the verdicts. Accuracies are compared by their paired differences: a method is equal to another if the whole 95 %
interval lies within a point, behind if it lies below, ahead if it lies above. All else is not decided. A single seed has no
interval, so it decides nothing: it is listed, and counts as if it had not been run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from cesar_lab.paper import counting
from cesar_lab.paper.catalogue import CATALOGUE, Claim
from cesar_lab.paper.counting import gigabytes, labels
from cesar_lab.paper.measured import Saved, most_colluders, strongest
from cesar_lab.paper.outcome import Outcome, gap
from cesar_lab.show.paired import Difference, paired
from cesar_lab.show.quantity import points
from cesar_lab.show.results import METRICS, MethodRow, Study, rows_of

LIMIT = 0.01
"""Accuracies that differ by less, 95 % interval included, are called equal: a point, twice what the paper calls equal."""
SAME_SHARE = 0.01
"""Shares that differ by more, relative to one another, are named."""
HIDDEN = 0.02
"""Up to this part of what tells a node from the others nothing counts as found out: estimates are noisy."""


class Verdict(StrEnum):
    """What becomes of a claim."""

    CONFIRMED = "confirmed"
    BETTER = "better than claimed"
    REFUTED = "refuted"
    OPEN = "not decided"
    MISSING = "not run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A verdict with the figures it is made from; `because` says why nothing is decided, if nothing is."""

    verdict: Verdict
    ours: str = ""
    because: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A claim with what was found; `place` is where it stands, `name` the command that measures it."""

    claim: Claim
    place: str
    name: str
    found: Finding


def judge_all(
    outcomes: Sequence[Outcome], shorter: Mapping[str, Study], timed: Mapping[str, Saved] | None = None
) -> list[Judged]:
    """Every claim of the catalogue. Where its own runs are missing, shorter ones and benchmarks speak, if there are any."""
    by_name = {outcome.of.name: outcome for outcome in outcomes}
    found = []
    for name, of in CATALOGUE.items():
        for claim in of.claims:
            finding = RULES[claim.decide](by_name[name], claim) if name in by_name else None
            finding = finding or _from_shorter(claim, shorter) or _from_curves(claim, shorter)
            finding = finding or _from_timed(claim, timed or {})
            finding = finding or Finding(verdict=Verdict.MISSING)
            found.append(Judged(claim=claim, place=of.place, name=name, found=finding))
    return found


# ── methods against one another ─────────────────────────────────────────────────────────────────────────


def compare(found: Mapping[str, Difference | None], *, equal: bool) -> Finding:
    """Whether all differences are what was claimed: none, or (if not `equal`) none to the worse.

    One that is behind refutes the claim, whatever the others are. One whose interval is too wide leaves it open.
    """
    known = {words: d for words, d in found.items() if d is not None and d.margin is not None}
    verdicts = {words: _compare_one(difference, equal=equal) for words, difference in known.items()}
    order = (Verdict.REFUTED, Verdict.OPEN, Verdict.BETTER, Verdict.CONFIRMED)
    verdict = next((one for one in order if one in verdicts.values()), Verdict.OPEN)
    because = ""
    if verdict is Verdict.OPEN:
        wide = ", ".join(words for words, one in verdicts.items() if one is Verdict.OPEN)
        because = f"the interval is too wide: {wide}" if wide else "there is one seed only"
    listed = "; ".join(f"{words} {points(difference)}" for words, difference in found.items())
    return Finding(verdict=verdict, ours=listed, because=because)


def _compare_one(found: Difference, *, equal: bool) -> Verdict:
    assert found.margin is not None
    low, high = found.mean - found.margin, found.mean + found.margin
    if high < -LIMIT:
        return Verdict.REFUTED
    if equal and low > LIMIT:
        return Verdict.BETTER
    return Verdict.CONFIRMED if low > -LIMIT and (not equal or high < LIMIT) else Verdict.OPEN


def _differences(outcome: Outcome, claim: Claim, *, equal: bool) -> Finding | None:
    """Methods of each part against one another, or against those of the part `against`."""
    rule, found, sent, apart = claim.rule, dict[str, Difference | None](), list[float](), list[str]()
    when = rule.get("when", ["trained"])
    planned = [part for part in outcome.of.experiments(outcome.scale) if part in rule.get("parts", [part])]
    planned = [part for part in planned if part != rule.get("against")]
    rows = {part: outcome.rows[part] for part in planned if part in outcome.rows}
    for part, line in rows.items():
        others = outcome.rows.get(rule["against"], {}) if "against" in rule else line
        for title, pattern, words in rule["compare"]:
            for other in (others[name] for name in others if fnmatchcase(name, pattern) and title in line):
                found[", ".join(filter(None, (part, words)))] = gap(line[title], other, *when)
                one, two = 100 * line[title].shared, 100 * other.shared
                if rule.get("shares") and abs(one / two - 1) > SAME_SHARE:
                    apart.append(f" ({part}: {one:.2f} % were shared, against {two:.2f} %.)")
                sent.append(100 * line[title].bytes / other.bytes)
    if not found:
        return None
    ran = "" if len(rows) == len(planned) else f"{len(rows)} of {len(planned)} parts were run. "
    cost = f" The first sent {_span(sent)} of the second one's bytes." if rule.get("sent") else ""
    verdict = compare(found, equal=equal)
    text = f"{ran}{rule['intro']}: {verdict.ours}.{cost}{''.join(apart)}"
    return Finding(verdict=verdict.verdict, ours=text, because=verdict.because)


def _span(percents: Sequence[float]) -> str:
    ends = dict.fromkeys(f"{end:.1f}" for end in (min(percents), max(percents)))
    return f"{' to '.join(ends)} %"


def _equal(outcome: Outcome, claim: Claim) -> Finding | None:
    return _differences(outcome, claim, equal=True)


def _no_worse(outcome: Outcome, claim: Claim) -> Finding | None:
    return _differences(outcome, claim, equal=False)


def _from_shorter(claim: Claim, studies: Mapping[str, Study]) -> Finding | None:
    """What experiments of fewer rounds say, each a file and a directory beside the document. A method of another experiment
    is called by the names of both: NAME/METHOD.
    """
    found, texts = dict[str, Difference | None](), []
    for name, pairs in claim.rule.get("shorter", {}).items():
        if name not in studies:
            continue
        study = studies[name]
        here = {
            f'"{a}" minus "{b}"': gap(one, other, *claim.rule.get("when", ["trained"]))
            for a, b in pairs
            if (one := _shorter_row(studies, name, a)) and (other := _shorter_row(studies, name, b))
        }
        if not here:
            continue
        found |= {f"{name}, {words}": difference for words, difference in here.items()}
        listed = ", ".join(f"{words} {points(difference)}" for words, difference in here.items())
        unit = "points of accuracy" if study.metric == "accuracy" else f"hundredths of {study.metric}"
        texts.append(f"`{name}` ({study.experiment.rounds} rounds), in {unit}: {listed}.")
    if not found:
        return None
    verdict = compare(found, equal=claim.decide == "equal")
    return Finding(verdict=verdict.verdict, ours=" ".join(texts), because=verdict.because)


def _from_timed(claim: Claim, timed: Mapping[str, Saved]) -> Finding | None:
    """What `cesar bench overhead` measured, each a file beside the document."""
    ratios = {
        words: float(timed[name]["ratio_to_dpsgd"])
        for words, name in claim.rule.get("timed", {}).items()
        if name in timed
    }
    if not ratios:
        return None
    low, high = claim.rule["printed"]
    most = max(ratios.values())
    verdict = Verdict.REFUTED if most > high else Verdict.BETTER if most < low else Verdict.CONFIRMED
    listed = ", ".join(f"{words} {ratio:.2f}" for words, ratio in ratios.items())
    return Finding(verdict=verdict, ours=f"{claim.rule['intro']}: {listed}.")


def _from_curves(claim: Claim, studies: Mapping[str, Study]) -> Finding | None:
    """Methods against one another where both have sent as much: at parts of what the first of them sends while it trains.

    The other one is given its next test, for which it has sent more.
    """
    found, texts = dict[str, Difference | None](), []
    for name, pairs in claim.rule.get("curves", {}).items():
        if name not in studies:
            continue
        listed = []
        for one, other in pairs:
            for part in claim.rule["at"]:
                difference = _where_both_sent(studies[name], one, other, part)
                found[f"{one}, {other}, {part:.0%}"] = difference
                listed.append(f'at {100 * part:.0f} % "{one}" minus "{other}" {points(difference)}')
        texts.append(f"`{name}`, in points of accuracy: {', '.join(listed)}.")
    if not found:
        return None
    verdict = compare(found, equal=False)
    return Finding(verdict=verdict.verdict, ours=" ".join(texts), because=verdict.because)


def _where_both_sent(study: Study, one: str, other: str, part: float) -> Difference | None:
    """`one` at its last test within that part of its bytes, less `other` at its first test with at least as many."""
    ours, theirs = (
        {run.seed: [step for step in run.steps if not step["settle_round"]] for run in study.runs[title]}
        for title in (one, other)
    )
    reached, others = dict[int, float](), dict[int, float]()
    for seed, steps in ours.items():
        within = [step for step in steps if step["bytes"] <= part * steps[-1]["bytes"]]
        later = [step for step in theirs.get(seed, []) if within and step["bytes"] >= within[-1]["bytes"]]
        if later:
            reached[seed], others[seed] = within[-1][study.metric], later[0][study.metric]
    return paired(reached, others) if METRICS[study.metric] == "higher" else paired(others, reached)


def _shorter_row(studies: Mapping[str, Study], name: str, title: str) -> MethodRow | None:
    """What a method reached there; None if it was not run."""
    study, _, own = title.rpartition("/")
    rows = rows_of(studies[study or name]) if (study or name) in studies else []
    return next((row for row in rows if row.title == own), None)


# ── bytes ───────────────────────────────────────────────────────────────────────────────────────────────


def _saving(outcome: Outcome, claim: Claim) -> Finding | None:
    """How much less is sent than all parameters in four bytes each, as printed for the first kind."""
    counts, rule = outcome.counts, claim.rule
    names = [label for label in labels(counts) if fnmatchcase(label, rule["cases"])]
    if not names:
        return None

    def saved(kind: str, *, paper: bool) -> float:
        label = next(name for name in names if name.startswith(kind))
        rows = [r for r in counts if (r.label, r.method, r.paper) == (label, "cesar", paper)]
        return sum(1 - row.bytes / (row.values / row.shared) for row in rows) / len(rows)

    figures = [
        f"{kind} {saved(kind, paper=True):.1%} in the paper's exchange, {saved(kind, paper=False):.1%} with ours"
        for kind in rule["kinds"]
    ]
    more = saved(rule["kinds"][0], paper=True) - rule["printed"]
    verdict = (
        Verdict.CONFIRMED if abs(more) < rule["within"] else Verdict.BETTER if more > 0 else Verdict.REFUTED
    )
    return Finding(verdict=verdict, ours=f"{rule['intro']}: {'; '.join(figures)}.")


def _overhead(outcome: Outcome, claim: Claim) -> Finding | None:
    """How much more is sent than by D-PSGD at the same share."""
    counts = outcome.counts
    if not counts:
        return None

    def more(kind: str, *, paper: bool) -> list[float]:
        both = (
            [gigabytes(counts, label, method, paper=paper) for method in ("cesar", "dpsgd")]
            for label in labels(counts)
            if label.startswith(kind)
        )
        return [100 * (ours / plain - 1) for ours, plain in both]

    texts, verdicts = [], set()
    for kind, (low, high) in claim.rule["printed"].items():
        theirs, ours = more(kind, paper=True), more(kind, paper=False)
        texts.append(f"{kind} {_span(theirs)} in the paper's exchange, {_span(ours)} with ours")
        verdicts.add(
            Verdict.REFUTED
            if max(theirs) > high
            else Verdict.BETTER
            if max(theirs) < low
            else Verdict.CONFIRMED
        )
    order = (Verdict.REFUTED, Verdict.CONFIRMED, Verdict.BETTER)
    verdict = next(one for one in order if one in verdicts)
    return Finding(verdict=verdict, ours=f"More at the same share: {'; '.join(texts)}.")


def _gigabytes(outcome: Outcome, claim: Claim) -> Finding | None:
    """How far the byte figures are from the printed ones."""
    counts, rule, far = outcome.counts, claim.rule, []
    most = dict.fromkeys(rule["within"], 0.0)
    for label in labels(counts):
        kind, known = label.partition("-")[0], outcome.of.printed[label]["gigabytes"]
        got = [gigabytes(counts, label, method, paper=True) for method in ("cesar", "dpsgd")]
        off = max(abs(mine / theirs - 1) for mine, theirs in zip(got, known, strict=True))
        most[kind] = max(most[kind], off)
        ratio, printed = got[0] / got[1], known[0] / known[1]
        if off > rule["within"][kind] or abs(ratio - printed) > rule["ratio_within"]:
            far.append(f"{label} (bytes off by {off:.1%}, ratio {ratio:.3f} for {printed:.3f})")
    if not counts:
        return None
    text = f"In the paper's exchange the largest difference is {most['random']:.1%} for random subsampling and {most['topk']:.1%} for TopK."
    if far:
        return Finding(
            verdict=Verdict.REFUTED, ours=f"{text} Farther off than it should be: {'; '.join(far)}."
        )
    close = f"Every ratio CESAR ÷ D-PSGD is within {rule['ratio_within']} of the printed one."
    return Finding(verdict=Verdict.CONFIRMED, ours=f"{text} {close}")


def _by_masks(outcome: Outcome, claim: Claim) -> Finding | None:
    """How much more is shared and sent with more masks, in the paper's exchange, where the share was to stay."""
    counts, rule = outcome.counts, claim.rule
    few, many = (
        [r for r in counts if (r.label, r.method, r.paper) == (label, "cesar", True)]
        for label in rule["cases"]
    )
    if not few or not many:
        return None
    more = 100 * (sum(r.bytes for r in many) / len(many) / (sum(r.bytes for r in few) / len(few)) - 1)
    shared = 100 * sum(r.shared for r in many) / len(many)
    same = abs(more - rule["printed"]["more"]) < rule["within"]
    return Finding(
        verdict=Verdict.CONFIRMED if same else Verdict.REFUTED,
        ours=f"From {few[0].label} to {many[0].label}: {more:+.1f} % bytes, and {shared:.2f} % shared.",
    )


def _per_neighbour(outcome: Outcome, claim: Claim) -> Finding | None:
    """Whether coordination costs the same for each node of View2."""
    if not outcome.counts:
        return None

    def farthest(*, paper: bool) -> float:
        values = counting.per_neighbour(outcome.counts, paper=paper)
        middle = sum(values) / len(values)
        return max(abs(value / middle - 1) for value in values)

    names, theirs = labels(outcome.counts), farthest(paper=True)
    return Finding(
        verdict=Verdict.CONFIRMED if theirs < claim.rule["within"] else Verdict.REFUTED,
        ours=f"From {names[0]} to {names[-1]} the bytes of coordination per View2 neighbour stay within {theirs:.2%} of their mean "
        f"in the paper's exchange, within {farthest(paper=False):.2%} with ours.",
    )


# ── privacy ─────────────────────────────────────────────────────────────────────────────────────────────


def _hidden(outcome: Outcome, claim: Claim) -> Finding | None:
    """Whether a neighbour found out nothing of these methods' models in the longest window."""
    windows = [one["windows"][-1] for one in outcome.saved.values()]
    methods = [m for one in windows for m in one["methods"] if m["title"] in claim.rule["methods"]]
    if not methods:
        return None
    hidden = all(method["recovered"] <= HIDDEN for method in methods)
    told = "; ".join(
        f"{method['title']}: {method['recovered']:.0%} recovered, area {strongest(method):.3f} "
        f"(the model itself: {method['auc_true']:.3f})"
        for method in methods
    )
    return Finding(
        verdict=Verdict.CONFIRMED if hidden else Verdict.REFUTED,
        ours=f"After {len(methods[0]['rounds'])} rounds: {told}.",
    )


def _defence(outcome: Outcome, claim: Claim) -> Finding | None:
    """Whether a neighbour tells samples apart less well than with another method, in the longest window."""
    rule, windows = claim.rule, [one["windows"] for one in outcome.saved.values()]
    ends = [
        {m["title"]: (len(m["rounds"]), strongest(m)) for m in one["methods"]}
        for several in windows
        for one in (several[0], several[-1])
    ]
    named = [*rule["methods"], rule["other"]]
    if not ends or any(name not in end for end in ends for name in named):
        return None
    listed = [
        f"after {end[rule['other']][0]} round{'s' if end[rule['other']][0] > 1 else ''} "
        + ", ".join(f"{name} {end[name][1]:.3f}" for name in named)
        for end in ends
    ]
    more = max(ends[-1][name][1] for name in rule["methods"]) - ends[-1][rule["other"]][1]
    verdict = (
        Verdict.REFUTED
        if more > rule["least"]
        else Verdict.CONFIRMED
        if more < -rule["least"]
        else Verdict.OPEN
    )
    because = f"the areas differ by less than {rule['least']}" if verdict is Verdict.OPEN else ""
    return Finding(verdict=verdict, ours=f"Area under the ROC curve {'; '.join(listed)}.", because=because)


def _membership(outcome: Outcome, claim: Claim) -> Finding | None:
    """Whether the mean of all neighbours tells less about samples than one model, with every method."""
    methods = [method for saved in outcome.saved.values() for method in saved["methods"]]
    if not methods:
        return None
    less = {m["title"]: m["sums"][0]["auc"] - m["sums"][-1]["auc"] for m in methods}
    listed = "; ".join(f"{title} {value:.3f}" for title, value in less.items())
    return Finding(
        verdict=Verdict.CONFIRMED if min(less.values()) > claim.rule["least"] else Verdict.REFUTED,
        ours=f"The area under the ROC curve is lower for the mean of all neighbours than for one model by: {listed}.",
    )


def _collusion(outcome: Outcome, claim: Claim) -> Finding | None:
    """Whether the true risk is as low as the printed one, wherever one is printed."""
    if not outcome.saved:
        return None
    risks = most_colluders(outcome.saved[""])
    printed = {int(s): known["risk"] for s, known in outcome.of.printed.items() if int(s) in risks}
    lines = [
        f"s = {s}: {risks[s]['paper']:.3g} % by the paper's criterion, really {_risk(risks[s])}"
        for s in printed
    ]
    same = all(risks[s]["at_least"] <= known + claim.rule["within"] for s, known in printed.items())
    return Finding(verdict=Verdict.CONFIRMED if same else Verdict.REFUTED, ours=f"{'; '.join(lines)}.")


def _risk(one: Saved) -> str:
    ends = dict.fromkeys(f"{one[end]:.3g}" for end in ("at_least", "at_most"))
    return f"{' to '.join(ends)} %"


def _elsewhere(_: Outcome, __: Claim) -> None:
    """Runs of the catalogue decide nothing here: benchmarks do, or curves of shorter runs."""


RULES: dict[str, Callable[[Outcome, Claim], Finding | None]] = {
    "equal": _equal,
    "no worse": _no_worse,
    "saving": _saving,
    "overhead": _overhead,
    "gigabytes": _gigabytes,
    "by masks": _by_masks,
    "per neighbour": _per_neighbour,
    "hidden": _hidden,
    "defence": _defence,
    "membership": _membership,
    "collusion": _collusion,
    "timed": _elsewhere,
    "same bytes": _elsewhere,
}
