"""What a member of a cell must still know after a crash: its `CellState` and its counters, on disk before numbers leave.

There are two files. `cell.data` has large arrays, each in a place of its own. `cell.npy` says which array is where, and holds the small
ones. A save writes what is not in `cell.data` yet to places that the last `cell.npy` does not name, makes that durable, and replaces
`cell.npy`. So nobody ever sees half of a state.

*What is there already* is found by fingerprints, not by flags that somebody could forget to set. A common model that has not changed is
not written again, its undo is the common model of the save before, and zeros take no place. The same fingerprints show damage of
`cell.data` when it is read; `cell.npy` begins with a digest of itself.

*Places are written again*, because a system takes many times as long to give a file fresh room as to write over what it has
(docs/design/027-what-a-save-costs.md). Numbers that one member alone knows are therefore encrypted, with a key for each place, which
stands in `cell.npy` only. When that is replaced the two files do not show the old place any more, although its bytes are still there.
The key is in the blocks of a deleted file then, until the system uses these again.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cesar.base import files
from cesar.base.errors import ConfigError, DataError
from cesar.base.types import ByteArray, Vector
from cesar.crypto.keystream import stream_cipher
from cesar.kernels import bits
from cesar.kernels.prints import Fingerprint
from cesar.kernels.slicing import spans
from cesar.protocol.cell_state import CellState

FILE = "cell.npy"
Arrays = dict[str, NDArray[np.generic]]

_MAGIC = b"cesar cell 2\n"
_LENGTH = struct.Struct("<Q")
_LARGE = 1 << 16
"""Bytes from which on an array has a place of its own."""

_PAGE, _STEP = 1 << 12, 1 << 20
_PUBLIC = ("common", "undo", "body")
"""What all members of a cell know; the rest is this member's secret."""


@dataclass(slots=True)
class Kept:
    """What was kept.

    Attributes:
        trained: what was trained since the last offer, as of the last call of `average`; None if nothing was.
        attempts: of all rounds so far; randomness is never made of the same number twice.
        next_round, next_settling: no round below these is begun again.
        thrown: the length of what was thrown away and is in no report yet.
    """

    state: CellState
    trained: Vector | None = None
    attempts: int = 0
    next_round: int = 0
    next_settling: int = 0
    thrown: float = 0.0


class Place(NamedTuple):
    """Where a part of an array is, and what. Zeros are nowhere: their offset is −1. `key` is empty where the bytes are as they are."""

    offset: int
    length: int
    mark: int
    key: str


