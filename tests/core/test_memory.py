"""Memory that is used again: nobody gets what somebody still holds."""

from __future__ import annotations

import gc
import random
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from cesar.base import memory

MB = 1 << 20


@pytest.fixture(autouse=True)
def _bare_shelf(monkeypatch):
    monkeypatch.setattr(memory, "_shelf", {})


def place(array):
    return array.__array_interface__["data"][0]


def test_a_piece_that_is_gone_leaves_nothing_to_search_for():
    gc.collect()
    gc.disable()
    try:
        for length in (37 * MB, 41 * MB):
            memory.empty(length, np.uint8)
        assert gc.collect() == 0
    finally:
        gc.enable()


def test_a_piece_is_used_again_when_its_last_view_is_gone():
    array = memory.empty(3 * MB, np.uint8)
    where, view = place(array), array[MB:].view("<u4")[5:].data
    del array
    gc.collect()
    other = memory.empty(3 * MB, np.uint8)
    assert place(other) != where, "a view of a view is still there"
    del view
    gc.collect()
    again = memory.empty(3 * MB - 5, np.uint8)
    assert place(again) == where, "sizes need not agree to the byte"


def test_what_nobody_uses_can_be_given_back():
    held, free = memory.empty(2 * MB, np.uint8), memory.empty(3 * MB, np.uint8)
    held[:] = 7
    del free
    assert len(memory._shelf) == 1
    memory.clear()
    assert not memory._shelf
    assert (held == 7).all()


def test_small_pieces_are_left_to_the_system():
    del_me = memory.empty(1000, np.uint64)
    assert del_me.dtype == np.uint64
    del del_me
    assert not memory._shelf


def test_what_fits_nobody_is_given_up():
    old = [memory.empty(8 * MB, np.uint8) for _ in range(3)]
    del old
    held = [memory.empty(2 * MB, np.uint8) for _ in range(3)]
    assert not memory._shelf, "each of them asked in vain, and one that is far too large went"
    del held


def test_the_shelf_has_an_end():
    held = [memory.empty(MB + k, np.uint8) for k in range(50)]
    del held
    assert len(memory._shelf) == 32


def test_two_never_hold_the_same_memory():
    """Many threads take, write, look again and let go."""

    def work(seed):
        chance = random.Random(seed)
        held = []
        for step in range(300):
            array = memory.empty(chance.choice([MB, MB + 77, 2 * MB]), np.uint8)
            mark = (seed * 37 + step) % 251
            array[:: 1 << 12] = mark
            held.append((array, mark))
            if len(held) > 4:
                seen, expected = held.pop(chance.randrange(5))
                assert (seen[:: 1 << 12] == expected).all()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(8)))


FAULTS = """
import resource
from cesar.base import memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(50):
        held = [bytes([1]) * (1 << 20) for _ in range(4)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first, kept = faults(), memory.keep_freed()
faults()
print(first, int(kept), faults())
"""


def test_the_c_library_keeps_what_is_freed():
    """In a process of its own, since it holds for all of it."""
    done = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    first, kept, later = map(int, done.stdout.split())
    if not kept:
        pytest.skip("this system has no such switch")
    assert later < 1000, "200 messages of 1 MB, not one of them in fresh memory"
    assert first == 0 or later < first
