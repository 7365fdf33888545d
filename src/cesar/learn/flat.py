"""A module and one float32 vector: the only place where parameters are flattened."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each parameter of a module lies in its vector; tied parameters appear once."""

    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        return cls(tuple(parameter.shape for parameter in module.parameters()))

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(math.prod(shape) for shape in self.shapes)

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The vector cut into tensors of the parameters' shapes, without a copy."""
        lengths = [math.prod(shape) for shape in self.shapes]
        parts = torch.split(vector, lengths)
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def flatten(module: nn.Module) -> torch.Tensor:
    """A copy of all parameters as one vector."""
    return torch.cat([parameter.detach().reshape(-1).float() for parameter in module.parameters()])


def bind(module: nn.Module, layout: Layout, vector: torch.Tensor) -> None:
    """Make the module compute with, and train, the memory of `vector`."""
    for parameter, view in zip(module.parameters(), layout.views(vector), strict=True):
        parameter.data = view
