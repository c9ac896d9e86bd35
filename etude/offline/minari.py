"""Minari data sets: a folder with `data/metadata.json` and `data/main_data.hdf5`, a group for each episode.

Younis et al. 2024, Minari; https://minari.farama.org, layout of version 0.5.4. Written without the library; read by it
and from it. Extras and normalised actions are in `infos`. Images are written as they are; JPEG images are decoded.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base import spaces as spaces_
from etude.base.errors import DataError, needing
from etude.base.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Spaces, Tuple, parts
from etude.offline import hdf5, layout
from etude.offline.blocks import EpisodeBlock

VERSION = "0.5.4"
DATA, METADATA, NUMBERS = "data", "metadata.json", "main_data.hdf5"
LARGEST_METADATA = 2**26  # bytes
LARGEST_SPACE = 2**24  # numbers
DEEPEST = 32  # spaces in spaces
SMALLEST_IMAGE = 32  # pixels a side, from which Minari takes bytes for images


def is_minari(path: Path) -> bool:
    """Whether a folder is a Minari data set."""
    return (path / DATA / METADATA).is_file()


def is_named(path: Path) -> bool:
    """Whether a path is named as Minari names its data sets: `expert-v0`."""
    return re.fullmatch(r"[-_\w]+-v\d+", path.name) is not None


class MinariShard:
    """A data set that is written episode by episode. about: what is known of it before."""

    COMPRESSIONS = ("gzip", "lzf", "none")

    def __init__(self, path: Path, spaces: Spaces, compression: str, about: dict[str, Any]):
        (path / DATA).mkdir(parents=True)
        self._path, self._spaces = path, spaces
        self._filter = {} if compression == "none" else {"compression": compression}
        self._file = hdf5.library().File(path / DATA / NUMBERS, "w", track_order=True)
        known = _leaves(spaces.observation, layout.OBSERVATIONS, layout.OBSERVATIONS)
        known += _leaves(spaces.action, layout.ACTIONS, layout.ACTIONS)
        self._names = {flat: own for flat, own, _ in known}
        self._count = self._steps = 0

    @property
    def size(self) -> int:
        """Bytes so far."""
        self._file.flush()
        return (self._path / DATA / NUMBERS).stat().st_size

    def append(self, block: EpisodeBlock) -> None:
        """Write whole episodes."""
        for i, arrays in enumerate(layout.by_episode(block, self._spaces)):
            group, length = self._file.create_group(f"episode_{self._count}"), int(block.lengths[i])
            group.attrs["id"], group.attrs["total_steps"] = self._count, length
            flags = np.zeros((2, length), bool)
            flags[0, -1], flags[1, -1] = block.terminated[i], block.truncated[i] or not block.terminated[i]
            group["terminations"], group["truncations"] = flags
            for name, values in arrays.items():
                own = self._names.get(name, name if name in ("rewards", layout.TEXT) else f"infos/{name}")
                group.create_dataset(own, data=values, **self._filter)
            self._count, self._steps = self._count + 1, self._steps + length

    def close(self, about: dict[str, Any]) -> None:
        """Complete the data set. about: all that is known of it."""
        self._file.close()
        environment, name = about.get("environment"), self._path.name.removesuffix(".partial")
        # The id of a data set: below Minari's folder with its namespace
        path = self._path.with_name(name)
        here = path.resolve()
        metadata = {
            "total_episodes": self._count,
            "total_steps": self._steps,
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": json.dumps(_to_json(self._spaces.observation)),
            "action_space": json.dumps(_to_json(self._spaces.action)),
            "dataset_id": (
                here.relative_to(root().resolve()).as_posix() if here.is_relative_to(root().resolve()) else path.name
            ),
            "minari_version": VERSION,
            "dataset_size": round(self._path.joinpath(DATA, NUMBERS).stat().st_size / 1e6, 1),
            "etude": about,
        }
        if isinstance(environment, str) and environment in gym.registry:
            metadata["env_spec"] = gym.spec(environment).to_json()
        (self._path / DATA / METADATA).write_text(json.dumps(metadata))


def root() -> Path:
    """The folder where Minari keeps data sets."""
    given = os.environ.get("MINARI_DATASETS_PATH")
    return Path(given) if given else Path.home() / ".minari" / "datasets"


def about(path: Path) -> str | None:
    """The text about the data set: of one of etude's its own; of others, what Minari says."""
    metadata = _metadata(path)
    if isinstance(metadata.get("etude"), dict):
        return json.dumps(metadata["etude"])
    spec = metadata.get("env_spec")
    try:
        found = {"version": 1, "environment": json.loads(spec).get("id") if isinstance(spec, str) else None}
        for name in ("observation_space", "action_space"):
            if isinstance(metadata.get(name), str):
                found[name] = spaces_.to_json(_from_json(json.loads(metadata[name])))
        return json.dumps(found)
    except (AssertionError, AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: its metadata.json is damaged, or has spaces that etude cannot use ({str(error)[:200]}). Expected "
            "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these."
        ) from None


