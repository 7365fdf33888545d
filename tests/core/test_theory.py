"""The expected share: the paper's values, the closed form, chance itself, and its inversion."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cesar.base.errors import ConfigError
from cesar.graph.shares import expected_share, required_alpha

PAPER = [  # share, degree, masking requirement, alpha
    (0.30, 3, 1, 0.4383),
    (0.50, 3, 1, 0.5970),
    (0.30, 6, 1, 0.3422),
    (0.50, 6, 1, 0.5139),
    (0.30, 5, 1, 0.3603),
    (0.30, 6, 2, 0.4253),
    (0.30, 6, 3, 0.5334),
]
degrees = st.integers(2, 40)


@pytest.mark.parametrize(("share", "degree", "s", "alpha"), PAPER)
def test_the_values_of_the_paper(share, degree, s, alpha):
    assert required_alpha(share, degree, s) == pytest.approx(alpha, abs=1e-4)
    assert expected_share(alpha, degree, s) == pytest.approx(share, abs=2e-4)


@given(st.floats(0, 1), degrees)
def test_one_mask_has_a_closed_form(alpha, degree):
    """Sent unless none of the others selected it: β = α (1 − (1 − α)^(δ − 1))."""
    assert expected_share(alpha, degree) == pytest.approx(
        alpha * (1 - (1 - alpha) ** (degree - 1)), abs=1e-12
    )


@given(st.floats(0, 1), degrees)
def test_all_masks_have_a_closed_form(alpha, degree):
    """With s = δ − 1 everybody must have selected it: β = α^δ."""
    assert expected_share(alpha, degree, degree - 1) == pytest.approx(alpha**degree, abs=1e-12)


@pytest.mark.parametrize("s", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("alpha", [0.05, 0.3422, 0.7])
def test_the_expectation_is_that_of_chance(alpha, s):
    """A million parameters of six senders; 5.5 standard errors are p < 4e-8."""
    degree, size = 6, 1_000_000
    selected = np.random.default_rng(s).random((degree, size)) < alpha
    sent = selected[0] & (selected[1:].sum(axis=0) >= s)
    share = expected_share(alpha, degree, s)
    assert abs(sent.mean() - share) < max(5.5 * math.sqrt(share * (1 - share) / size), 8 / size)


@given(st.floats(1e-6, 1), degrees, st.data())
def test_required_alpha_inverts_expected_share(share, degree, data):
    s = data.draw(st.integers(1, degree - 1))
    alpha = required_alpha(share, degree, s)
    assert 0 < alpha <= 1
    assert expected_share(alpha, degree, s) == pytest.approx(share, rel=1e-9)
    assert alpha >= share * (1 - 1e-12), "no more can be sent than was selected"


@given(st.floats(0, 1), st.floats(0, 1), degrees)
def test_more_selected_is_more_sent(one, other, degree):
    low, high = sorted((one, other))
    assert expected_share(low, degree) <= expected_share(high, degree) + 1e-12


@given(st.floats(0, 1), st.integers(3, 40))
def test_more_masks_are_less_sent(alpha, degree):
    shares = [expected_share(alpha, degree, s) for s in range(1, degree)]
    assert all(a >= b - 1e-12 for a, b in pairwise(shares))


def test_the_ends():
    assert expected_share(0.0, 6) == 0.0
    assert expected_share(1.0, 6) == 1.0
    assert required_alpha(1.0, 6, 5) == 1.0


@pytest.mark.parametrize("function", [expected_share, required_alpha])
@pytest.mark.parametrize(("degree", "s"), [(1, 1), (0, 1), (3, 3), (6, 7)])
def test_a_receiver_with_too_few_neighbours(function, degree, s):
    with pytest.raises(ConfigError, match=f"use a degree of at least {s + 1} or fewer masks"):
        function(0.5, degree, s)


@pytest.mark.parametrize("function", [expected_share, required_alpha])
@pytest.mark.parametrize("s", [0, -1])
def test_at_least_one_mask(function, s):
    with pytest.raises(ConfigError, match="at least 1 mask"):
        function(0.5, 6, s)


@pytest.mark.parametrize("alpha", [-0.01, 1.01, math.nan, math.inf])
def test_alpha_is_a_fraction(alpha):
    with pytest.raises(ConfigError, match="fraction between 0 and 1"):
        expected_share(alpha, 6)


@pytest.mark.parametrize("share", [0.0, -0.01, 1.01, math.nan])
def test_share_is_a_fraction(share):
    with pytest.raises(ConfigError, match="fraction above 0 and at most 1"):
        required_alpha(share, 6)
