"""The models of the paper's experiments, with exactly its parameter counts, and how to bring your own.

| name           | parameters  | what                                                        |
|----------------|-------------|-------------------------------------------------------------|
| digits-mlp     | 4,810       | one hidden layer of 64, for 8×8 digits                      |
| lenet          | 89,834      | 3 convolutions 5×5 (32, 32, 64) with group norm, linear     |
| celeba-cnn     | 30,242      | 4 convolutions 3×3 of 32, linear                            |
| movielens-mf   | 206,680     | matrix factorisation with 20 factors, 610 users, 9,724 items|
| gpt2           | 124,439,808 | GPT-2 small, through transformers                           |
| t5-efficient-tiny | 15,570,688 | T5-Efficient-Tiny, through transformers                  |
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F  # noqa: N812  (everybody's name for it)
from torch import nn

from cesar.base.errors import ConfigError
from cesar_lab.data.samples import Dataset, Task


class DigitsMLP(nn.Module):
    """A small network for the demonstration."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 64)
        self.out = nn.Linear(64, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.out(F.relu(self.hidden(images.flatten(1))))
        return hidden


class LeNet(nn.Module):
    """LeNet with group norm for 32×32 colour images (Paper: CIFAR-10)."""

    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        widths = (3, 32, 32, 64)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel_size=5, padding=2) for a, b in pairwise(widths)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(2, width) for width in widths[1:])
        self.out = nn.Linear(64 * 4 * 4, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = F.max_pool2d(F.relu(norm(convolution(x))), 2)
        scores: torch.Tensor = self.out(x.flatten(1))
        return scores


class CelebaCNN(nn.Module):
    """Four convolutions for 84×84 colour images (Paper: CelebA)."""

    def __init__(self, classes: int = 2) -> None:
        super().__init__()
        widths = (3, 32, 32, 32, 32)
        self.convolutions = nn.ModuleList(
            nn.Conv2d(a, b, kernel_size=3, padding=1) for a, b in pairwise(widths)
        )
        self.out = nn.Linear(32 * 5 * 5, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images
        for convolution in self.convolutions:
            x = F.relu(F.max_pool2d(convolution(x), 2))
        scores: torch.Tensor = self.out(x.flatten(1))
        return scores


class MatrixFactorisation(nn.Module):
    """A rating is the product of a user's and an item's factors (Paper: MovieLens)."""

    def __init__(self, users: int = 610, items: int = 9724, factors: int = 20, mean: float = 3.5) -> None:
        super().__init__()
        self.users = nn.Embedding(users, factors)
        self.items = nn.Embedding(items, factors)
        start = (mean / factors) ** 0.5  # so that everything is first rated about the mean
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, start, 0.1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        rating: torch.Tensor = (self.users(users) * self.items(items)).sum(dim=-1)
        return rating


def _transformers() -> ModuleType:
    try:
        return importlib.import_module("transformers")
    except ImportError:
        raise ConfigError(
            "this model needs transformers; in a copy of cesar's repository: pip install '.[nlp]'"
        ) from None


def _pretrained(kind: str, config: object, weights: Path | None) -> nn.Module:
    """A transformers model from its configuration, or with weights from a local folder."""
    cls = getattr(_transformers(), kind)
    try:
        module: nn.Module = (
            cls(config) if weights is None else cls.from_pretrained(weights, local_files_only=True)
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ConfigError(f"model.weights: {weights} holds no weights for {kind}: {error}") from None
    return module


def _gpt2(data: Dataset, weights: Path | None) -> nn.Module:
    config = _transformers().GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
    return _pretrained("GPT2LMHeadModel", config, weights)


def _t5(data: Dataset, weights: Path | None) -> nn.Module:
    config = _transformers().T5Config(
        vocab_size=32128,
        d_model=256,
        d_ff=1024,
        d_kv=64,
        num_layers=4,
        num_heads=4,
        dropout_rate=0.0,
        decoder_start_token_id=0,
    )
    return _pretrained("T5ForConditionalGeneration", config, weights)


def _factorisation(data: Dataset, weights: Path | None) -> nn.Module:
    return MatrixFactorisation(data.details["users"], data.details["items"])


Builder = Callable[[Dataset, Path | None], nn.Module]

MODELS: dict[str, Builder] = {
    "digits-mlp": lambda data, _: DigitsMLP(data.classes),
    "lenet": lambda data, _: LeNet(data.classes),
    "celeba-cnn": lambda data, _: CelebaCNN(data.classes),
    "movielens-mf": _factorisation,
    "gpt2": _gpt2,
    "t5-efficient-tiny": _t5,
}


def build(
    name: str, data: Dataset, *, seed: int, weights: Path | None = None, trust_code: bool = False
) -> nn.Module:
    """A freshly initialised model, the same for the same seed.

    Args:
        name: one of `MODELS`, or "package.module:factory" for a function without arguments that returns a
            `torch.nn.Module`.
        trust_code: whether such a function may be imported. A name can come with files of somebody else, and an import runs code.

    Raises:
        ConfigError: there is no such model, it is code that nobody trusts, it holds NaN or infinity from the start, or it cannot do the task.
    """
    if weights is not None and name not in ("gpt2", "t5-efficient-tiny"):
        raise ConfigError(
            f"model {name} loads no weights; drop model.weights, or load them in a factory of your own"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _own(name, trust_code)() if ":" in name else _known(name)(data, weights)
    if not isinstance(module, nn.Module) or not any(parameter.numel() for parameter in module.parameters()):
        raise ConfigError(
            f"model {name} is {module!r}; the factory must return a torch.nn.Module with parameters"
        )
    if data.task is Task.SUMMARY and not hasattr(module, "generate"):
        raise ConfigError(
            f"model {name} has no generate(), so it cannot summarise; use t5-efficient-tiny or its like"
        )
    for label, parameter in module.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ConfigError(
                f"model {name}: parameter {label} starts with NaN or infinity; mend the factory"
            )
    return module


def _known(name: str) -> Builder:
    if name not in MODELS:
        raise ConfigError(
            f"there is no model {name!r}; choose {', '.join(MODELS)}, or your own as package.module:factory"
        )
    return MODELS[name]


def _own(name: str, trust_code: bool) -> Callable[[], nn.Module]:
    if not trust_code:
        raise ConfigError(
            f"model {name!r} is code that would be imported and run; look at it, and if it is yours, use `cesar run --trust-code`"
        )
    module_name, _, attribute = name.partition(":")
    try:
        factory: Callable[[], nn.Module] = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"model {name!r} cannot be imported: {error}") from None
    return factory
