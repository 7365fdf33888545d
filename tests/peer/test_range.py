"""Sums that honest members cannot have brought: garbage in the right form, or masks that did not cancel."""

from __future__ import annotations

import numpy as np
import pytest

from cesar.kernels import ring

SIZE, LIAR, TARGET = 400, 0, 4


@pytest.mark.parametrize("bits", ring.RING_BITS)
@pytest.mark.parametrize("members", [2, 3, 5, 8])
def test_every_honest_sum_can_be_and_noise_cannot(bits, members):
    most = 1 << (bits - 1 - ring.headroom(members))
    edge = np.array([members * most, -members * most, 0], np.int64).astype(np.uint32) & np.uint32(
        (1 << bits) - 1
    )
    assert ring.can_be(edge.astype(np.uint32), bits, members, members)
    beyond = np.array([members * (most + 1) + 1], np.int64).astype(np.uint32)
    assert not ring.can_be(beyond, bits, members, members)
    noise = np.random.default_rng(1).integers(0, 1 << bits, 64, np.uint32)
    assert not ring.can_be(noise, bits, members, members)
