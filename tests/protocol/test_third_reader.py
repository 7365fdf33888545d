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
from support.cell_liar import EXCHANGE, GATHER, HEAD, SIZE, Stage


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