def stream(path: Path) -> Iterator[layout.Arrays]:
    """The columns of each episode. Raises DataError for what is damaged."""
    metadata = _metadata(path)
    file_path = path / DATA / NUMBERS
    layout.require_regular(file_path)
    jpeg, ours = metadata.get("jpeg_encoding", True) is not False, isinstance(metadata.get("etude"), dict)
    about_it = json.loads(about(path) or "{}")
    if not {"observation_space", "action_space"} <= about_it.keys():
        raise DataError(f"{path}: its metadata.json does not have its spaces. Write it again with Minari {VERSION}.")
    pairs = ((layout.OBSERVATIONS, "observation_space"), (layout.ACTIONS, "action_space"))
    leaves = [leaf for name, kind in pairs for leaf in _leaves(spaces_.from_json(about_it[kind]), name, name)]
    with hdf5.opened(file_path) as file:
        for i in range(len(file)):
            name = f"episode_{i}"
            if name not in file:
                raise DataError(f"{path}: it has {len(file)} groups, and none of them is {name}. Record it again.")
            try:
                yield _episode(file[name], f"{file_path}, {name}", leaves, jpeg, ours)
            except (KeyError, ValueError) as error:
                raise DataError(f"{file_path}, {name}: it is damaged ({error}). Record or download it again.") from None


def _episode(group: Any, where: str, leaves: list[tuple[str, str, Space]], jpeg: bool, ours: bool) -> layout.Arrays:
    images = {own for _, own, space in leaves if jpeg and _is_jpeg(space)}
    found, claimed = hdf5.datasets(group, Path(where), images, infos=ours)
    layout.require_memory(Path(where), claimed)
    arrays = {"rewards": found["rewards"][()]}
    for flat, own, space in leaves:
        arrays[flat] = _decoded(found[own][()], space, where) if own in images else found[own][()]
    for name in found:
        if ours and name.startswith("infos/"):
            arrays[name.removeprefix("infos/")] = found[name][()]
    terminations = found["terminations"][()]
    if terminations.shape != arrays["rewards"].shape[:1] or not len(terminations):
        raise ValueError(f"terminations have the shape {terminations.shape}")
    return layout.from_episode(arrays, bool(terminations[-1]))


def _decoded(frames: np.ndarray, space: Space, where: str) -> np.ndarray:
    """JPEG images [L, bytes] as pixels."""
    with needing("Reading JPEG images", "offline"):
        from PIL import Image
    found = np.empty((len(frames), *(space.shape or ())), np.uint8)
    for i, frame in enumerate(frames):
        try:
            image = Image.open(io.BytesIO(np.asarray(frame, np.uint8).tobytes()), formats=["JPEG"])
            if image.size != found.shape[1:3][::-1]:
                raise ValueError(f"an image of {image.size[1]} by {image.size[0]} pixels")
            found[i] = np.array(image)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            raise DataError(f"{where}: image {i} is damaged ({error}). Download the data set again.") from None
    return found


