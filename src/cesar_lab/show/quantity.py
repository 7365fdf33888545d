"""How figures read: units that make them handy, errors, and differences with their intervals."""

from __future__ import annotations

from dataclasses import dataclass

from cesar_lab.show.chart import Axis
from cesar_lab.show.paired import Difference
from cesar_lab.show.table import NONE

BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))
SECONDS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
NAMES = {"rmse": "RMSE", "rouge_l": "ROUGE-L"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantity:
    """A column of the test steps, `key`, shown in a unit of that size."""

    key: str
    name: str
    size: float = 1.0
    unit: str = ""
    digits: int = 2

    @classmethod
    def metric(cls, key: str) -> Quantity:
        """Accuracies in percent, errors and losses as they are."""
        if key == "accuracy":
            return cls(key=key, name=key, size=0.01, unit="%")
        return cls(key=key, name=NAMES.get(key, key.replace("_", " ")), digits=4)

    @classmethod
    def cost(
        cls, key: str, name: str, largest: float, units: tuple[tuple[float, str], ...] = BYTES
    ) -> Quantity:
        """In the unit in which the largest is a handy number."""
        size, unit = max((one for one in units if one[0] <= largest), default=units[0])
        return cls(key=key, name=name, size=size, unit=unit)

    def axis(self, *, log: bool = False) -> Axis:
        """An axis for it."""
        return Axis(name=self.name, unit=self.unit, log=log)

    @property
    def head(self) -> tuple[str, str]:
        """Of a column of a table."""
        return self.name, self.unit

    def text(self, value: float | None, error: float | None = None) -> str:
        """A mean for people, with its standard error where there is one."""
        if value is None:
            return NONE
        spread = "" if error is None else f" ± {error / self.size:.{self.digits}f}"
        return f"{value / self.size:.{self.digits}f}{spread}"

    def difference(self, found: Difference | None) -> tuple[str, str]:
        """A difference with its standard error, and its 95 % interval."""
        if found is None:
            return NONE, NONE
        middle = found.mean / self.size
        if found.error is None or found.margin is None:
            return f"{middle:+.{self.digits}f}", NONE
        margin = found.margin / self.size
        return (
            f"{middle:+.{self.digits}f} ± {found.error / self.size:.{self.digits}f}",
            f"{middle - margin:+.{self.digits}f} to {middle + margin:+.{self.digits}f}",
        )


def points(found: Difference | None) -> str:
    """A difference in hundredths with its 95 % interval in brackets, for a sentence."""
    if found is None:
        return "no seed in common"
    if found.margin is None:
        return f"{signed(100 * found.mean)} (one seed)"
    low, high = (100 * (found.mean + side * found.margin) for side in (-1, 1))
    return f"{signed(100 * found.mean)} ({signed(low)} to {signed(high)})"


def signed(value: float) -> str:
    """A difference as people write it."""
    return f"{value:+.2f}".replace("-", "−")


def three_digits(value: float) -> str:
    """As many digits as an eye takes in."""
    return f"{value:#.3g}".rstrip(".")
