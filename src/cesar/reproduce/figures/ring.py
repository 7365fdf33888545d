"""Not in the paper: how wide a ring."""

from __future__ import annotations

import math

from cesar.reproduce.compare import against, gap
from cesar.reproduce.reproduction import Claim, Outcome, Reproduction, needs, takes
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


def _narrow(outcome: Outcome) -> str:
    """What narrower rings cost, and the narrowest that cost nothing measurable."""
    compared, harmless = against(outcome.rows, "CESAR"), set(WIDTHS)
    if not compared:
        return ""
    for rows in outcome.rows.values():
        for bits in WIDTHS:
            row = rows.get(_label(bits))
            difference, error = (math.nan, math.nan) if row is None else gap(row, rows["CESAR"])
            if not abs(difference) <= 2 * error:
                harmless.discard(bits)
    advice = (
        f"where bytes matter, {min(harmless)} bits are within two standard errors of 32 on all of them"
        if harmless
        else "no narrower ring is within two standard errors of it on all of them"
    )
    return (
        f"Against 32 bits: {compared}. The default stays at 32 bits: values then are finer than six decimals for parameters "
        f"below 100, so that nothing has to be tried out first; {advice}."
    )


RING = Reproduction(
    name="ring",
    place="not in the paper",
    brief="how wide a ring",
    what="accuracy with rings of 16, 20, 24 and 32 bits",
    needs=needs("cifar10, movielens"),
    takes=takes("4 s", "9 min", "6 h", "8 days"),
    experiments=experiments,
    claims=(Claim(title="How wide a ring", check=_narrow),),
)
