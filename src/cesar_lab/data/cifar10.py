"""CIFAR-10 from its official Python batches: 60,000 colour images of 32x32 pixels in ten classes.

The batches are pickles, and a pickle can run any code. Two locks are therefore on the door: a file must have
the published checksum before a byte of it is interpreted, and the unpickler knows three names only, none of
which is the real thing. They stand for numpy's `_reconstruct`, `ndarray` and `dtype` and merely take down
what the pickle says about shape and pixels; whatever else a pickle asks for is refused.
"""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cesar.base.errors import DataError
from cesar.base.types import ByteArray
from cesar_lab.data.samples import Dataset, Samples, Task

BATCH = 10_000
CLASSES = 10
MD5 = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
"""As published with the dataset."""

MEAN = (0.4914, 0.4822, 0.4465)
STD = (0.2470, 0.2435, 0.2616)
"""Mean and standard deviation of the training pixels, per channel, for pixels from 0 to 1."""


def load(folder: Path, *, train_limit: int | None = None, test_limit: int | None = None) -> Dataset:
    """Images (3, 32, 32), float32 with mean 0 and deviation 1 per channel; the order is the official one.

    Args:
        folder: where `data_batch_1` to `data_batch_5` and `test_batch` lie.
        train_limit: take only the first training images (only the batches needed are read).
        test_limit: take only the first test images.
    """
    train, labels = _read(folder, [name for name in MD5 if name != "test_batch"], train_limit)
    test, test_labels = _read(folder, ["test_batch"], test_limit)
    return Dataset(
        name="cifar10",
        task=Task.CLASSIFICATION,
        train=Samples((_normalise(train), torch.from_numpy(labels))),
        test=Samples((_normalise(test), torch.from_numpy(test_labels))),
        classes=CLASSES,
        labels=labels,
        details={},
    )


def _read(folder: Path, files: Sequence[str], limit: int | None) -> tuple[ByteArray, NDArray[np.int64]]:
    """The first images of these batches and their labels."""
    needed = files if limit is None else files[: -(-limit // BATCH)]
    images, labels = zip(*(unpickle(_verified(folder / name), name) for name in needed), strict=True)
    return np.concatenate(images)[:limit], np.concatenate(labels)[:limit]


def _verified(path: Path) -> bytes:
    """The content of a batch, if it is the published one."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; {_AGAIN}") from error
    digest = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if digest != MD5[path.name]:
        raise DataError(f"{path} is not the published file: MD5 {digest}, not {MD5[path.name]}; {_AGAIN}")
    return content


_AGAIN = "move its folder away and fetch the dataset again with `cesar data get cifar10`"


def _normalise(images: ByteArray) -> torch.Tensor:
    mean, std = (torch.tensor(values).reshape(3, 1, 1) for values in (MEAN, STD))
    return torch.from_numpy(images).float().div_(255).sub_(mean).div_(std)


def unpickle(content: bytes, name: str = "batch") -> tuple[ByteArray, NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels (n,) of one batch, without trusting it.

    Raises:
        DataError: the pickle asks for anything but an array of bytes, or is damaged.
    """
    try:
        batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
        pixels = batch[b"data"].array()
        labels = np.array(batch[b"labels"], dtype=np.int64)
        images = pixels.reshape(len(labels), 3, 32, 32)
    except DataError:
        raise
    except Exception as error:  # A damaged pickle can fail in any way at all.
        raise DataError(f"{name} is not a CIFAR-10 batch: {error}") from error
    if len(labels) and not 0 <= labels.min() <= labels.max() < CLASSES:
        raise DataError(f"{name} has labels outside 0 to {CLASSES - 1}")
    return images, labels


class _Unpickler(pickle.Unpickler):
    """Knows the three names that a batch needs, and no other."""

    def find_class(self, module: str, name: str) -> Any:
        """The stand-in for a name; called for every global that a pickle mentions."""
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise DataError(
                f"refused a pickle that asks for {module}.{name}: CIFAR-10 batches need no such thing"
            ) from None


class _Named:
    """Stands for `numpy.ndarray`, which batches only mention."""

    def __setstate__(self, state: object) -> None:
        raise DataError("refused a pickle that changes numpy.ndarray")


class _Dtype:
    """Stands for `numpy.dtype`: bytes are the only type of pixels."""

    def __init__(self, code: bytes, *_flags: int) -> None:
        if code != b"u1":
            raise DataError(f"refused a pickle with an array of type {code!r}: pixels are bytes")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment, which bytes do not have."""


class _Array:
    """Stands for `numpy.core.multiarray._reconstruct`: an array whose content comes later."""

    def __init__(self, *_prototype: object) -> None:
        self._shape: tuple[int, ...] = ()
        self._raw = b""

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes]) -> None:
        _version, self._shape, dtype, by_columns, self._raw = state
        if by_columns or not isinstance(dtype, _Dtype) or not isinstance(self._raw, bytes):
            raise DataError("refused a pickle whose array is not a plain block of bytes")

    def array(self) -> ByteArray:
        """What was described."""
        return np.frombuffer(self._raw, dtype=np.uint8).reshape(self._shape)


_STAND_INS: dict[tuple[str, str], type] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Named,
    ("numpy", "dtype"): _Dtype,
}
