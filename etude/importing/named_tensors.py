"""The named tensors of a file of PyTorch, with an account of those that nothing has read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from etude.base.errors import CheckpointError
from etude.importing.model import Layer, Layers

SHOWN = 4  # names in an error


class NamedTensors:
    """Arrays by name. where: the file. expected: what it may hold."""

    def __init__(self, where: str, arrays: Any, expected: str):
        self.where, self.expected = where, expected
        if not isinstance(arrays, Mapping) or not arrays:
            raise self.error(f"it holds no tensors by name, but a {type(arrays).__name__}")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not np.isfinite(array).all():
                raise self.error(f"{name} is no tensor of finite numbers")
        self._arrays: dict[str, np.ndarray] = dict(arrays)
        self._read: set[str] = set()

    def error(self, what: str) -> CheckpointError:
        """What is wrong with the file."""
        return CheckpointError(f"{self.where} cannot be imported: {what}. Expected {self.expected}.")

    def have(self, *beginnings: str) -> bool:
        """Whether names begin with each of these."""
        return all(any(name.startswith(beginning) for name in self._arrays) for beginning in beginnings)

    def read(self, name: str) -> np.ndarray:
        """An array by its name."""
        if name not in self._arrays:
            raise self.error(f"there is no {name}; it has {_some(list(self._arrays))}")
        self._read.add(name)
        return self._arrays[name]

    def pass_over(self, beginning: str) -> None:
        """Count as read what is there under another name, too."""
        self._read |= {name for name in self._arrays if name.startswith(beginning)}

    def layer(self, name: str) -> Layer:
        """A dense layer or a convolution."""
        weight, bias = self.read(f"{name}.weight"), self.read(f"{name}.bias")
        if weight.ndim not in (2, 4) or weight.shape[:1] != bias.shape:
            raise self.error(f"{name} has weights of shape {weight.shape} and biases of shape {bias.shape}")
        return Layer(weight, bias)

    def sequence(self, name: str) -> Layers:
        """The layers of a `Sequential`: convolutions, each with its activation, a `Flatten` after them, and dense
        layers with activations between them."""
        pattern = re.compile(rf"{re.escape(name)}\.(\d{{1,3}})\.")
        places = sorted({int(found[1]) for each in self._arrays if (found := pattern.match(each))})
        layers = [self.layer(f"{name}.{place}") for place in places]
        convolutions = [layer for layer in layers if layer.weight.ndim == 4]
        flat = bool(convolutions and len(layers) > len(convolutions))
        expected = [2 * i + (flat and i >= len(convolutions)) for i in range(len(layers))]
        if places != expected or any(layer.weight.ndim == 4 for layer in layers[len(convolutions) :]):
            raise self.error(
                f"{name} has layers at {', '.join(map(str, places))}, which are not Linear layers or convolutions with "
                "an activation after each"
            )
        if convolutions and [layer.weight.shape[::2] for layer in convolutions] != [(32, 8), (64, 4), (64, 3)]:
            raise self.error(f"the convolutions of {name} are not those of NatureCNN")
        return Layers(tuple(convolutions), tuple(layers[len(convolutions) :]))

    def check_all_read(self) -> None:
        """Raise CheckpointError where something was not read."""
        if left := [name for name in self._arrays if name not in self._read]:
            raise self.error(f"it has {_some(left)}, which are not known here")


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (f" and {len(names) - SHOWN} more" if len(names) > SHOWN else "")
