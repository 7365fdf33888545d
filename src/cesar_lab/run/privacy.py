"""(ε, δ) of a sample in a run with noise, by the accountants of Opacus."""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType

from cesar.base.errors import ConfigError, DataError
from cesar.methods.noise import NoiseSpec

BUDGET_FILE = "privacy.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """What a run spends on the privacy of a sample.

    Attributes:
        noise: of the cells.
        size: d.
        rate: the probability with which a sample is in a batch; the largest of all nodes.
        members: of the smallest cell.
        honest: the least number of its members that add noise which k owners do not know.
    """

    noise: NoiseSpec
    size: int
    rate: float
    members: int
    honest: int

    def epsilon(self, rounds: int, known: int | None = None) -> float:
        """ε after `rounds`, against somebody who knows the noise of `known` members; by default of k owners'."""
        if not rounds:
            return 0.0
        left = self.honest if known is None else self.members - known
        multiplier = self.noise.effective(self.size) * math.sqrt(left / self.honest)
        return epsilon(multiplier, self.rate, rounds, self.noise.delta)

    def to_json(self) -> dict[str, object]:
        """For the folder of a run."""
        return asdict(self)

    @classmethod
    def read(cls, folder: Path) -> Budget | None:
        """That of a run; None if it had no noise.

        Raises:
            DataError: the file is not what a run writes.
        """
        path = folder / BUDGET_FILE
        if not path.exists():
            return None
        try:
            fields = json.loads(path.read_text(encoding="utf-8"))
            return cls(**{**fields, "noise": NoiseSpec(**fields["noise"])})
        except (ValueError, TypeError, KeyError, ConfigError) as error:
            raise DataError(f"{path} is not what a run writes ({error}); run it anew") from None

    def lines(self, rounds: int) -> list[str]:
        """Who can say what about a sample, in words."""
        k = self.members - self.honest
        against = [
            ("outsiders", 0),
            ("a member of its cell", 1),
            (f"k = {k} owner{'s together' if k > 1 else ''}", k),
        ]
        return [
            f"Of a single sample, after {rounds} rounds, against {who}: ε = {self.epsilon(rounds, known):.2f} at δ = {self.noise.delta:g}."
            for who, known in against
            if known <= k
        ]


def epsilon(multiplier: float, rate: float, rounds: int, delta: float) -> float:
    """Of the subsampled Gaussian mechanism, by Rényi divergences.

    Raises:
        ConfigError: Opacus is not installed.
    """
    accountant = _accountants().RDPAccountant()
    accountant.history = [(multiplier, rate, rounds)]
    return float(accountant.get_epsilon(delta=delta))


def multiplier_for(target: float, rate: float, rounds: int, delta: float) -> float:
    """The smallest multiplier, to a thousandth, that stays below a target ε.

    Raises:
        ConfigError: no noise reaches it, or Opacus is not installed.
    """
    low, high = 0.0, 1.0
    while epsilon(high, rate, rounds, delta) > target:
        low, high = high, 2 * high
        if high > 1e6:
            raise ConfigError(f"no noise gives epsilon = {target} at delta = {delta}; raise one of them")
    while high - low > 1e-3:
        middle = (low + high) / 2
        low, high = (middle, high) if epsilon(middle, rate, rounds, delta) > target else (low, middle)
    return high


def _accountants() -> ModuleType:
    try:
        return importlib.import_module("opacus.accountants")
    except ModuleNotFoundError:
        raise ConfigError(
            "accounting for noise needs Opacus; in a copy of cesar's repository: pip install '.[dp]'"
        ) from None
