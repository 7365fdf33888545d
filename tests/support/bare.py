"""A process in which nothing can be imported that the library has to do without."""

import sys

LABORATORY = frozenset(("cesar_lab", "torch", "plotly", "sklearn", "ray", "matplotlib", "pandas", "pooch"))
"""Packages that the laboratory is made of; `[peers]` installs none of them."""


class Blocker:
    """Goes to the front of `sys.meta_path`."""

    def __init__(self, names: frozenset[str] = LABORATORY) -> None:
        self.names = names

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.partition(".")[0] in self.names:
            raise ImportError(f"{name} is blocked: the library does without it", name=name)

    def loaded(self) -> set[str]:
        """Which of them are there all the same."""
        return {*self.names} & {name.partition(".")[0] for name in sys.modules}
