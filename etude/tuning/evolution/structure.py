"""Mutations: what one changed, as plain data, which lineages keep and the transfer of weights follows; and of network
specs, every change of one step that stays within limits, by kind and chain of layers.

A chain is a sequence of layers of one kind: `dense`, `conv`, `cell`, `block`, with `before.` or `after.` in front
around a cell. `block.feedforward` and `block.heads` are the units and the heads of all blocks.
A new kind of spec registers its moves with `moves_of`, and its architecture says what the axes of its parameters
count (`networks.layers`).
"""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any

from etude.base.errors import ConfigError
from etude.networks.specs import ActorCritic, ByEmbedding, Conv, Mlp, Recurrent, Transformer, feature_count

NONE = "none"
ADD_LAYER, REMOVE_LAYER, ADD_UNITS, REMOVE_UNITS = "add_layer", "remove_layer", "add_units", "remove_units"
GROW_KERNEL, SHRINK_KERNEL = "grow_kernel", "shrink_kernel"
ACTIVATION, PARAMETERS, HYPERPARAMETER = "activation", "parameters", "hyperparameter"
LAYER_KINDS = (ADD_LAYER, REMOVE_LAYER, GROW_KERNEL, SHRINK_KERNEL)
UNIT_KINDS = (ADD_UNITS, REMOVE_UNITS)
UNNAMED = -1  # in the place of a layer: that of every block, or the block that is the least useful


@dataclass(frozen=True)
class Mutation:
    """How a genome came from its parent.

    kind: one of the names above. field: of the config, such as "learning_rate" or "network.actor".
    chain, layer, amount: which layer of which chain of a network (`UNNAMED`: see there); how many units it gained or
        lost, or has.
    before, after: values of a hyperparameter, or names of activation functions.
    strength, seed: of the noise on parameters.
    """

    kind: str = NONE
    field: str = ""
    chain: str = ""
    layer: int = 0
    amount: int = 0
    before: float | str | None = None
    after: float | str | None = None
    strength: float = 0.0
    seed: int = 0

    def __str__(self) -> str:
        if self.kind in (HYPERPARAMETER, ACTIVATION):
            return f"{self.field} {_shown(self.before)} -> {_shown(self.after)}"
        if self.kind in (*LAYER_KINDS, *UNIT_KINDS):
            place = self.chain if self.chain == "cell" or self.layer == UNNAMED else f"{self.chain}{self.layer}"
            where = f"{self.field.removeprefix('network').removeprefix('.')} {place}".strip()
            return f"{self.kind.replace('_', ' ')} {where} ({self.amount})"
        return self.kind


def _shown(value: float | str | None) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


Moves = dict[tuple[str, str], list[tuple[Any, Mutation]]]  # by kind and chain: specs, and how each came to be
Path = tuple[str, ...]
Range = tuple[int, int]

UNITS = (16, 32, 64)  # added to or removed from a dense layer or a cell
FILTERS = (8, 16, 32)  # added to or removed from a convolution, or the features that a cell reads
FEEDFORWARD = (32, 64, 128)  # units added to or removed from the dense layer of every block
NEW_FILTERS = 32  # of a new convolution, at most
SMALLEST_GROUP = 2  # units of a norm group: the normalised value of a single one is 0


@dataclass(frozen=True)
class ArchitectureLimits:
    """What the architecture of a network stays within when it is mutated: (smallest, largest)."""

    layers: Range = (1, 3)  # dense layers
    units: Range = (32, 500)  # of a dense layer
    latent: Range = (8, 128)  # features that a recurrent cell reads
    convolutions: Range = (1, 6)  # convolutional layers
    filters: Range = (16, 256)  # of a convolution
    kernel: Range = (1, 9)  # pixels
    cell: Range = (16, 512)  # units of a recurrent cell
    blocks: Range = (1, 6)  # of a transformer
    feedforward: Range = (32, 2048)  # units of the dense layer of a block
    heads: Range = (1, 16)  # of the attention of a block

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            limits = getattr(self, field.name)
            if len(limits) != 2 or not 1 <= limits[0] <= limits[1]:
                raise ConfigError(
                    f"ArchitectureLimits: {field.name} = {limits}; expected (smallest, largest), from 1 on, such as "
                    f"{field.default}."
                )


