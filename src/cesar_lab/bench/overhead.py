"""What security costs: whole rounds, training and protocol, in turn with D-PSGD and with the bare PyTorch loop."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar.base.seeds import SeedTree
from cesar.methods import Method
from cesar_lab.bench.floor import seconds
from cesar_lab.bench.training import bare_rounds
from cesar_lab.run.host import Host, Setup


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Median seconds of a round of all nodes, and of its two parts; a part that is not there takes 0."""

    round_seconds: float
    training_seconds: float
    protocol_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadBenchmark:
    """What `cesar bench overhead` measured.

    Both methods train alike, so what their training differs by is noise: a round is what training took both of them in
    the same turn, on average, and the own protocol.

    Attributes:
        ratio_to_dpsgd: a whole round of the method to one of D-PSGD, the median of the turns.
        spread_to_dpsgd: the lower and the upper quartile of the turns.
        ratio_to_bare: to the bare loop, which trains and does not average.
        spread_to_bare: its quartiles.
        shared: β of the method as measured, which D-PSGD gets as its share.
        dpsgd_shared: β of D-PSGD as measured.
        method, dpsgd, bare: median seconds as they were measured.
    """

    ratio_to_dpsgd: float
    spread_to_dpsgd: tuple[float, float]
    ratio_to_bare: float
    spread_to_bare: tuple[float, float]
    shared: float
    dpsgd_shared: float
    method: Timed
    dpsgd: Timed
    bare: Timed


class _Runner:
    """All nodes of one run, with the seconds of every round; the first one warms up and is not counted."""

    def __init__(self, setup: Setup) -> None:
        self._host = Host(setup, range(len(setup.parts)))
        self.training: list[float] = []
        self.protocol: list[float] = []
        self.shared = 0.0

    def round(self, number: int) -> None:
        begin = time.perf_counter()
        self._host.train(number)
        trained = time.perf_counter()
        self.shared = self._host.average(number).shared
        if number > 0:
            self.training.append(trained - begin)
            self.protocol.append(time.perf_counter() - trained)

    def close(self) -> None:
        self._host.close()

    @property
    def timed(self) -> Timed:
        whole = [one + other for one, other in zip(self.training, self.protocol, strict=True)]
        return Timed(
            round_seconds=statistics.median(whole),
            training_seconds=statistics.median(self.training),
            protocol_seconds=statistics.median(self.protocol),
        )


def bench_overhead(
    setup: Callable[[Method], Setup],
    method: Method,
    baseline: Callable[[float], Method],
    *,
    rounds: int,
    progress: Callable[[str], None] = lambda _: None,
) -> OverheadBenchmark:
    """Run whole rounds of the method, of the baseline and of the bare loop in turn, so that noise hits all alike.

    Args:
        setup: a run with this method; all that it says besides is the same for both.
        baseline: D-PSGD that shares this much; it gets what the method shared in its first round.
    """
    ours_setup = setup(method)
    ours = _Runner(ours_setup)
    progress("one round to agree on keys and to compile")
    ours.round(0)
    theirs = _Runner(setup(baseline(ours.shared)))
    theirs.round(0)
    bare: list[float] = []
    try:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            loop = bare_rounds(
                ours_setup.data,
                ours_setup.module,
                ours_setup.parts,
                ours_setup.sgd,
                seeds=SeedTree(ours_setup.seed),
                pool=pool,
            )
            loop(0)

            def alone(number: int) -> None:
                bare.append(seconds(lambda: loop(number)))

            jobs = [ours.round, theirs.round, alone]
            for number in range(1, rounds + 1):
                progress(f"turn {number} of {rounds}")
                for job in (*jobs[number % 3 :], *jobs[: number % 3]):  # nobody always follows the same one
                    job(number)
    finally:
        ours.close()
        theirs.close()
    bare_seconds = statistics.median(bare)
    training = (np.array(ours.training) + np.array(theirs.training)) / 2
    method, dpsgd = training + ours.protocol, training + theirs.protocol
    low, to_dpsgd, high = _quartiles(method / dpsgd)
    lower, to_bare, higher = _quartiles(method / np.array(bare))
    return OverheadBenchmark(
        ratio_to_dpsgd=to_dpsgd,
        spread_to_dpsgd=(low, high),
        ratio_to_bare=to_bare,
        spread_to_bare=(lower, higher),
        shared=ours.shared,
        dpsgd_shared=theirs.shared,
        method=ours.timed,
        dpsgd=theirs.timed,
        bare=Timed(round_seconds=bare_seconds, training_seconds=bare_seconds, protocol_seconds=0.0),
    )


def _quartiles(ratios: NDArray[np.float64]) -> tuple[float, float, float]:
    low, middle, high = np.quantile(ratios, (0.25, 0.5, 0.75)).tolist()
    return low, middle, high
