"""More attacks of somebody who has read the threat model and the wire format (docs/design/019-a-second-reader.md): numbers that no honest
member or cell can have sent, and frames that cost more than they should.
"""

import struct

import numpy as np
import pytest

import cesar
from cesar.base.errors import Reason
from cesar.kernels.slicing import spans
from cesar.protocol.cell_round import SETTLING_FIRST, SETTLING_TRIES
from support.cell_liar import AGREE, EXCHANGE, GATHER, HEAD, SIZE, Stage


def steps(nodes, seed=0):
    """All train much the same."""
    rng = np.random.default_rng(seed)
    return (rng.normal(size=SIZE) + 0.3 * rng.normal(size=(nodes, SIZE))).astype(np.float32)


def grid_row(count, exponent, words):
    """One tensor's exponent and its values, of 32 bits."""
    return bytes([127 + exponent]) + np.resize(np.array(words, "<i4"), count).tobytes()


# ── a keeper that goes round the vote ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("settles", [False, True])
def test_what_was_heard_of_other_cells_is_nothing_where_there_are_none(settles):
    """One cell alone: whatever its keeper says that it has heard, members apply what they have voted on and nothing else."""
    models = {}
    for lies in (False, True):
        stage = Stage(4, robust=True)
        for r in range(3):
            stage.round(steps(4, r))
        if settles:
            for node in stage.nodes.values():
                node.use_method(stage.method.settled())
        liar = 2

        def lie(sender, to, kind, payload, liar=liar, lies=lies):
            if not lies or sender != liar or kind != GATHER or len(payload) == HEAD:
                return None
            return [payload[: HEAD + 1] + grid_row(64, 10, [2**30])]

        stage.round(np.zeros((4, SIZE)) if settles else steps(4, 3), lie)
        models[lies] = [stage.common(n).copy() for n in range(4) if n != liar]
    np.testing.assert_array_equal(models[True], models[False])


# ── scales ──────────────────────────────────────────────────────────────────────────────────────────────


def scaled(exponent, liar=2):
    """A member that announces values of this size, with numbers as small as ever."""

    def lie(sender, to, kind, payload):
        if sender != liar or kind != AGREE:
            return None
        return [payload[: HEAD + 48] + bytes([127 + exponent]) + payload[HEAD + 49 :]]

    return lie


def test_a_scale_that_rounds_everybody_to_nothing_is_refused():
    """Else all would hand in, see a sum of zeros, and have nothing left: a liar, or a member that has diverged, would undo all training unseen."""
    for exponent, taken in ((16, True), (17, False), (100, False)):
        stage = Stage(4, scale_bits=16)
        stage.round(0.1 * steps(4), scaled(exponent))
        others = [0, 1, 3]
        assert [bool(stage.reports[n].cell.members) for n in others] == [taken] * 3
        unsafe = [n for n, error in stage.refused if error.reason is Reason.UNSAFE_SCALE]
        assert sorted(unsafe) == ([] if taken else others)
        if not taken:
            assert all(np.linalg.norm(stage.unsent(n)) > 1 for n in others), "what was trained is kept"
