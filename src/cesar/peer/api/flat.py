"""Tensors and one float32 vector: the only place where parameters are flattened."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies in the vector: one after the other, in their order."""

    shapes: tuple[torch.Size, ...]

    @classmethod
    def of(cls, module: nn.Module) -> Layout:
        """That of a module's parameters; tied ones appear once."""
        return cls.of_tensors(module.parameters())

    @classmethod
    def of_tensors(cls, tensors: Iterable[torch.Tensor]) -> Layout:
        return cls(tuple(tensor.shape for tensor in tensors))

    @property
    def lengths(self) -> tuple[int, ...]:
        """How many numbers each tensor has."""
        return tuple(map(math.prod, self.shapes))

    @property
    def size(self) -> int:
        """d, the number of parameters."""
        return sum(self.lengths)

    def views(self, vector: torch.Tensor) -> list[torch.Tensor]:
        """The vector cut into tensors of these shapes, without a copy."""
        parts = torch.split(vector, list(self.lengths))
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]


def pack(tensors: Sequence[torch.Tensor], vector: torch.Tensor) -> None:
    """Copy tensors into a vector, whatever their type and device."""
    with torch.no_grad():
        for view, tensor in zip(Layout.of_tensors(tensors).views(vector), tensors, strict=True):
            view.copy_(tensor)


def unpack(vector: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy a vector into tensors, in their own type and on their own device."""
    with torch.no_grad():
        for view, tensor in zip(Layout.of_tensors(tensors).views(vector), tensors, strict=True):
            tensor.copy_(view)


def flatten(module: nn.Module) -> torch.Tensor:
    """A copy of all parameters as one vector."""
    parameters = tuple(module.parameters())
    vector = torch.empty(Layout.of_tensors(parameters).size, device=parameters[0].device)
    pack(parameters, vector)
    return vector


def bind(module: nn.Module, layout: Layout, vector: torch.Tensor) -> None:
    """Make the module compute with, and train, the memory of `vector`."""
    for parameter, view in zip(module.parameters(), layout.views(vector), strict=True):
        parameter.data = view
