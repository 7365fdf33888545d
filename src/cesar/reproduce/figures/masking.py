"""Fig. 6: s = 1, 2, 3."""

from __future__ import annotations

from functools import partial

from cesar.reproduce.compare import gap, listed, no_worse
from cesar.reproduce.counts import Counting, both, on_cifar10, sent_pair
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar, dpsgd, spread_for, trained


def experiments(scale: Scale) -> dict[str, Tables]:
    """Growing s, with the α that keeps the share; the small scale trains the paper's exchange at s = 1 only."""

    def methods(kind: str) -> list[Tables]:
        first = 1 if scale is Scale.SMALL else 0
        more = [row for s in (2, 3) for row in cesar(kind, 0.3, masks=s)[first:]]
        return [*trained([*cesar(kind, 0.3), *more], scale), dpsgd(kind, 0.3)]

    return {
        kind: base("cifar10", scale, spread=spread_for("cifar10", kind)) | {"method": methods(kind)}
        for kind in ("topk", "random")
    }


def _counting(scale: Scale) -> Counting:
    nodes = 16 if scale is Scale.SMOKE else 48
    cases = [
        case
        for kind in ("random", "topk")
        for s in (1, 2, 3)
        for case in both(f"{kind}, s = {s}", nodes, 6, sparsifier=kind, share=0.3, masks=s)
    ]
    return on_cifar10(scale, 48, (5, 10), cases)


def _costs_little(outcome: Outcome) -> Finding | None:
    found = {
        f"{part}, s = {s}": gap(line[f"CESAR, s = {s}"], line["CESAR"], trained=True)
        for part, line in outcome.rows.items()
        for s in (2, 3)
        if {"CESAR", f"CESAR, s = {s}"} <= set(line)
    }
    if not found:
        return None
    return Finding(verdict=no_worse(list(found.values())), ours=f"Against s = 1, in points: {listed(found)}.")


MASKING = Reproduction(
    name="masking",
    place="Fig. 6",
    brief="s = 1, 2, 3",
    what="s = 1, 2, 3 at a constant 30 % shared",
    needs=needs("cifar10"),
    takes=takes("6 s", "13 min", "140 min", "3 weeks"),
    experiments=experiments,
    counting=_counting,
    count_pair=partial(sent_pair, title="Bytes of a node by s"),
    claims=(
        Claim(
            title="More masks cost no accuracy",
            paper="within 0.4 points of D-PSGD (random)",
            check=_costs_little,
        ),
    ),
)