def networks_in(network: Any, path: Path = ("network",)) -> dict[Path, Any]:
    """The specs in a config's field `network` that can be mutated, by their path; none where actor or critic is a
    module of the user's own."""
    if isinstance(network, ActorCritic):
        both = networks_in(network.actor, (*path, "actor")), networks_in(network.critic, (*path, "critic"))
        return both[0] | both[1] if all(both) else {}
    if isinstance(network, ByEmbedding):
        return networks_in(network.network, (*path, "network"))
    return {path: network} if isinstance(network, Mlp | Conv | Recurrent | Transformer) else {}


def hidden_units(network: Any) -> int:
    """The hidden units and filters of a config's networks together."""
    found = 0
    for spec in networks_in(network).values():
        layers = spec.before if isinstance(spec, Recurrent | Transformer) else spec
        found += sum(layers.widths)
        if isinstance(spec, Recurrent):
            found += spec.units + sum(spec.widths)
        if isinstance(spec, Transformer):
            found += spec.layers * (spec.feedforward + spec.attention)
        if isinstance(layers, Conv):
            found += sum(count for count, *_ in layers.filters)
    return found


def shape_of(network: Any) -> str:
    """The layers of a config's networks in a few characters: filters, widths and the units of cells."""
    return " | ".join(_shape(spec) for spec in networks_in(network).values()) or "own module"


def _shape(spec: Any) -> str:
    if isinstance(spec, Transformer):
        return f"transformer {spec.layers} x {spec.width}, heads {spec.heads}, feedforward {spec.feedforward}"
    if isinstance(spec, Recurrent):
        after = ["-".join(map(str, spec.widths))] if spec.widths else []
        return " ".join([_shape(spec.before), f"{spec.cell}{spec.units}", *after])
    layers = [f"{count}k{kernel}s{stride}" for count, kernel, stride in spec.filters] if isinstance(spec, Conv) else []
    return " ".join(["-".join([*layers, *map(str, spec.widths)]), spec.activation])


def replaced(holder: Any, path: Path, spec: Any) -> Any:
    """A config or spec with another one at this path."""
    name, *rest = path
    inner = replaced(getattr(holder, name), tuple(rest), spec) if rest else spec
    return dataclasses.replace(holder, **{name: inner})


@functools.singledispatch
def moves_of(spec: Any, limits: ArchitectureLimits, last_fixed: bool = False) -> Moves:
    """All specs that are one mutation away. last_fixed: whether the last hidden layer must stay as it is."""
    return {}


@moves_of.register
def _of_mlp(spec: Mlp, limits: ArchitectureLimits, last_fixed: bool = False) -> Moves:
    return _dense_moves(spec, limits, "dense", spec.layer_norm, last_fixed)


@moves_of.register
def _of_conv(spec: Conv, limits: ArchitectureLimits, last_fixed: bool = False) -> Moves:
    """Only convolutions with skip connections are removed: without another one, the dense layer after it would see
    larger images. Kernels change by one pixel on each side, and padding alike, so that every output keeps its place."""
    filters, padding = spec.filters, spec.padding or (0,) * len(spec.filters)
    kinds = (ADD_LAYER, REMOVE_LAYER, ADD_UNITS, REMOVE_UNITS, GROW_KERNEL, SHRINK_KERNEL)
    moves: Moves = {(kind, "conv"): [] for kind in kinds}

    def add(kind: str, layer: int, amount: int, **changes: Any) -> None:
        found = dataclasses.replace(spec, **changes)
        moves[kind, "conv"].append((found, Mutation(kind, "", "conv", layer, amount)))

    if len(filters) < limits.convolutions[1]:
        for layer in range(1, len(filters) + 1):
            count = max(min(filters[layer - 1][0], NEW_FILTERS), limits.filters[0])
            add(
                ADD_LAYER, layer, count,
                filters=(*filters[:layer], (count, 3, 1), *filters[layer:]),
                padding=(*padding[:layer], 1, *padding[layer:]),
                filter_skips=(*sorted([layer, *_after_insertion(spec.filter_skips, layer)]),),
            )  # fmt: skip
    if len(filters) > limits.convolutions[0]:
        for layer in spec.filter_skips:
            add(
                REMOVE_LAYER, layer, filters[layer][0],
                filters=(*filters[:layer], *filters[layer + 1 :]),
                padding=_set_padding((*padding[:layer], *padding[layer + 1 :])),
                filter_skips=_after_removal(spec.filter_skips, layer),
            )  # fmt: skip
    for layer, (count, kernel, stride) in enumerate(filters):
        for kind, sign in ((ADD_UNITS, 1), (REMOVE_UNITS, -1)):
            for k in FILTERS:
                if limits.filters[0] <= count + sign * k <= limits.filters[1]:
                    add(kind, layer, k, filters=_put(filters, layer, (count + sign * k, kernel, stride)))
        for kind, sign in ((GROW_KERNEL, 1), (SHRINK_KERNEL, -1)):
            if limits.kernel[0] <= kernel + 2 * sign <= limits.kernel[1]:
                changed = _put(filters, layer, (count, kernel + 2 * sign, stride))
                around = _set_padding(_put(padding, layer, padding[layer] + sign))
                add(kind, layer, 2, filters=changed, padding=around)
    return {**_dense_moves(spec, limits, "dense", spec.layer_norm, last_fixed), **moves}


