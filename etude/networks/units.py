"""What the axes of a network's parameters count: units and inputs of layers, by which weights are carried over to a
network of another size."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from etude.networks.layers import Convolution, Dense, Parameter

Record = Callable[[str, Any], None]  # called with the name of a layer and its inputs
NEW = -1  # the label of a unit that no other network has
_PIXELS = 2**24  # the most pixels of an image


class LayerUnits(NamedTuple):
    """A layer as a set of units.

    chain: the kind of layer, in layers before or after a cell with that in front: dense, conv, cell, before.dense;
        block: the layers of a transformer's blocks.
    stream: which one of several chains of this kind, such as the value stream of a dueling network, or which layer of
        the block.
    number: in its chain, from 0.
    units: how many. axes: for each parameter what its axes count: "members", "kernel", "inputs", "units", "recurrent"
        (the units as inputs), "gates" (the units, once for each gate), "heads" (the numbers of each unit, a head, once
        for queries, keys and values), or "" for an axis of length 1.
    residual: whether its output is added to what the layers before it have put out, so that a new one computes 0.
    """

    chain: str
    stream: str
    number: int
    units: int
    axes: Mapping[str, tuple[str, ...]]
    groups: tuple[int, ...] = ()  # sizes of norm groups; (): one
    residual: bool = False

    @classmethod
    def of(cls, layer: Dense | Convolution, parameters: Mapping[str, Parameter]) -> LayerUnits:
        """Of a layer with these parameters."""
        axes: dict[str, tuple[str, ...]]
        groups: tuple[int, ...] = ()
        if isinstance(layer, Convolution):
            axes = {layer.weight: ("kernel", "kernel", "inputs", "units"), layer.bias: ("units",)}
        else:
            stacked = len(parameters[layer.weight].shape) == 3
            members = ("members",) if stacked else ()
            matrix: tuple[str, ...] = (*members, "inputs", "units")
            row: tuple[str, ...] = ("members", "", "units") if stacked else ("units",)
            axes = {layer.weight: matrix, layer.bias: row}
            if layer.norm is not None:
                axes |= {layer.norm.scale: row, layer.norm.bias: row}
            if layer.noisy is not None:
                axes |= {layer.noisy.weight: matrix, layer.noisy.bias: row}
                axes |= {layer.noisy.inputs: (*members, "inputs"), layer.noisy.units: (*members, "units")}
            groups = () if layer.norm is None else layer.norm.groups
        prefix, stream, kind, number = re.fullmatch(  # type: ignore[union-attr]
            r"(before\.|after\.)?(.*?)(dense|conv)(\d+)", layer.name
        ).groups()
        return cls(f"{prefix or ''}{kind}", stream, int(number), parameters[layer.weight].shape[-1], axes, groups)


def observed(part: int, n: int) -> np.ndarray:
    """Labels of n numbers of a part of the observation: the vectors are part 0, images those from 1."""
    return part * 2**24 + np.arange(n, dtype=np.int64)


def labelled(layer: int, n: int) -> np.ndarray:
    """Labels of the n units of a layer."""
    return 2**36 + layer * 2**20 + np.arange(n, dtype=np.int64)


def flattened(labels: np.ndarray, pixels: int) -> np.ndarray:
    """Labels of images with these channels, one pixel after the other."""
    each = labels * _PIXELS + np.arange(pixels, dtype=np.int64)[:, None]
    return np.where(labels == NEW, NEW, each).reshape(-1)


def unflattened(labels: np.ndarray) -> np.ndarray:
    """Labels of the channels of flattened images; others stay."""
    return np.where(labels >= 2**60, labels // _PIXELS, labels)
