"""What a member of a cell keeps on disk: whole at every moment, no more often than it changes, and no secret longer than it is needed."""

import contextlib
import json
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cesar.base.errors import ConfigError
from cesar.kernels import bits
from cesar.kernels.prints import Fingerprint
from cesar.kernels.slicing import spans
from cesar.peer.driver import cell_file
from cesar.peer.driver.cell_file import CellFile
from cesar.protocol.cell_state import CellState, Doubt, Handed
from cesar.protocol.wire_cells import Claim

SIZE = 200_001  # so large that slices have places of their own, and no multiple of anything


def make(rng, before=None, size=SIZE):
    """A state as it is before numbers leave, or after a sum."""
    model = rng.standard_normal(size, dtype=np.float32)
    state = CellState.start(model, 0)
    positions = bits.from_bools(rng.random(size) < 0.7)
    keepers = (0, 1, 2)
    if before is None:
        state.unsent = rng.standard_normal(size, dtype=np.float32)
        state.handed, state.entered = Handed(keepers, positions), positions
        state.claim = Claim(bytes(32), 4, keepers, (b"",) * 3)
        if rng.random() < 0.5:
            state.doubt = Doubt(keepers, positions.copy(), rng.standard_normal(size, dtype=np.float32))
        return state
    state.claim = Claim(bytes(32), 4, keepers, (b"\1" * 32,) * 3)
    for k, (first, last) in enumerate(spans(bits.words_for(size), 3)):
        state.undo[k] = (before.common[64 * first : 64 * last], np.empty(0, np.uint8))
        state.bodies[k] = rng.bytes(2 * (last - first) * 64)
    state.fallback = state.unsent.copy()
    return state


def same(state, kept):
    """What a state says, as far as a restart leaves it alone."""
    expected = CellState.from_arrays(state.to_arrays()).to_arrays()
    found = kept.state.to_arrays()
    assert expected.keys() == found.keys()
    return all(np.array_equal(expected[name], found[name]) for name in expected)


def test_what_is_kept_is_what_was_saved(tmp_path):
    rng = np.random.default_rng(1)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    state = None
    for number in range(12):
        state = make(rng, state if number % 3 == 1 else None)
        trained = rng.standard_normal(SIZE, dtype=np.float32) if number % 4 == 3 else None
        file.save(state.to_arrays(copy=False), trained, (number, 2, 1), 0.5)
        kept = CellFile(tmp_path / "cell.npy", bytes(16)).load()
        assert same(state, kept)
        assert (kept.attempts, kept.thrown) == (number, 0.5)
        assert (trained is None) == (kept.trained is None)
        assert trained is None or np.array_equal(trained, kept.trained)
        if number % 5 == 4:  # another process goes on
            file = CellFile(tmp_path / "cell.npy", bytes(16))
            file.load()
    assert (tmp_path / "cell.data").stat().st_size < 10 * 4 * SIZE, "places are used again"
    assert (tmp_path / "cell.data").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("seed", range(3))
