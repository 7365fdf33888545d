"""Paired differences, against values worked out by hand and the printed table of Student's t."""

import math

import pytest

from cesar_lab.run.config import MethodTable
from cesar_lab.show.paired import Difference, paired, standard_error_of
from cesar_lab.show.results import Study, reference

T = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776, 10: 2.262, 31: 2.042}
"""Number of seeds → the 97.5 % quantile of its degrees of freedom, as printed in every table."""


def test_by_hand():
    """Differences 2, 3 and 1: mean 2, deviation 1, error 1/√3. What both have in common does not matter."""
    found = paired({1: 102.0, 2: 53.0, 3: 11.0}, {3: 10.0, 2: 50.0, 1: 100.0})
    assert found == Difference(
        mean=2.0, error=pytest.approx(0.57735, abs=1e-5), margin=pytest.approx(2.4841, abs=1e-4), seeds=3
    )


@pytest.mark.parametrize("seeds, t", T.items())
def test_margins_are_students(seeds, t):
    values = {seed: float(seed % 3) for seed in range(seeds)}
    found = paired(values, dict.fromkeys(values, 0.0))
    assert found.margin / found.error == pytest.approx(t, abs=5e-4)


def test_only_common_seeds_count():
    assert paired({1: 1.0}, {2: 1.0}) is None
    assert paired({1: 3.0, 2: 9.0}, {1: 1.0, 3: 0.0}) == Difference(
        mean=2.0, error=None, margin=None, seeds=1
    )


def test_a_constant_difference_has_no_error_and_a_diverged_run_has_no_figure():
    assert paired({1: 2.0, 2: 5.0}, {1: 1.0, 2: 4.0}).margin == 0
    assert math.isnan(paired({1: math.nan, 2: 1.0}, {1: 0.0, 2: 0.0}).margin)
    assert standard_error_of([1.0]) is None


def test_references():
    tables = {
        "noise": {"name": "dpsgd", "noise": 0.1},
        "full": {"name": "dpsgd"},
        "secure": {"name": "secagg"},
        "random": {"name": "dpsgd", "sparsifier": "random", "share": 0.3},
        "arrived": {"name": "dpsgd", "sparsifier": "random", "share": 0.3, "weights": "arrived"},
        "ours": {"name": "cesar", "sparsifier": "random", "share": 0.3},
        "less": {"name": "cesar", "sparsifier": "random", "share": 0.1},
        "matched": {"name": "dpsgd", "sparsifier": "topk"},
        "ranked": {"name": "cesar", "sparsifier": "topk", "share": 0.05},
    }
    methods = [MethodTable(label=label, **table) for label, table in tables.items()]
    study = Study(folder="", experiment=None, metric="accuracy", methods=methods, runs={})
    found = {method.label: reference(study, method) for method in methods}
    assert {label: other and other.label for label, other in found.items()} == {
        "noise": "full",
        "full": None,
        "secure": "full",
        "random": "full",
        "arrived": "random",
        "ours": "random",
        "less": "full",
        "matched": "full",
        "ranked": "matched",
    }