def _metadata(path: Path) -> dict[str, Any]:
    file = path / DATA / METADATA
    layout.require_regular(file)
    try:
        if file.stat().st_size > LARGEST_METADATA:
            raise ValueError(f"{file.stat().st_size:,} bytes")
        found = json.loads(file.read_bytes())
        if not isinstance(found, dict):
            raise ValueError("no object")
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{file}: it is damaged ({str(error)[:200]}). Record or download the data set again.") from None
    if (form := found.get("data_format", "hdf5")) != "hdf5":
        raise DataError(
            f"{path}: its data_format is {str(form)[:100]!r}; etude reads hdf5. Convert it with Minari: "
            'create_dataset_from_buffers(..., data_format="hdf5").'
        )
    return found


def _leaves(space: Space, flat: str, own: str) -> list[tuple[str, str, Space]]:
    """(name in the other formats, name in Minari's, space) of the arrays of an observation."""
    inner = parts(space)
    if not inner:
        return [(flat, own, space)]
    mark = "" if isinstance(space, Dict) else "_index_"
    return [leaf for key, part in inner for leaf in _leaves(part, f"{flat}/{key}", f"{own}/{mark}{key}")]


def _is_jpeg(space: Space) -> bool:
    """Whether Minari encodes the values of a space as JPEG, where it encodes any."""
    shape = space.shape or ()
    if not isinstance(space, Box) or space.dtype != np.uint8 or len(shape) not in (2, 3):
        return False
    return min(shape[:2]) >= SMALLEST_IMAGE and bool((space.low == 0).all() and (space.high == 255).all())


def _to_json(space: Space) -> dict[str, Any]:
    """A space as Minari describes it."""
    if isinstance(space, Box):
        bounds = {"low": space.low.tolist(), "high": space.high.tolist()}
        return {"type": "Box", "dtype": str(space.dtype), "shape": list(space.shape), **bounds}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    if isinstance(space, MultiDiscrete):
        sizes = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
        return {"type": "MultiDiscrete", "dtype": str(space.dtype), **sizes}
    if isinstance(space, MultiBinary):
        return {"type": "MultiBinary", "n": space.n if isinstance(space.n, int) else [int(n) for n in space.n]}
    if isinstance(space, Dict):
        return {"type": "Dict", "subspaces": {key: _to_json(part) for key, part in parts(space)}}
    return {"type": "Tuple", "subspaces": [_to_json(part) for _, part in parts(space)]}


def _from_json(data: dict[str, Any], depth: int = 0) -> Space:
    """The space that Minari described."""
    if depth > DEEPEST:
        raise ValueError("spaces are nested too deeply")
    kind = data["type"]
    if kind == "Box":
        shape = tuple(data["shape"])
        if math.prod(shape) > LARGEST_SPACE:
            raise ValueError(f"a Box of shape {shape}")
        low, high = (np.broadcast_to(np.array(data[end], data["dtype"]), shape) for end in ("low", "high"))
        return Box(low, high, shape, np.dtype(data["dtype"]).type)
    nested: dict[str, Callable[[], Space]] = {
        "Discrete": lambda: Discrete(int(data["n"]), start=int(data["start"])),
        "MultiDiscrete": lambda: MultiDiscrete(data["nvec"], dtype=np.dtype(data["dtype"]).type, start=data["start"]),
        "MultiBinary": lambda: MultiBinary(data["n"]),
        "Dict": lambda: Dict({key: _from_json(part, depth + 1) for key, part in data["subspaces"].items()}),
        "Tuple": lambda: Tuple([_from_json(part, depth + 1) for part in data["subspaces"]]),
    }
    if kind not in nested:
        raise ValueError(f"a space of the type {kind!r}")
    return nested[kind]()