def test_a_save_that_breaks_off_leaves_the_last_one(seed, tmp_path, monkeypatch):
    """Every write of a save is torn in turn."""
    rng = np.random.default_rng(seed)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    kept, state = make(rng), None
    file.save(kept.to_arrays(), None, (0, 0, 0))
    write, torn, attempt = os.pwrite, True, 0
    while torn:
        torn, left = False, attempt

        def fails(handle, data, offset):
            nonlocal torn, left
            left -= 1
            if left < 0:
                torn = True
                write(handle, data[: len(data) // 2], offset)
                raise OSError(28, "no space left")
            return write(handle, data, offset)

        monkeypatch.setattr(cell_file.os, "pwrite", fails)
        state = make(rng, kept if attempt % 2 else None)
        with contextlib.suppress(OSError):
            file.save(state.to_arrays(), None, (1, 1, 1))
        monkeypatch.setattr(cell_file.os, "pwrite", write)
        expected = kept if torn else state
        assert same(expected, CellFile(tmp_path / "cell.npy", bytes(16)).load())
        attempt += 1
    assert attempt > 3


def test_what_has_not_changed_is_not_written_again(tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    wrote, write = [], os.pwrite
    monkeypatch.setattr(
        cell_file.os,
        "pwrite",
        lambda handle, data, offset: wrote.append(len(data)) or write(handle, data, offset),
    )
    first = make(rng)
    first.doubt = None
    file.save(first.to_arrays(), None, (0, 0, 0))
    assert sum(wrote) >= 8 * SIZE, "a new model, and what is unsent"
    wrote.clear()
    file.save(first.to_arrays(), None, (1, 1, 1))
    assert not wrote
    second = make(rng, first)
    file.save(second.to_arrays(), None, (1, 1, 1))
    bodies = sum(map(len, second.bodies.values()))
    assert sum(wrote) == 4 * SIZE + bodies, (
        "the new model and what was gathered; its undo is there, and zeros are nowhere"
    )


def test_nobody_reads_what_was_unsent_once_it_is_in_a_sum(tmp_path):
    rng = np.random.default_rng(3)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    before = make(rng)
    before.doubt = Doubt((0, 1, 2), bits.ones(SIZE), rng.standard_normal(SIZE, dtype=np.float32))
    trained = rng.standard_normal(SIZE, dtype=np.float32)
    file.save(before.to_arrays(), trained, (0, 0, 0))
    keys = [place.key for place in file._known if place.key]
    assert len(keys) >= 3
    after = make(rng, before)
    file.save(after.to_arrays(), None, (0, 0, 0))
    data, head = (tmp_path / "cell.data").read_bytes(), (tmp_path / "cell.npy").read_bytes()
    assert before.common[:1000].tobytes() in data, "the common model is no secret"
    for secret in (before.unsent, before.doubt.values, trained):
        for start in range(0, SIZE - 16, 997):
            assert secret[start : start + 16].tobytes() not in data
    assert not any(key.encode() in head or bytes.fromhex(key) in head + data for key in keys)


def test_the_undo_of_a_large_model_is_on_disk_only(tmp_path):
    """A state that has changed since it was saved goes back to what was saved, here and in another process."""
    rng = np.random.default_rng(6)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    assert file.archive() is None, "nothing was saved"
    state = make(rng)
    file.save(state.to_arrays(copy=False), None, (0, 0, 0))
    before, state.archive = state.common.copy(), file.archive()
    state.handed = None
    cut = spans(bits.words_for(SIZE), 3)
    for k in range(3):
        state.undo[k] = (None, np.empty(0, np.uint8))
    state.common[:] = rng.standard_normal(SIZE, dtype=np.float32)
    for _ in range(3):  # places are used again, but not these
        state.unsent = rng.standard_normal(SIZE, dtype=np.float32)
        file.save(state.to_arrays(copy=False), None, (0, 0, 0), 0.0, (0, 1, 2))
    kept = CellFile(tmp_path / "cell.npy", bytes(16)).load().state
    for k, (first, last) in enumerate(cut):
        assert np.array_equal(kept.undone(k)[0], before[64 * first : 64 * last])
        assert np.array_equal(state.undone(k)[0], before[64 * first : 64 * last])
    assert not state.undo


def test_damage_is_seen(tmp_path):
    rng = np.random.default_rng(4)
    state = make(rng)
    file = CellFile(tmp_path / "cell.npy", bytes(16))
    file.save(state.to_arrays(), None, (0, 0, 0))
    data = (tmp_path / "cell.data").read_bytes()
    places = sorted(place for place in file._known if place.offset >= 0)
    for place in places:
        at = place.offset + int(rng.integers(place.length))
        (tmp_path / "cell.data").write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        with pytest.raises(ConfigError, match="not what was saved"):
            CellFile(tmp_path / "cell.npy", bytes(16)).load()
    (tmp_path / "cell.data").write_bytes(data[:-SIZE])
    with pytest.raises(ConfigError, match="too short"):
        CellFile(tmp_path / "cell.npy", bytes(16)).load()
    (tmp_path / "cell.data").unlink()
    with pytest.raises(ConfigError, match="missing"):
        CellFile(tmp_path / "cell.npy", bytes(16)).load()
    (tmp_path / "cell.data").write_bytes(data)
    assert same(state, CellFile(tmp_path / "cell.npy", bytes(16)).load())
    with pytest.raises(ConfigError, match="another network"):
        CellFile(tmp_path / "cell.npy", bytes(15) + b"x").load()
    head = (tmp_path / "cell.npy").read_bytes()
    for end in (0, 5, 15, 40, len(head) // 2):
        (tmp_path / "cell.npy").write_bytes(head[:end])
        with pytest.raises(ConfigError):
            CellFile(tmp_path / "cell.npy", bytes(16)).load()
    for at in (*range(13, 500), *rng.integers(len(head), size=50).tolist()):
        (tmp_path / "cell.npy").write_bytes(head[:at] + bytes([head[at] ^ 32]) + head[at + 1 :])
        with pytest.raises(ConfigError):
            CellFile(tmp_path / "cell.npy", bytes(16)).load()


def test_a_file_of_an_older_version_is_read(tmp_path):
    state = make(np.random.default_rng(5))
    arrays = {
        **state.to_arrays(),
        "network": np.zeros(16, np.uint8),
        "counters": np.array((3, 2, 1)),
        "thrown": np.array(1.5),
    }
    with (tmp_path / "cell.npy").open("wb") as file:
        for array in (np.frombuffer(json.dumps([*arrays]).encode(), np.uint8), *arrays.values()):
            np.save(file, array)
    kept = CellFile(tmp_path / "cell.npy", bytes(16)).load()
    assert same(state, kept)
    assert (kept.attempts, kept.next_round, kept.next_settling, kept.thrown) == (3, 2, 1, 1.5)


def mark_of(data, start=7):
    mark = Fingerprint(start)
    mark.add(np.frombuffer(data, np.uint8))
    return mark.value


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=1200), st.data())
def test_a_fingerprint_sees_every_change(data, draw):
    at = draw.draw(st.integers(0, len(data) - 1))
    other = draw.draw(st.integers(0, len(data) - 1))
    flipped = bytearray(data)
    flipped[at] ^= 1 << draw.draw(st.integers(0, 7))
    assert mark_of(bytes(flipped)) != mark_of(data)
    swapped = bytearray(data)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    assert (mark_of(bytes(swapped)) == mark_of(data)) == (bytes(swapped) == data)
    assert mark_of(data + b"\0") != mark_of(data), "so does its length"
    assert mark_of(data, 8) != mark_of(data)
    signs = np.frombuffer(data + bytes(-len(data) % 4) + bytes(512), np.uint32).copy()
    once = mark_of(signs.tobytes())
    signs[[0, 64]] ^= np.uint32(1 << 31)  # two signs of the same lane
    assert mark_of(signs.tobytes()) != once


@pytest.mark.parametrize("row", [0, 5])
def test_nobody_can_choose_what_has_the_fingerprint_of_something_else(row):
    """A keeper chooses part of the common model. Had it the fingerprint of the model before, that one would stay on the disk, and this member would
    train on it after a restart, alone. A flipped top bit moves to one place, so one word in the next row takes it back.
    """
    first, second = 0xC2B2AE3D27D4EB4F, 0x9E3779B185EBCA87  # the factors of xxHash
    words = np.random.default_rng(row).integers(1 << 63, size=32 * 8, dtype=np.uint64)
    other, lane = words.copy(), 32 * row + 7
    other[lane] ^= np.uint64(1 << 63)
    back = (1 << 30) * second * pow(first, -1, 1 << 64) % (1 << 64)
    for sign in (1, -1):
        other[lane + 32] = (int(words[lane + 32]) + sign * back) % (1 << 64)
        assert not any(
            mark_of(words.tobytes(), start) == mark_of(other.tobytes(), start) for start in range(32)
        )


@settings(max_examples=50, deadline=None)
@given(st.binary(max_size=3000), st.integers(0, 10))
def test_a_fingerprint_of_pieces_is_that_of_the_whole(data, rows):
    whole = np.frombuffer(data, np.uint8)
    cut = min(256 * rows, len(data) // 256 * 256)
    mark = Fingerprint(7)
    mark.add(whole[:cut])
    mark.add(whole[cut:])
    assert mark.value == mark_of(data)
    assert mark.zero == (not any(data))
