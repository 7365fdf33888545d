"""How much of a model is shared: by CESAR (Paper: Theorem `expected_parameters_shared_collusion`), and by fixed groups
in which everybody sends what any member selected.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import comb

from cesar.errors import ConfigError


def _check(degree: int, masking_requirement: int) -> None:
    if masking_requirement < 1:
        raise ConfigError(
            f"masking_requirement is {masking_requirement}, but a parameter needs at least 1 mask"
        )
    if degree <= masking_requirement:
        raise ConfigError(
            f"a receiver with {degree} neighbour(s) cannot give {masking_requirement} mask(s) to any of them; "
            f"use a degree of at least {masking_requirement + 1} or fewer masks"
        )


def expected_share(alpha: float, degree: int, masking_requirement: int = 1) -> float:
    """β(α, δ, s): the fraction of parameters that reach a receiver of that degree.

    >>> round(expected_share(0.3422, 6, 1), 3)
    0.3

    Args:
        alpha: α, the probability that a node selects a parameter, independently of others.
        degree: δ, the number of neighbours of the receiver.
        masking_requirement: s, the masks that a parameter must carry to be sent.
    """
    _check(degree, masking_requirement)
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}, but it is a fraction between 0 and 1")
    others = degree - 1
    return sum(
        comb(others, i) * alpha ** (i + 1) * (1.0 - alpha) ** (others - i)
        for i in range(masking_requirement, others + 1)
    )


def required_alpha(share: float, degree: int, masking_requirement: int = 1) -> float:
    """The α for which the expected share is `share`.

    >>> round(required_alpha(0.30, 6, 1), 4)
    0.3422
    """
    _check(degree, masking_requirement)
    return _inverse(lambda alpha: expected_share(alpha, degree, masking_requirement), share)


def expected_union(alpha: float, sizes: Sequence[int]) -> float:
    """β of TopK in fixed groups of these sizes: the fraction that at least one member of a group selected.

    Every member of a group sends a share, so a group counts once for each. It holds for independent selections; where
    members select alike, less is shared.

    >>> round(expected_union(0.1633, [2, 2, 2]), 3)
    0.3

    Args:
        alpha: α, the probability that a node selects a parameter.
        sizes: how many members each group of a receiver has.
    """
    if not sizes or min(sizes) < 1:
        raise ConfigError("the share of a union needs groups with members")
    if not 0.0 <= alpha <= 1.0:
        raise ConfigError(f"alpha is {alpha}, but it is a fraction between 0 and 1")
    return sum(size * (1.0 - (1.0 - alpha) ** size) for size in sizes) / sum(sizes)


def required_union_alpha(share: float, sizes: Sequence[int]) -> float:
    """The α for which groups of these sizes are expected to share that much.

    >>> round(required_union_alpha(0.30, [2, 2, 2]), 4), round(required_union_alpha(0.30, [3, 3]), 4)
    (0.1633, 0.1121)
    """
    return _inverse(lambda alpha: expected_union(alpha, sizes), share)


def _inverse(share_of: Callable[[float], float], share: float) -> float:
    """The α that shares so much; a share grows with α, so bisection finds it."""
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"share is {share}, but it is a fraction above 0 and at most 1")
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if share_of(middle) < share:
            low = middle
        else:
            high = middle
    return high