class CellFile:
    """The files. A save is durable when the call returns.

    Args:
        path: of `cell.npy`; the other file lies beside it.
        network: 16 bytes that name the network: the state of another one is of no use.
    """

    def __init__(self, path: Path, network: bytes) -> None:
        self._path, self._network = path, np.frombuffer(network, dtype=np.uint8)
        self._data = path.with_name("cell.data")
        self._start = int.from_bytes(os.urandom(8), "little")
        self._known: set[Place] = set()  # what the newest `cell.npy` names
        self._common: list[Place] = []  # where that says the common model is
        self._before: list[Place] = []

    def load(self) -> Kept | None:
        """What was saved last; None if nothing was.

        Raises:
            ConfigError: it is damaged, or of another network.
        """
        try:
            arrays = self._read()
        except FileNotFoundError:
            return None
        except (OSError, TypeError, ValueError, KeyError, EOFError, struct.error) as error:
            raise ConfigError(
                f"{self._path} cannot be read ({error}); remove it to go on from the common model: what this site has "
                "trained and not handed in is lost then"
            ) from None
        if not np.array_equal(arrays.pop("network", np.empty(0)), self._network):
            raise ConfigError(f"{self._path} is of another network; remove it, or take the right folder")
        try:
            counters = [int(count) for count in arrays.pop("counters").astype(np.int64)]
            trained = arrays.pop("trained", None)
            thrown = float(np.asarray(arrays.pop("thrown", 0.0)).astype(np.float64))
            state = CellState.from_arrays(arrays)
            model = None if trained is None else np.array(trained, dtype=np.float32)
            attempts, round_, settling = counters
            return Kept(state, model, attempts, round_, settling, thrown)
        except (KeyError, TypeError, ValueError, DataError) as error:
            raise ConfigError(
                f"{self._path} is damaged ({error}); remove it to go on from the common model"
            ) from None

    def archive(self) -> Callable[[int, int], Vector] | None:
        """The common model as it was saved last, slice by slice; to be called before it changes. It can be read as long as every save says
        that it is in use. None for a model that has no place of its own.
        """
        if not self._common:
            return None
        places = self._before = self._common

        def read(first: int, last: int) -> Vector:
            start = 0
            for place in places:
                if start == 64 * first and (place.length or first == last):
                    with _Reader(self._data, self._start) as reader:
                        return reader.join([place]).view(np.float32)[: 64 * (last - first)]
                start += place.length // 4
            raise ValueError(f"no slice begins at word {first}")

        return read

    def save(
        self,
        arrays: Arrays,
        trained: Vector | None,
        counters: tuple[int, int, int],
        thrown: float = 0.0,
        undo: Sequence[int] = (),
    ) -> None:
        """Make it durable. Nobody may write to the arrays meanwhile.

        Args:
            arrays: of `CellState.to_arrays`.
            counters: attempts, next_round and next_settling of `Kept`.
            thrown: as in `Kept`.
            undo: slices of the last gathering whose undo is in the archive.

        Raises:
            OSError: it could not be; then nothing may leave.
        """
        arrays = {
            **arrays,
            "network": self._network,
            "counters": np.array(counters, np.int64),
            "thrown": np.array(thrown),
        }
        if trained is not None:
            arrays["trained"] = trained
        small: list[bytes] = []
        common: list[Place] = []
        table: dict[str, object] = {}
        used: set[Place] = set()
        with _Writer(self._data, self._start, self._known) as writer:
            for name, array in arrays.items():
                flat = np.ascontiguousarray(array)
                entry: dict[str, object] = {"type": flat.dtype.str, "shape": array.shape}
                if flat.nbytes < _LARGE:
                    small.append(flat.tobytes())
                    entry["bytes"] = flat.nbytes
                else:
                    secret = name.partition(".")[0] not in _PUBLIC
                    parts = _parts(name, arrays) if flat.ndim == 1 else 1
                    places = [writer.put(part, secret=secret) for part in _cut(flat, parts)]
                    used.update(places)
                    entry["places"] = places
                table[name] = entry
                if name == "common":
                    common = [] if flat.nbytes < _LARGE else places
        for number in undo:
            place = self._before[number]
            used.add(place)
            table[f"undo.{number}"] = {"type": "<f4", "shape": (place.length // 4,), "places": [place]}
        head = json.dumps({"start": self._start, "arrays": table}).encode()
        self._known |= used  # if the call below fails, nobody knows which of both is on the disk
        content = b"".join((_LENGTH.pack(len(head)), head, *small))
        files.write(self._path, _MAGIC + hashlib.sha256(content).digest() + content, mode=0o600)
        self._known, self._common = used, common

    def _read(self) -> Arrays:
        with self._path.open("rb") as file:
            if file.read(len(_MAGIC)) != _MAGIC:
                file.seek(0)
                return _read_former(file)
            digest, content = file.read(hashlib.sha256().digest_size), file.read()
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("it is not what was saved")
        end = _LENGTH.size + _LENGTH.unpack_from(content)[0]
        head, rest = json.loads(content[_LENGTH.size : end]), content[end:]
        start, arrays, known = int(head["start"]), Arrays(), set[Place]()
        with _Reader(self._data, start) as reader:
            for name, entry in head["arrays"].items():
                kind = np.dtype(entry["type"])
                if "bytes" in entry:
                    found = np.frombuffer(rest[: entry["bytes"]], np.uint8)
                    rest = rest[entry["bytes"] :]
                else:
                    places = [Place(*place) for place in entry["places"]]
                    known.update(places)
                    found = reader.join(places)
                arrays[name] = found.view(kind).reshape(entry["shape"])
        self._start, self._known = start, known
        return arrays


def _read_former(file: Any) -> Arrays:
    """The file as it was before there was `cell.data`: names, and then the arrays as `np.save` writes them."""
    names = json.loads(np.load(file, allow_pickle=False).tobytes())
    return {str(name): np.load(file, allow_pickle=False) for name in names}


def _parts(name: str, arrays: Arrays) -> int:
    """In how many parts an array is kept. The common model is cut as keepers cut it: the undo of a slice is then a part that is there."""
    return max(1, len(arrays["gathered"]) - 1) if name == "common" and "gathered" in arrays else 1


def _cut(flat: NDArray[Any], parts: int) -> Iterator[ByteArray]:
    """The bytes of an array, cut where slices are."""
    for first, last in spans(bits.words_for(len(flat)), parts) if parts > 1 else ((0, len(flat)),):
        part = flat[64 * first : 64 * last] if parts > 1 else flat
        yield part.reshape(-1).view(np.uint8)


def _steps(length: int) -> Iterator[slice]:
    return (slice(start, min(start + _STEP, length)) for start in range(0, length, _STEP))


def _gaps(used: Iterable[Place]) -> list[tuple[int, int]]:
    """(length, offset) of the room between places; what follows the last one has no end."""
    found, end = [], 0
    for place in sorted(place for place in used if place.offset >= 0):
        if place.offset > end:
            found.append((place.offset - end, end))
        end = max(end, place.offset + place.length + -place.length % _PAGE)
    return [*sorted(found), (1 << 62, end)]


class _Writer:
    """Puts arrays where there is room; durable when the block is over.

    Args:
        known: what must not be written over, and need not be written again.
    """

    def __init__(self, path: Path, start: int, known: set[Place]) -> None:
        self._path, self._start = path, start
        self._there = {(place.mark, place.length): place for place in known}
        self._used, self._wrote = set(known), False

    def __enter__(self) -> Self:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None and self._wrote:
                os.fdatasync(self._file)
        finally:
            os.close(self._file)

    def put(self, data: ByteArray, *, secret: bool) -> Place:
        """Where these bytes are from now on."""
        mark = Fingerprint(self._start)
        mark.add(data)
        if mark.zero:
            return Place(-1, len(data), mark.value, "")
        found = self._there.get((mark.value, len(data)))
        if found is not None and (found.key or not secret):
            return found
        offset = next(offset for room, offset in _gaps(self._used) if room >= len(data))
        place = Place(offset, len(data), mark.value, os.urandom(32).hex() if secret else "")
        self._write(data, place)
        self._used.add(place)
        self._there[place.mark, place.length] = place
        return place

    def _write(self, data: ByteArray, place: Place) -> None:
        self._wrote = True
        if not place.key:
            self._pour(data.data, place.offset)
            return
        cipher, scratch = stream_cipher(bytes.fromhex(place.key)), memoryview(bytearray(_STEP))
        for step in _steps(len(data)):
            count = cipher.update_into(data[step].data, scratch)
            self._pour(scratch[:count], place.offset + step.start)

    def _pour(self, view: memoryview, offset: int) -> None:
        while len(view):
            written = os.pwrite(self._file, view, offset)
            view, offset = view[written:], offset + written


class _Reader:
    """Reads arrays, and sees whether they are what they were."""

    def __init__(self, path: Path, start: int) -> None:
        self._path, self._start = path, start
        self._file: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            os.close(self._file)

    def join(self, places: list[Place]) -> ByteArray:
        """Raises `ValueError` if something is damaged."""
        out = np.zeros(sum(place.length for place in places), dtype=np.uint8)
        end = 0
        for place in places:
            part = out[end : end + place.length]
            end += place.length
            if place.offset >= 0:
                self._fill(part, place)
        return out

    def _fill(self, part: ByteArray, place: Place) -> None:
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY)
            except FileNotFoundError:
                raise ValueError(f"{self._path.name} is missing") from None
        for step in _steps(len(part)):
            if os.preadv(self._file, [part[step].data], place.offset + step.start) != step.stop - step.start:
                raise ValueError(f"{self._path.name} is too short")
        if place.key:
            cipher = stream_cipher(bytes.fromhex(place.key))
            for step in _steps(len(part)):
                part[step] = np.frombuffer(cipher.update(part[step].data), np.uint8)
        mark = Fingerprint(self._start)
        mark.add(part)
        if mark.value != place.mark:
            raise ValueError(f"{self._path.name} is not what was saved")
