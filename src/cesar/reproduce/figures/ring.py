"""Not in the paper: how wide a ring."""

from __future__ import annotations

from cesar.reproduce.compare import against, equal, gap
from cesar.reproduce.reproduction import Claim, Finding, Outcome, Reproduction, Shorter, needs, takes
from cesar.reproduce.tables import Scale, Tables, base, cesar, spread_for

WIDTHS = (24, 20, 16)
"""Bits, beside the usual 32."""


def _label(bits: int) -> str:
    return f"CESAR, {bits} bits"


def experiments(scale: Scale) -> dict[str, Tables]:
    """The same selections in narrower and narrower rings."""

    def methods(kind: str) -> list[Tables]:
        ours = cesar(kind, 0.3)[1]
        return [ours, *({**ours, "ring_bits": bits, "label": _label(bits)} for bits in WIDTHS)]

    names = {"cifar10": "topk", "movielens": "random"}
    return {
        name: base(name, scale, spread=spread_for(name, kind)) | {"method": methods(kind)}
        for name, kind in names.items()
    }


def _narrow(outcome: Outcome) -> Finding | None:
    """What narrower rings cost."""
    rows = [line for line in outcome.rows.values() if {"CESAR", _label(WIDTHS[-1])} <= set(line)]
    if not rows:
        return None
    found = [gap(line[_label(WIDTHS[-1])], line["CESAR"]) for line in rows]
    return Finding(verdict=equal(found), ours=f"Against 32 bits: {against(outcome.rows, 'CESAR')}.")


RING = Reproduction(
    name="ring",
    place="not in the paper",
    brief="how wide a ring",
    what="accuracy with rings of 16, 20, 24 and 32 bits",
    needs=needs("cifar10, movielens"),
    takes=takes("4 s", "9 min", "6 h", "8 days"),
    experiments=experiments,
    claims=(
        Claim(
            title="16 bits learn as much as 32",
            check=_narrow,
            shorter=Shorter(
                pairs=dict.fromkeys(("ring-lenet", "ring-movielens"), (("16 bits", "32 bits"),)), judge=equal
            ),
        ),
    ),
)
