"""NoiseSpec: Gaussian noise that the members of a cell add together, as much as one trusted server would add.

*On a grid.* An update D is scaled down to length R if it is longer, and rounded to multiples of γ, a power of two. A member adds γ times a discrete Gaussian number
(Canonne, Kamath and Steinke, 2020) of standard deviation σ/√h, where h is the least number of honest members of the sum. All of that are multiples of γ below 2^24, so that
the ring adds them up exactly, and a sum has noise of σ = zΔ or more. Rounding can move two neighbouring updates apart by γ√d at the most, so that accountants are given the
multiplier zΔ/(Δ + γ√d). The sum of discrete Gaussians is as good as one here: γ is below σ/2^6, and they differ by less than 10^−1000.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cesar.base.errors import ConfigError
from cesar.base.types import Entropy, Vector
from cesar.crypto.keystream import Keystream

_TAIL = 12.0
"""Standard deviations that there is room for; further out there is nothing, with a probability of 10^−32."""

_MANTISSA = 23
"""Bits of a float32 below its largest."""

_FINEST = 6
"""A standard deviation has at least 2^6 steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseSpec:
    """How much noise hides a sample.

    Attributes:
        multiplier: z, the standard deviation of a sum's noise over the sensitivity.
        sensitivity: Δ, how far one sample can move a member's update, as a length: for one step of DP-SGD the learning rate times the clipping
            length over the expected batch.
        bound: R, the length to which longer updates are scaled down.
        delta: δ, for which ε is said.
    """

    multiplier: float
    sensitivity: float
    bound: float
    delta: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("multiplier", "sensitivity", "bound"):
            value = getattr(self, name)
            if not 0.0 < value < math.inf:
                raise ConfigError(
                    f"{name} is {value}, but it must be a number above 0; leave noise out to train without"
                )
        if not 0.0 < self.delta < 1.0:
            raise ConfigError(
                f"delta is {self.delta}, but it must be between 0 and 1; use less than one over the number of samples"
            )
        if self.bound < self.sensitivity:
            raise ConfigError(
                f"bound is {self.bound}, but one sample moves an update by up to {self.sensitivity}: clip to at least that"
            )
        if self.sigma / self.step < 2**_FINEST:
            raise ConfigError(
                f"updates of up to {self.bound} are too long for noise of {self.sigma:g} on one grid; lower bound, or raise "
                "multiplier"
            )

    @property
    def sigma(self) -> float:
        """σ, the standard deviation of a sum's noise."""
        return self.multiplier * self.sensitivity

    @property
    def exponent(self) -> int:
        """Every value of an update with its noise is below 2^this, whatever the data are: announced in place of what they are."""
        return math.ceil(math.log2(self.bound + _TAIL * self.sigma))

    @property
    def step(self) -> float:
        """γ."""
        return float(2.0 ** (self.exponent - _MANTISSA))

    def effective(self, size: int) -> float:
        """The multiplier for an accountant: that of the rounded updates of a model with this number of parameters."""
        return self.sigma / (self.sensitivity + self.step * math.sqrt(size))

    def bounded(self, update: Vector) -> Vector:
        """The update, scaled down if it is too long."""
        length = float(np.sqrt(np.square(update, dtype=np.float64).sum()))
        return update if length <= self.bound else (update * (self.bound / length)).astype(np.float32)

    def noisy(self, update: Vector, honest: int, entropy: Entropy) -> Vector:
        """The update on the grid, with this member's part of the noise.

        Args:
            honest: the least number of members of the sum that add theirs.
            entropy: gives 32 bytes for a cipher, from whose stream all chance is taken.
        """
        steps = np.rint(self.bounded(update).astype(np.float64) / self.step)
        steps += discrete_gaussian(self.sigma / self.step / math.sqrt(honest), len(update), entropy(32))
        most = 2.0**_MANTISSA - 1
        found: Vector = (np.clip(steps, -most, most) * self.step).astype(np.float32)
        return found


def discrete_gaussian(sigma: float, count: int, key: bytes) -> NDArray[np.int64]:
    """Integers with probabilities proportional to exp(−n²/2σ²), from the stream of a key.

    A discrete Laplace number with scale t = ⌊σ⌋ + 1 is kept with probability exp(−(|n| − σ²/t)²/2σ²).
    """
    stream, scale = Keystream(key), math.floor(sigma) + 1
    found = np.empty(0, dtype=np.int64)
    while len(found) < count:
        tries = 2 * (count - len(found)) + 16
        words = np.empty(3 * tries, dtype=np.uint64)
        stream.fill(words)
        first, second, third = words.reshape(3, tries)
        # uniform in (0, 1], so that there is a logarithm
        tail, keep = (((part >> np.uint64(11)) + np.uint64(1)) * 2.0**-53 for part in (first, second))
        size = np.floor(-scale * np.log(tail))
        negative = (third & np.uint64(1)).astype(np.bool_)
        wanted = keep <= np.exp(-((size - sigma * sigma / scale) ** 2) / (2 * sigma * sigma))
        wanted &= ~(negative & (size == 0))  # or zero would come twice as often
        numbers = np.where(negative, -size, size).astype(np.int64)
        found = np.append(found, numbers[wanted])
    return found[:count]
