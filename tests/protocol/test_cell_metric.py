"""The mean of a metric over a cell: exact, masked, over the whole cell or not at all."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import cesar
from cesar.base.errors import EncodingError
from cesar.kernels import ring
from cesar.methods.cells import METRIC_EXPONENT, METRIC_RANGE
from cesar.protocol.cell_round import EXTRA_BITS
from cesar.protocol.wire import Kind
from cesar.protocol.wire_cells import Gather, metric_to_bytes
from support.cell_liar import AGREE, GATHER, HEAD, Stage
from support.cell_network import Network

SPARSIFIERS = {
    "full": cesar.FullSharing(),
    "random": cesar.RandomSubsampling(0.3),
    "blocks": cesar.BlockTopK(0.25, 16),
}


def measuring(nodes, **settings):
    return Network(nodes, metric=True, **settings)


@pytest.mark.parametrize("name", SPARSIFIERS)
@pytest.mark.parametrize("more", [{}, {"robust": True}, {"ring_bits": 16}])
def test_every_member_is_told_the_mean_of_its_cell(name, more):
    network = measuring(9, sparsifier=SPARSIFIERS[name], **more)
    for round_ in range(3):
        metrics = np.random.default_rng(round_).random(9).tolist()
        result = network.round(metrics=metrics)
        for cell in result.cells:
            expected = np.mean([metrics[node] for node in cell])
            told = {result.reports[node].metric for node in cell}
            assert len(told) == 1, "all members are told the same bits"
            assert told.pop() == pytest.approx(expected, abs=2**-24)
        network.check_alike()


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-METRIC_RANGE, METRIC_RANGE, allow_subnormal=False), min_size=4, max_size=4))
def test_the_mean_is_exact_over_the_whole_range(metrics):
    result = cesar.aggregate(
        np.zeros((4, 70), dtype=np.float32), None, cesar.Cells(metric=True), metrics=metrics
    )
    assert result.reports[0].metric == pytest.approx(np.mean(metrics), abs=2**-24)


def test_a_large_cell_adds_up_the_largest_metrics():
    """What each of 64 members rounds off is less than one half together; so it is for 255."""
    metrics = np.where(np.arange(64) % 3, METRIC_RANGE, -METRIC_RANGE + 0.25).tolist()
    for members in (64, 255):
        step = 1.0 / ring.binary_grid(EXTRA_BITS, np.array([1]), (METRIC_EXPONENT,), members).scales[0]
        assert members * step / 2 < 0.5
    result = cesar.aggregate(
        np.zeros((64, 64), dtype=np.float32), None, cesar.Cells(size=64, metric=True), metrics=metrics
    )
    assert result.reports[7].metric == pytest.approx(np.mean(metrics), abs=2**-22)


def test_with_weights_it_is_the_plain_mean():
    network = Network(5, samples=[10, 20, 30, 40, 50], weight="samples", metric=True)
    for _ in range(2):  # with the weights in the same sum, and without
        result = network.round(metrics=[1, 2, 3, 4, 5.5])
        assert result.reports[0].metric == pytest.approx(3.1, abs=2**-24)
    assert network.ensemble.states[0].carried.total == 150


def test_a_metric_travels_under_masks():
    """The words of one member differ from run to run and say nothing of its metric; the sum is the same."""

    def sent(metric, seed):
        frames = []
        network = measuring(4, seed=seed)
        network.round(metrics=[metric, 0.5, 0.5, 0.5], watch=lambda *args: frames.append(args))
        return {
            (sender, to): bytes(frame.payload[-8:])
            for sender, to, frame in frames
            if frame.kind is Kind.CELL_SCATTER
        }

    low, high = sent(0.0, 1), sent(1.0, 1)
    assert len(set(sent(0.5, 2).values())) == 4, "the same two words to every keeper"
    for words in (low, high):
        assert all(struct.unpack("<2I", word) != (0, 0) for word in words.values())
    # The same masks: what differs is the metric itself, so a run without them would show it here.
    assert [k for k in low if low[k] != high[k]] == [k for k in low if k[0] == 0]


def test_all_members_or_nobody():
    network = measuring(4)
    plain = Network(4)
    frames = []
    result = network.round(metrics=[0.9, 0.8, None, 0.7], watch=lambda *args: frames.append(args))
    assert all(report.summed and report.metric is None for report in result.reports)
    without = []
    plain.round(watch=lambda *args: without.append(args))
    scatters = [
        [len(f.payload) for *_, f in some if f.kind is Kind.CELL_SCATTER] for some in (frames, without)
    ]
    assert scatters[0] == scatters[1], "no word more than without metrics"
    assert network.round().reports[0].metric is None
    assert network.round(metrics=[1, 2, 3, 4]).reports[0].metric == 2.5


def test_only_the_whole_cell_is_measured():
    """Of two sums with and without a member the difference would be about its metric."""
    network = Network(5, metric=True, patience=1)
    assert network.round(metrics=[1, 2, 3, 4, 5]).reports[0].metric == 3
    away = {4: "before_announce"}
    network.round(metrics=[1, 2, 3, 4, None], crashes=away)
    result = network.round(metrics=[1, 2, 3, 4, None], crashes=away)
    assert len(result.reports[0].members) == 4
    assert result.reports[0].summed
    assert result.reports[0].metric is None


@pytest.mark.parametrize("told", [0, 3])
def test_a_liar_that_tells_members_different_things(told):
    """It says to one member that it brings no metric, and to the others that it does: masks do not cancel, and nobody learns anything."""
    stage = Stage(4, metric=True)

    def lie(sender, to, kind, payload):
        if kind != AGREE or (sender, to) != (3, 0):
            return None
        at = HEAD + 48 + 1 + 1 + 8  # token, one exponent, given up, losses
        assert payload[at] == 1
        return [payload[:at] + bytes([told]) + payload[at + 1 :]]

    steps = np.random.default_rng(1).normal(size=(4, stage.size))
    stage.round(steps, lie, metrics=[0.1, 0.2, 0.3, 0.4])
    assert not any(stage.cells("summed").values())
    assert set(stage.cells("metric").values()) == {None}
    assert {error.reason.value for _, error in stage.refused} == {
        "stale-attempt" if told == 0 else "malformed"
    }
    stage.round(np.zeros((4, stage.size)), metrics=[0.1, 0.2, 0.3, 0.4])
    assert stage.cells("metric") == dict.fromkeys(range(4), pytest.approx(0.25))


def test_who_missed_a_slice_is_told_the_metric_with_it():
    stage = Stage(4, metric=True)
    steps = np.random.default_rng(1).normal(size=(4, stage.size))
    lost = lambda sender, to, kind, payload: [] if kind == GATHER and (sender, to) == (1, 2) else None  # noqa: E731
    stage.round(steps, lost, metrics=[1, 2, 3, 4])
    assert stage.cells("metric") == {0: 2.5, 1: 2.5, 2: None, 3: 2.5}
    stage.round(np.zeros_like(steps), metrics=[1, 2, 3, 5])
    assert stage.cells("metric", [2]) == {2: 2.5}


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf, METRIC_RANGE + 1, True, "0.9"])
def test_bad_metrics(metric):
    method, models = cesar.Cells(metric=True), np.zeros((4, 70), dtype=np.float32)
    with pytest.raises(cesar.DataError, match="metric"):
        cesar.aggregate(models, None, method, metrics=[0.1, 0.2, metric, 0.3])


def test_metrics_where_they_belong():
    models = np.zeros((4, 70), dtype=np.float32)
    with pytest.raises(cesar.ConfigError, match="metric = true"):
        cesar.aggregate(models, None, cesar.Cells(), metrics=[1, 2, 3, 4])
    with pytest.raises(cesar.DataError, match="3 metrics for 4 nodes"):
        cesar.aggregate(models, None, cesar.Cells(metric=True), metrics=[1, 2, 3])
    with pytest.raises(cesar.ConfigError, match="best"):
        cesar.Cells(metric=True, best="largest")
    noise = cesar.NoiseSpec(multiplier=1.0, sensitivity=0.1, bound=1.0, delta=1e-5)
    with pytest.raises(cesar.ConfigError, match="no noise hides its mean"):
        cesar.Cells(metric=True, noise=noise)


def test_what_a_keeper_may_tell():
    def told(content):
        return Gather.decode(memoryview(bytes([1]) + content), 0, measured=True).metric

    assert told(metric_to_bytes(0.25)) == 0.25
    assert told(metric_to_bytes(None)) is None
    for bad in (math.inf, -math.inf, 2.0 * METRIC_RANGE):
        with pytest.raises(EncodingError, match="metric"):
            told(struct.pack("<d", bad))
    with pytest.raises(EncodingError, match="metric"):
        told(b"short")
