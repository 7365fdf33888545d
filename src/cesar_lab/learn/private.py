"""One step of DP-SGD without its noise: gradients of single samples are clipped and added up. The cell adds the noise."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.func import functional_call, grad, vmap

from cesar.base.seeds import SeedTree
from cesar_lab.data.samples import Task
from cesar_lab.learn.tasks import Batch, loss

CHUNK = 64
"""Samples whose gradients are in memory at once."""


def poisson_batch(
    rows: NDArray[np.int64], expected: int, seeds: SeedTree, node: int, step: int
) -> NDArray[np.int64]:
    """Each sample by itself with the same probability, as accountants assume; so batches differ in size, and may be empty."""
    draws = seeds.generator("poisson", node, step).random(len(rows))
    return rows[draws < expected / len(rows)]


def clipped_sum(task: Task, module: nn.Module, batch: Batch, clip: float) -> list[torch.Tensor]:
    """For each parameter the sum of the samples' gradients, each clipped to a length of `clip` over all parameters.

    Args:
        batch: may be empty.
    """
    parameters = {name: parameter.detach() for name, parameter in module.named_parameters()}
    buffers = dict(module.named_buffers())
    totals = [torch.zeros_like(parameter) for parameter in parameters.values()]

    def sample_loss(values: dict[str, torch.Tensor], *sample: torch.Tensor) -> torch.Tensor:
        def called(*inputs: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = functional_call(module, (values, buffers), inputs)
            return found

        return loss(task, _Called(called), tuple(field.unsqueeze(0) for field in sample))

    each = vmap(grad(sample_loss), in_dims=(None, *(0 for _ in batch)), randomness="different")
    for start in range(0, len(batch[0]), CHUNK):
        part = [field[start : start + CHUNK] for field in batch]
        rows = list(each(parameters, *part).values())
        squares = torch.stack([row.flatten(1).square().sum(1) for row in rows]).sum(0)
        factors = (clip / squares.sqrt().clamp(min=1e-12)).clamp(max=1.0)
        for total, row in zip(totals, rows, strict=True):
            total.add_(torch.tensordot(factors, row, dims=1))
    return totals


class _Called(nn.Module):
    """A function in the place of a module."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        assert callable(self.function)
        found: torch.Tensor = self.function(*inputs)
        return found