@moves_of.register
def _of_recurrent(spec: Recurrent, limits: ArchitectureLimits, last_fixed: bool = False) -> Moves:
    before = _moves_before(spec, limits, True)
    last = len(spec.before.widths) - 1  # the layer whose units the cell reads
    for kind, sign in ((ADD_UNITS, 1), (REMOVE_UNITS, -1)):
        for k in FILTERS if last >= 0 else ():
            if limits.latent[0] <= spec.before.widths[last] + sign * k <= limits.latent[1]:
                inner = _resized(spec.before, last, sign * k, spec.before.layer_norm)
                if inner is not None:
                    found = dataclasses.replace(spec, before=inner)
                    before[kind, "before.dense"].append((found, Mutation(kind, "", "before.dense", last, k)))
    cell: Moves = {
        (kind, "cell"): [
            (dataclasses.replace(spec, units=spec.units + sign * k), Mutation(kind, chain="cell", amount=k))
            for k in UNITS
            if limits.cell[0] <= spec.units + sign * k <= limits.cell[1]
        ]
        for kind, sign in ((ADD_UNITS, 1), (REMOVE_UNITS, -1))
    }
    return {**before, **cell, **_dense_moves(spec, limits, "after.dense", spec.before.layer_norm, last_fixed)}


@moves_of.register
def _of_transformer(spec: Transformer, limits: ArchitectureLimits, last_fixed: bool = False) -> Moves:
    """The width of the stream stays: its layers are normalised over all of it, which new numbers would change."""
    moves, size, layers = _moves_before(spec, limits, False), spec.attention // spec.heads, spec.layers
    if layers < limits.blocks[1]:
        added = dataclasses.replace(spec, layers=layers + 1)
        mutations = (Mutation(ADD_LAYER, "", "block", i, spec.feedforward) for i in range(layers + 1))
        moves[ADD_LAYER, "block"] = [(added, mutation) for mutation in mutations]
    if layers > limits.blocks[0]:
        removed = dataclasses.replace(spec, layers=layers - 1)
        moves[REMOVE_LAYER, "block"] = [(removed, Mutation(REMOVE_LAYER, "", "block", UNNAMED, spec.feedforward))]
    for kind, sign in ((ADD_UNITS, 1), (REMOVE_UNITS, -1)):
        for name, amounts in (("feedforward", FEEDFORWARD), ("heads", (1,))):
            more: dict[str, Any] = {"head_size": size} if name == "heads" else {}
            sizes, (low, high) = {k: getattr(spec, name) + sign * k for k in amounts}, getattr(limits, name)
            moves[kind, f"block.{name}"] = [
                (dataclasses.replace(spec, **{name: n}, **more), Mutation(kind, "", f"block.{name}", UNNAMED, k))
                for k, n in sizes.items()
                if low <= n <= high
            ]
    return moves


def _moves_before(spec: Recurrent | Transformer, limits: ArchitectureLimits, last_fixed: bool) -> Moves:
    """Those of the layers before what remembers."""
    return {
        (kind, f"before.{chain}"): [
            (dataclasses.replace(spec, before=inner), dataclasses.replace(mutation, chain=f"before.{chain}"))
            for inner, mutation in found
        ]
        for (kind, chain), found in moves_of(spec.before, limits, last_fixed).items()
    }


