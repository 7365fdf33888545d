"""How much of a model CESAR shares (Paper: Theorem `expected_parameters_shared_collusion`)."""

from __future__ import annotations

from collections.abc import Callable
from math import comb

from cesar.base.errors import ConfigError


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


def _inverse(share_of: Callable[[float], float], share: float) -> float:
    """The α that leads to a share. A share grows with α, so bisection finds it."""
    if not 0.0 < share <= 1.0:
        raise ConfigError(f"share is {share}, but it is a fraction above 0 and at most 1")
    low, high = 0.0, 1.0
    while (middle := (low + high) / 2) not in (low, high):
        if share_of(middle) < share:
            low = middle
        else:
            high = middle
    return high
