"""Not in the paper: fixed groups, both averaging rules, memory and settling."""

from __future__ import annotations

from cesar.reproduce.compare import gap, points
from cesar.reproduce.reproduction import Claim, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import SETTLE, Scale, Tables, base, dpsgd

RULES = (
    ("CESAR, random 30 %", "D-PSGD, random 30 %, arrived", "arrived"),
    ("CESAR, random 30 %, neighbours", "D-PSGD, random 30 %", "neighbours"),
    ("CESAR, TopK 30 %", "D-PSGD, TopK 30 %, arrived", "arrived"),
)
"""CESAR, D-PSGD with the same `weights`, and these."""

FULL, FEW, FORGETFUL = "D-PSGD, everything", "groups of 2, TopK 5 %, memory", "groups of 2, TopK 5 %"


def _method(name: str, label: str, sparsifier: str, share: float, **more: object) -> Tables:
    return {"name": name, "label": label, "sparsifier": sparsifier, "share": share, **more}


def methods() -> list[Tables]:
    """What decides how sums become models, one thing at a time."""
    found = [dpsgd(), _method("cesar", FEW, "topk", 0.05, group_size=2, memory=True)]
    for sparsifier, name in (("random", "random 30 %"), ("topk", "TopK 30 %")):
        plain, ours = f"D-PSGD, {name}", f"CESAR, {name}"
        found += [
            *(_method("cesar", f"groups of {m}, {name}", sparsifier, 0.3, group_size=m) for m in (2, 3)),
            _method("dpsgd", plain, sparsifier, 0.3),
            _method("dpsgd", f"{plain}, arrived", sparsifier, 0.3, weights="arrived"),
            _method("cesar", ours, sparsifier, 0.3),
        ]
    return [
        *found,
        _method("cesar", "CESAR, random 30 %, neighbours", "random", 0.3, weights="neighbours"),
        _method("cesar", "coordinated 30 %", "coordinated", 0.3),
        _method("cesar", FORGETFUL, "topk", 0.05, group_size=2),
        _method("dpsgd", "D-PSGD, TopK 5 %, memory", "topk", 0.05, memory=True),
    ]


def experiments(scale: Scale) -> dict[str, Tables]:
    """The same methods on both partitions, settled at the end at every scale."""
    settle = {"settle_rounds": 2} if scale is Scale.SMOKE else SETTLE
    parts = ("shards", "iid")
    return {part: base("cifar10", scale, spread=part) | settle | {"method": methods()} for part in parts}


def _compared(outcome: Outcome, pairs: list[tuple[str, str, str]]) -> str:
    """(one, other, words): nodes' paired differences, part by part, in points."""
    texts = []
    for part, rows in outcome.rows.items():
        listed = [
            f"{words} {points(*gap(rows[one], rows[other]))}"
            for one, other, words in pairs
            if one in rows and other in rows
        ]
        texts += [f"{part}: {', '.join(listed)}"] if listed else []
    return "; ".join(texts)


def _one_rule(outcome: Outcome) -> str:
    found = _compared(outcome, [(one, other, f"{one} ({rule})") for one, other, rule in RULES])
    return f"CESAR minus D-PSGD under the same weights, in points: {found}." if found else ""


def _settled(outcome: Outcome) -> str:
    found = _compared(outcome, [(FEW, FULL, "nodes")])
    if not found:
        return ""
    bytes_ = [
        rows[FEW].bytes / rows[FULL].bytes for rows in outcome.rows.values() if {FEW, FULL} <= set(rows)
    ]
    return (
        f"Groups of 2 with TopK, 5 % and memory minus full sharing, both settled, in points: {found}; "
        f"with {100 * max(bytes_):.1f} % of its bytes."
    )


def _memory(outcome: Outcome) -> str:
    found = _compared(outcome, [(FEW, FORGETFUL, "with memory minus without")])
    return f"Groups of 2, TopK at 5 %, in points: {found}." if found else ""


GROUPS = Reproduction(
    name="groups",
    place="not in the paper",
    brief="fixed groups, averaging rules, memory and settling",
    what="groups of 2 and 3 beside CESAR and D-PSGD under both averaging rules, TopK with memory, all settled at the end",
    needs=needs("cifar10"),
    takes=takes("15 s", "45 min", "a day", "7 weeks"),
    experiments=experiments,
    claims=(
        Claim(title="CESAR against D-PSGD under one averaging rule", check=_one_rule),
        Claim(title="A twentieth of the values, settled, against full sharing", check=_settled),
        Claim(title="TopK with memory of what was sent", check=_memory),
    ),
)
