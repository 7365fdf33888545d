"""One mask for a pair, used towards every receiver, as Algorithm 1 of the paper is written: what receivers make of it.

What a sender i puts on the wire for r is v_i + Σ ± M_ij over r's other neighbours j. Coefficients that take every mask out leave a
combination of values. With a mask of its own for each receiver such combinations are sums over neighbourhoods. Here the same is
worked out for masks that are used again.
"""

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

VIEWS = st.lists(st.sets(st.integers(0, 6), min_size=2), min_size=2, max_size=5)


def free_of_masks(views, value_of=lambda r, i: i):
    """Rows that span all combinations of shares in which no mask is left, over the values; `value_of` says which value a
    node hands a receiver.
    """
    pairs = {pair: k for k, pair in enumerate({p for view in views for p in combinations(sorted(view), 2)})}
    shares = [(r, i) for r, view in enumerate(views) for i in sorted(view)]
    names = sorted({value_of(r, i) for r, i in shares})
    values, masks = np.zeros((len(shares), len(names))), np.zeros((len(shares), len(pairs)))
    for row, (r, i) in enumerate(shares):
        values[row, names.index(value_of(r, i))] = 1
        for j in views[r] - {i}:
            masks[row, pairs[min(i, j), max(i, j)]] = 1 if i < j else -1
    _, sizes, turned = np.linalg.svd(masks.T)
    return turned[np.count_nonzero(sizes > 1e-9) :] @ values, names


def rank(*rows):
    return np.linalg.matrix_rank(np.vstack(rows), tol=1e-8)


@given(VIEWS)
def test_in_one_round_receivers_get_sums_over_neighbourhoods_and_no_more(views):
    """Whatever their neighbourhoods and however many of them pool what they got. For two receivers: a neighbour of one alone
    ties all coefficients of that one together, through the masks that only it has; without such neighbours both got the same.
    """
    rows, names = free_of_masks(views)
    sums = np.array([[float(i in view) for i in names] for view in views])
    assert rank(rows, sums) == rank(sums)


def test_used_in_two_rounds_they_give_away_every_change():
    """One receiver, two rounds: the difference of two shares is what a neighbour has trained in between."""
    rows, names = free_of_masks([{0, 1, 2}, {0, 1, 2}], value_of=lambda r, i: (r, i))
    for node in range(3):
        change = np.array([{(0, node): -1.0, (1, node): 1.0}.get(name, 0.0) for name in names])
        assert rank(rows, change) == rank(rows)