def _dense_moves(
    spec: Mlp | Conv | Recurrent, limits: ArchitectureLimits, chain: str, norm: bool, last_fixed: bool
) -> Moves:
    streams = not isinstance(spec, Recurrent) and spec.dueling  # the last layer is in each of two streams
    layers = len(spec.widths)
    moves: Moves = {(kind, chain): [] for kind in (ADD_LAYER, REMOVE_LAYER, ADD_UNITS, REMOVE_UNITS)}
    if layers < limits.layers[1]:
        for layer in range(1, layers + 1 - (streams or last_fixed)):
            units = min(max(spec.widths[layer - 1], limits.units[0]), limits.units[1])
            found = _with_layer(spec, layer, units)
            moves[ADD_LAYER, chain].append((found, Mutation(ADD_LAYER, "", chain, layer, units)))
    if layers > limits.layers[0]:
        for layer in range(layers - (streams or last_fixed)):
            if _shrinks_without(spec, layer):
                groups = (*spec.norm_groups[:layer], *spec.norm_groups[layer + 1 :]) if spec.norm_groups else ()
                widths = (*spec.widths[:layer], *spec.widths[layer + 1 :])
                found = dataclasses.replace(
                    spec, widths=widths, skips=_after_removal(spec.skips, layer), norm_groups=groups
                )
                moves[REMOVE_LAYER, chain].append((found, Mutation(REMOVE_LAYER, "", chain, layer, spec.widths[layer])))
    for layer in range(layers - last_fixed):
        for kind, sign in ((ADD_UNITS, 1), (REMOVE_UNITS, -1)):
            for k in UNITS:
                if limits.units[0] <= spec.widths[layer] + sign * k <= limits.units[1]:
                    resized = _resized(spec, layer, sign * k, norm)
                    if resized is not None:
                        moves[kind, chain].append((resized, Mutation(kind, "", chain, layer, k)))
    return moves


def _with_layer(spec: Any, layer: int, units: int) -> Any:
    """With a new hidden layer before the one of this number; it has a skip connection."""
    groups = (*spec.norm_groups[:layer], (), *spec.norm_groups[layer:]) if spec.norm_groups else ()
    return dataclasses.replace(
        spec,
        widths=(*spec.widths[:layer], units, *spec.widths[layer:]),
        skips=(*sorted([layer, *_after_insertion(spec.skips, layer)]),),
        norm_groups=groups,
    )


def _shrinks_without(spec: Any, layer: int) -> bool:
    """Whether the network is smaller without this hidden layer, whatever its inputs and outputs are: the layers after
    it then read the inputs of the layer in the place of its units."""
    if layer in spec.skips:
        return True
    last, skipped = layer == len(spec.widths) - 1, layer + 1 in spec.skips
    if layer == 0 and (last or skipped):
        return False  # it reads observations, of unknown width; and a first layer has no skip connection
    if not last and not skipped and spec.widths[layer + 1] <= spec.widths[layer]:
        return True
    return layer > 0 and feature_count(spec, layer) <= spec.widths[layer]


def _resized(spec: Any, layer: int, change: int, norm: bool) -> Any | None:
    """With more or fewer units in a hidden layer; None where a norm group would become too small."""
    widths = list(spec.widths)
    widths[layer] += change
    if not norm:
        return dataclasses.replace(spec, widths=tuple(widths))
    groups = list(spec.norm_groups or ((),) * len(widths))
    sizes = groups[layer] or (spec.widths[layer],)
    if change > 0:
        groups[layer] = (*sizes, change)
    else:
        k = -change  # units that the groups lose together, each in proportion to its size
        spare = [size - SMALLEST_GROUP for size in sizes]
        total = sum(spare)
        if total < k:
            return None
        lost = [k * own // total for own in spare]
        for i in sorted(range(len(sizes)), key=lambda i: (k * spare[i] / total - lost[i], i), reverse=True):
            if sum(lost) < k and lost[i] < spare[i]:
                lost[i] += 1
        left = tuple(size - own for size, own in zip(sizes, lost, strict=True))
        groups[layer] = left if len(left) > 1 else ()
    held = tuple(groups) if any(groups) else ()
    return dataclasses.replace(spec, widths=tuple(widths), norm_groups=held)


def _set_padding(padding: tuple[int, ...]) -> tuple[int, ...]:
    return padding if any(padding) else ()


def _put(items: tuple[Any, ...], i: int, item: Any) -> tuple[Any, ...]:
    return (*items[:i], item, *items[i + 1 :])


def _after_insertion(numbers: tuple[int, ...], layer: int) -> tuple[int, ...]:
    return tuple(number + (number >= layer) for number in numbers)


def _after_removal(numbers: tuple[int, ...], layer: int) -> tuple[int, ...]:
    return tuple(number - (number > layer) for number in numbers if number != layer)
