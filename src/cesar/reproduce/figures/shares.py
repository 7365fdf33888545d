"""Not in the paper: how few values are enough, with TopK, with memory and without."""

from __future__ import annotations

from cesar.reproduce.compare import gaps, listed, no_worse, sent_of
from cesar.reproduce.figures.groups import FULL, method, on_both
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, dpsgd

PERCENT = (10, 5, 2)
SENDERS: dict[str, tuple[str, Tables]] = {
    "groups of 2": ("cesar", {"group_size": 2}),
    "CESAR": ("cesar", {}),
    "D-PSGD": ("dpsgd", {}),
}
"""What a method is called → its kind and what sets it apart."""


def _title(sender: str, percent: int) -> str:
    return f"{sender}, TopK {percent} %, memory"


def experiments(scale: Scale) -> dict[str, Tables]:
    """Full sharing and every share; one share where seconds have to do."""
    found = [dpsgd()]
    for percent in PERCENT[1:2] if scale is Scale.SMOKE else PERCENT:
        share = percent / 100
        for sender, (kind, more) in SENDERS.items():
            title = _title(sender, percent)
            found += [
                method(kind, title, "topk", share, memory=True, **more),
                method(kind, title.removesuffix(", memory"), "topk", share, **more),
            ]
        found.append(method("cesar", f"groups of 2, random {percent} %", "random", share, group_size=2))
    return on_both(scale, found)


def _reach(outcome: Outcome) -> Finding | None:
    pairs = [
        (_title(sender, percent), FULL, f"{sender} at {percent} %")
        for percent in PERCENT
        for sender in SENDERS
    ]
    found = gaps(outcome.rows, pairs, trained=False)
    if not found:
        return None
    return Finding(
        verdict=no_worse(list(found.values())),
        ours=f"Less than full sharing after settling, in points: {listed(found)}. They sent at most "
        f"{max(sent_of(outcome.rows, pairs)):.1f} % of its bytes.",
    )


SHARES = Reproduction(
    name="shares",
    place="not in the paper",
    brief="how few values are enough",
    what="TopK at 10, 5 and 2 %, with memory and without, and random selection in groups, against full sharing; all settled",
    needs=needs("cifar10"),
    takes=takes("15 s", "60 min", "13 h", "10 weeks"),
    experiments=experiments,
    claims=(
        Claim(
            title="A tenth to a fiftieth of the values, settled, reaches full sharing that settles, too",
            check=_reach,
        ),
    ),
)
