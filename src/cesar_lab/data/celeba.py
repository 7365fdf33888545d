"""CelebA as LEAF prepares it: is this celebrity smiling? Every celebrity is a user.

LEAF writes the split as JSON (celebrity → names of images and labels); the images stay the JPEG files of the
official archive. Decoded, the whole set takes 17 GB; `train_limit` takes less.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from cesar.base.errors import DataError
from cesar.base.types import ByteArray
from cesar_lab.data.datasets import at_least, require
from cesar_lab.data.samples import Dataset, Samples, Task


@dataclass(frozen=True, slots=True)
class _Photo:
    user: str
    image: str
    smiling: int


def load(
    folder: Path, *, size: int = 84, train_limit: int | None = None, test_limit: int | None = None
) -> Dataset:
    """Images (3, size, size), float32 from −1 to 1; label 1 is smiling; users are numbered from 0.

    Args:
        folder: where LEAF's `train`, `test` and `raw` lie.
        size: height and width in pixels; the originals have 218 and 178.
        train_limit: take only the first training images, celebrity by celebrity.
        test_limit: take only the first test images.
    """
    at_least(1, "size", size)
    train = list(islice(_photos(folder / "train"), train_limit))
    test = list(islice(_photos(folder / "test"), test_limit))
    numbers = {user: number for number, user in enumerate(dict.fromkeys(photo.user for photo in train))}
    samples = _samples(folder, train, size)
    return Dataset(
        name="celeba",
        task=Task.CLASSIFICATION,
        train=samples,
        test=_samples(folder, test, size),
        classes=2,
        labels=samples.fields[1].numpy(),
        users=np.array([numbers[photo.user] for photo in train], dtype=np.int64),
        details={"users": len(numbers)},
    )


def _photos(folder: Path) -> Iterator[_Photo]:
    """What LEAF's files list, in their order."""
    files = sorted(folder.glob("*.json"))
    if not files:
        raise DataError(f"no JSON file in {folder}: run LEAF's preprocess.sh (see `cesar data get celeba`)")
    for path in files:
        try:
            content = json.loads(path.read_bytes())
            for user in content["users"]:
                data = content["user_data"][user]
                for image, smiling in zip(data["x"], data["y"], strict=True):
                    yield _Photo(user, _plain(image), int(smiling))
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not a LEAF file of CelebA: {error!r}") from error


def _plain(image: str) -> str:
    if Path(image).name != image:
        raise ValueError(f"{image!r} is not the name of an image")
    return image


def _samples(folder: Path, photos: Sequence[_Photo], size: int) -> Samples:
    """The decoded images and their labels."""
    images = np.empty((len(photos), size, size, 3), dtype=np.uint8)
    read = _reader(folder / "raw" / "img_align_celeba", size)
    with ThreadPoolExecutor() as pool:  # The decoder runs outside the interpreter's lock.
        for row, image in enumerate(pool.map(read, (photo.image for photo in photos))):
            images[row] = image
    pixels = (
        torch.from_numpy(images).permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
    )
    labels = torch.tensor([photo.smiling for photo in photos], dtype=torch.int64)
    return Samples((pixels.div_(127.5).sub_(1), labels))


def _reader(folder: Path, size: int) -> Callable[[str], ByteArray]:
    """A function that decodes and resizes the image of a name."""
    pillow = require("PIL.Image", "lab")

    def read(name: str) -> ByteArray:
        try:
            with pillow.open(folder / name) as image:
                small = image.convert("RGB").resize((size, size), pillow.Resampling.BILINEAR)
        except OSError as error:
            raise DataError(
                f"cannot read the image {folder / name}: {error}; put the official images in this folder"
            ) from error
        return np.asarray(small, dtype=np.uint8)

    return read
