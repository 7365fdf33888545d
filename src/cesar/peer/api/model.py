"""A PyTorch module and the vector that is averaged: which tensors are in it, and in what order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from cesar.base import files, memory
from cesar.base.errors import DataError
from cesar.base.types import Vector
from cesar.peer.api import flat

Which = Literal["all", "trainable"]
_MODEL, _REFERENCE, _MEMORY = "model.", "reference", "memory"


def tensors(model: nn.Module, which: Which, buffers: bool) -> list[torch.Tensor]:
    """Parameters, all or those that train; then the float buffers if they are averaged too. Integer buffers never
    are. Tied tensors come once.

    Raises:
        DataError: there are none.
    """
    chosen = [p.detach() for p in model.parameters() if which == "all" or p.requires_grad]
    if buffers:
        chosen += [buffer for buffer in model.buffers() if buffer.is_floating_point()]
    if not chosen:
        raise DataError(
            "the model has no parameter to average" + (" that trains" if which == "trainable" else "")
        )
    if any(not tensor.is_floating_point() for tensor in chosen):
        raise DataError("only floating-point parameters can be averaged")
    return chosen


def lengths(parts: list[torch.Tensor]) -> tuple[int, ...]:
    """How many numbers each tensor has."""
    return flat.Layout.of_tensors(parts).lengths


def pack(parts: list[torch.Tensor]) -> Vector:
    """One float32 vector on the CPU."""
    vector: Vector = memory.empty(flat.Layout.of_tensors(parts).size, np.float32)
    flat.pack(parts, torch.from_numpy(vector))
    return vector


def unpack(vector: Vector, parts: list[torch.Tensor]) -> None:
    """Write the vector back into the tensors, in their own type and on their own device."""
    flat.unpack(torch.from_numpy(vector), parts)


@dataclass(frozen=True, slots=True)
class Kept:
    """What a checkpoint holds beside the model.

    Attributes:
        reference: the model after the last round, which top-k compares with.
        memory: what was last sent, for top-k with memory.
        steps: local steps so far.
    """

    reference: Vector | None
    memory: Vector | None
    steps: int


def save(path: Path, model: nn.Module | None, kept: Kept) -> None:
    """Write a checkpoint that only its owner can read; whole or not at all."""
    content = {} if model is None else {_MODEL + name: tensor for name, tensor in _unique(model)}
    for name, vector in ((_REFERENCE, kept.reference), (_MEMORY, kept.memory)):
        if vector is not None:
            content[name] = torch.from_numpy(
                vector.copy()
            )  # the two may share their numbers, which no file can
    with files.replacing(path, mode=0o600) as draft:
        try:
            save_file(content, draft, metadata={"steps": str(kept.steps)})
        except SafetensorError as error:
            code = re.search(r"os error (\d+)", str(error))  # it hides what the system said
            if code is None:
                raise
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from None
        draft.chmod(0o600)


def restore(path: Path, model: nn.Module | None) -> Kept:
    """Load a checkpoint into the model; returns what else is in it."""
    with safe_open(path, framework="pt") as file:
        names = set(file.keys())
        if model is not None:
            parts = dict(_unique(model))
            missing = {_MODEL + name for name in parts} - names
            if missing:
                raise DataError(f"{path} holds another model: it lacks {min(missing).removeprefix(_MODEL)}")
            with torch.no_grad():
                for name, tensor in parts.items():
                    tensor.copy_(file.get_tensor(_MODEL + name))
        reference, memory = (
            file.get_tensor(name).numpy() if name in names else None for name in (_REFERENCE, _MEMORY)
        )
        return Kept(reference, memory, int(file.metadata()["steps"]))


def _unique(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """The state of a model, tied tensors once, each contiguous where it is stored."""
    seen = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if isinstance(tensor, torch.Tensor) and id(tensor) not in seen:
            seen.add(id(tensor))
            yield name, tensor.detach()
