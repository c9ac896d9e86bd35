"""The arrays of one network after a mutation of its architecture: index maps, and what removed units leave behind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import NetworkError
from etude.networks.layers import NEW, LayerUnits, labelled, unflattened
from etude.tuning.evolution.structure import ADD_LAYER, REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL, UNIT_KINDS, Mutation

Arrays = Mapping[str, np.ndarray]
SLOPE = 0.5  # of an activation function that was not evaluated
INCOMING = ("inputs", "recurrent", "kernel")  # axes whose new entries are 0 for units that there were
OUTGOING = ("units", "gates", "heads")


class NetworkPair:
    """A network before and after a mutation: which layer and which inputs of the child are which of the parent."""

    def __init__(self, parent: Any, child: Any, mutation: Mutation):
        self.mutation: Mutation = mutation
        self._child = child
        self.before: dict[str, LayerUnits] = parent.layer_units()
        self.after: dict[str, LayerUnits] = child.layer_units()
        self.labels: dict[str, np.ndarray] = {
            name: labelled(i, layer.units) for i, (name, layer) in enumerate(self.before.items())
        }
        self.read: dict[str, np.ndarray] = parent.input_labels(self.labels)  # labels of inputs, by layer
        self.source: dict[str, str | None] = {
            name: self._source(layer) for name, layer in self.after.items()
        }  # None: the layer is new

    def _source(self, layer: LayerUnits) -> str | None:
        number, kind = layer.number, self.mutation.kind
        if layer.chain == self.mutation.chain:
            if kind == ADD_LAYER and number == self.mutation.layer:
                return None
            number -= kind == ADD_LAYER and number > self.mutation.layer
            number += kind == REMOVE_LAYER and number >= self.mutation.layer
        place = (layer.chain, layer.stream, number)
        for name, own in self.before.items():
            if (own.chain, own.stream, own.number) == place:
                if own.units == layer.units or kind in UNIT_KINDS and self.is_mutated(layer):
                    return name
                raise _unlike(f"{own.units} units in {name}, and the child {layer.units}")
        raise _unlike(f"no layer {number} of the chain {layer.chain!r}")

    def is_mutated(self, layer: LayerUnits) -> bool:
        """Whether this layer, of the child or of the parent, is the one that the mutation names, or one of these."""
        named = (layer.chain, layer.number) == (self.mutation.chain, self.mutation.layer)
        return named or f"{layer.chain}.{layer.stream}" == self.mutation.chain

    def child_labels(self, units: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Labels of the inputs of the child's layers, where its units are these of the parent's (or NEW)."""
        labels = {
            name: np.full(len(own), NEW) if (source := self.source[name]) is None
            else np.where(own == NEW, NEW, self.labels[source][own])
            for name, own in units.items()
        }  # fmt: skip
        return self._child.input_labels(labels)

    def readers(self, layer: str) -> list[tuple[str, np.ndarray, np.ndarray]]:
        """The parent's layers that read the units of one: name, places among their inputs, and the unit at each."""
        found, own = [], self.labels[layer]
        for name in self.before:
            channels = unflattened(self.read[name])
            places = np.flatnonzero(np.isin(channels, own))
            if len(places):
                found.append((name, places, channels[places] - own[0]))
        return found


class NetworkMember(NamedTuple):
    """One of the networks that a part computes together: its weights, and what its layers were seen to read."""

    values: Arrays
    inputs: Arrays

    def read(self, layer: str) -> np.ndarray | None:
        """[B, inputs], images as as many rows as they have pixels; None where the layer was not evaluated."""
        x = self.inputs.get(layer)
        return None if x is None else x.reshape(-1, x.shape[-1])


def least_useful_block(network: Any, member: NetworkMember) -> int:
    """The block whose layers add the least variance to what the layers before them have put out."""
    added: dict[int, float] = {}
    for name, layer in network.layer_units().items():
        if layer.chain == "block" and layer.residual:
            x, weight = member.read(name), member.values[f"{name}.weight"]
            variance = np.square(weight, dtype=float) if x is None else (x @ weight).var(0, dtype=float)
            added[layer.number] = added.get(layer.number, 0.0) + float(variance.sum())
    return min(added, key=lambda number: added[number])


class MemberSurgery:
    """The surgery of one network. units: of each layer of the child, the units of the parent's layer that they are, or
    NEW; where None, the least important ones are removed."""

    def __init__(self, pair: NetworkPair, member: NetworkMember, units: dict[str, np.ndarray] | None = None):
        self.pair, self._member = pair, member
        self.units: dict[str, np.ndarray] = units or {
            name: self._origins(name, layer) for name, layer in pair.after.items()
        }
        self._read = pair.child_labels(self.units)

    def mapped(self, arrays: Arrays, fresh: Arrays) -> dict[str, np.ndarray]:
        """The child's arrays: entries of the parent's, fresh ones of new units, and 0 for what reads new units."""
        found: dict[str, np.ndarray] = {}
        for name, layer in self.pair.after.items():
            source = self.pair.source[name]
            for array, axes in layer.axes.items():
                if array not in fresh:
                    continue
                if source is None:
                    found[array] = np.zeros_like(fresh[array]) if layer.residual else fresh[array]
                    continue
                old = arrays[source + array.removeprefix(name)]
                axes = axes[-old.ndim :]
                origins = [self._axis(name, source, axis, n, fresh[array].shape[i])
                           for i, (axis, n) in enumerate(zip(axes, old.shape, strict=True))]  # fmt: skip
                found[array] = _gathered(old, fresh[array], axes, origins)
        return found

    def folded(self, found: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same weights, and in biases what removed inputs added on average."""
        kind = self.pair.mutation.kind
        if kind not in (REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL):
            return found
        for name, source in self.pair.source.items():
            if source is None:
                continue
            gone = np.flatnonzero(~np.isin(self.pair.read[source], self._read[name]))
            if kind == REMOVE_LAYER and len(gone) and self.pair.mutation.chain.endswith("dense"):
                self._compose(found, name, source, gone)
            else:
                self._fold_means(found, name, source, gone)
        if kind == REMOVE_LAYER and self.pair.mutation.chain == "block":
            self._fold_block(found)
        return found

    def _origins(self, name: str, layer: LayerUnits) -> np.ndarray:
        source = self.pair.source[name]
        if source is None:
            return np.full(layer.units, NEW)
        before = self.pair.before[source]
        if layer.units >= before.units:
            return np.concatenate([np.arange(before.units), np.full(layer.units - before.units, NEW)])
        importance, kept, start = self._importance(source), [], 0
        for size, left in zip(before.groups or (before.units,), layer.groups or (layer.units,), strict=True):
            order = np.argsort(-importance[start : start + size], kind="stable")
            kept.append(start + np.sort(order[:left]))
            start += size
        return np.concatenate(kept)

    def _importance(self, layer: str) -> np.ndarray:
        """For each unit the variance that it causes in what the layers after it compute."""
        importance = np.zeros(self.pair.before[layer].units)
        for name, places, units in self.pair.readers(layer):
            x, squares = self._member.read(name), _row_squares(self._matrix(name))
            variance = np.ones(len(squares)) if x is None else x.var(0)
            np.add.at(importance, units, (variance * squares)[places])
        if (recurrent := self._recurrent(layer)) is not None:
            outputs = self._outputs(layer)
            importance += _row_squares(recurrent) * (1.0 if outputs is None else outputs.var(0))
        return importance

    def _matrix(self, layer: str) -> np.ndarray:
        """The weights that the inputs of a layer are multiplied by, which are its first parameter."""
        return self._member.values[next(iter(self.pair.before[layer].axes))]

    def _recurrent(self, layer: str) -> np.ndarray | None:
        """The weights that a cell's own output is multiplied by."""
        axes = self.pair.before[layer].axes
        return next((self._member.values[name] for name, own in axes.items() if "recurrent" in own), None)

    def _outputs(self, layer: str) -> np.ndarray | None:
        """What a layer put out, [B, units], as a layer after it read it; None where none was evaluated."""
        for name, places, units in self.pair.readers(layer):
            x = self._member.read(name)
            if x is not None and len(units) == self.pair.before[layer].units:
                return x[:, places[np.argsort(units)]]
        return None

    def _axis(self, name: str, source: str, axis: str, old: int, new: int) -> np.ndarray:
        """For each entry along an axis of an array of the child the parent's, or NEW."""
        if axis in ("units", "recurrent"):
            return self.units[name]
        if axis == "gates":
            units = self.pair.before[source].units
            return _gates(self.units[name], units, old // units)
        if axis == "heads":
            return _heads(self.units[name], self.pair.before[source].units, old)
        if axis in ("inputs", "features"):
            return _positions(self._read[name], self.pair.read[source])
        origins = np.arange(new) - (new - old) // 2  # kernels change alike on both sides
        return np.where((origins < 0) | (origins >= old), NEW, origins)

    def _columns(self, name: str, source: str) -> np.ndarray:
        """For each column of a layer's weights that of the parent's; a layer that lost inputs has no new units."""
        matrix = next(iter(self.pair.after[name].axes.values()))
        return self._axis(name, source, matrix[-1], self._matrix(source).shape[-1], 0)

    def _add_to_bias(self, found: dict[str, np.ndarray], name: str, change: np.ndarray) -> None:
        bias = self._bias(name)
        found[bias] = found[bias] + change.astype(np.float32)

    def _bias(self, name: str) -> str:
        return next(
            array for array, axes in self.pair.after[name].axes.items() if set(axes) <= {"members", "", *OUTGOING}
        )

    def _fold_means(self, found: dict[str, np.ndarray], name: str, source: str, gone: np.ndarray) -> None:
        matrix, x = self._matrix(source), self._member.read(source)
        means = np.zeros(matrix.shape[-2]) if x is None else x.mean(0, dtype=float)
        every = matrix.sum((0, 1), dtype=float) if matrix.ndim == 4 else matrix
        lost = means[gone] @ every[gone]
        layer = self.pair.after[name]
        if self.pair.mutation.kind == SHRINK_KERNEL and self.pair.is_mutated(layer):
            lost = lost + means @ (every - matrix[1:-1, 1:-1].sum((0, 1), dtype=float))
        recurrent = self._recurrent(source)
        outputs = None if recurrent is None else self._outputs(source)
        if recurrent is not None and outputs is not None:
            removed = np.setdiff1d(np.arange(len(recurrent)), self.units[name])
            into_state = outputs.mean(0, dtype=float)[removed] @ recurrent[removed]
            if (own := f"{name}.memory.bias") in found:  # which is multiplied by the reset gate, as the state is
                found[own] = found[own] + into_state[self._columns(name, source)].astype(np.float32)
            else:
                lost = lost + into_state
        self._add_to_bias(found, name, lost[self._columns(name, source)])

    def _fold_block(self, found: dict[str, np.ndarray]) -> None:
        """What a removed block added on average is added by the layer whose output it was added to."""
        residual = [name for name, layer in self.pair.after.items() if layer.residual]
        for name, layer in self.pair.before.items():
            if layer.residual and self.pair.is_mutated(layer):
                matrix, x = self._matrix(name), self._member.read(name)
                means = np.zeros(len(matrix)) if x is None else x.mean(0, dtype=float)
                change = means @ matrix + self._member.values[f"{name}.bias"]
                self._add_to_bias(found, residual[2 * self.pair.mutation.layer], change)

    def _compose(self, found: dict[str, np.ndarray], name: str, source: str, gone: np.ndarray) -> None:
        """Read the inputs of a removed dense layer in the place of its units, through the linear function of these
        inputs that each unit is closest to: its slope is the regression of the unit on what it is computed from."""
        readers = self.pair.readers
        removed = next(own for own, layer in self.pair.before.items() if self.pair.is_mutated(layer)
                       and source in [reader for reader, *_ in readers(own)])  # fmt: skip
        weight, bias = self._matrix(removed), self._member.values[f"{removed}.bias"].reshape(-1)
        onward = self._matrix(source)[gone]
        x, units = self._member.read(removed), self._outputs(removed)
        if x is None or units is None:
            slope, intercept = np.full(weight.shape[1], SLOPE), SLOPE * bias.astype(float)
        else:
            before = x @ weight + bias
            slope = _covariance(before, units) / np.maximum(before.var(0, dtype=float), 1e-12)
            intercept = units.mean(0, dtype=float) - slope * (before.mean(0, dtype=float) - bias)
        matrix = next(iter(self.pair.after[name].axes))
        rows = _positions(self.pair.read[removed], self._read[name])
        added = np.zeros(found[matrix].shape)
        added[rows] = (weight * slope) @ onward
        found[matrix] = found[matrix] + added.astype(np.float32)
        self._add_to_bias(found, name, intercept @ onward)


def _unlike(found: str) -> NetworkError:
    return NetworkError(
        f"The parent has {found}: the networks differ by more than the mutation. Give the layouts of before and after "
        "it."
    )


def _gathered(old: np.ndarray, fresh: np.ndarray, axes: tuple[str, ...], origins: list[np.ndarray]) -> np.ndarray:
    """The old array's entries at the origins along each axis; 0 where an input is new, fresh where a unit is."""
    found = old[np.ix_(*origins)]  # NEW takes the last entry, which is replaced
    for kinds, new in ((INCOMING, np.zeros_like(fresh)), ((*OUTGOING, "features"), fresh)):
        mask = np.zeros((1,) * old.ndim, bool)
        for i, (axis, own) in enumerate(zip(axes, origins, strict=True)):
            if axis in kinds:
                mask = mask | np.expand_dims(own == NEW, tuple(j for j in range(old.ndim) if j != i))
        found = np.where(mask, new, found)
    return found.astype(fresh.dtype)


def _gates(units: np.ndarray, old: int, gates: int) -> np.ndarray:
    """Columns of a cell's gates from its units: one gate after the other."""
    each = np.arange(gates)[:, None] * old + units
    return np.where(units == NEW, NEW, each).reshape(-1)


def _heads(units: np.ndarray, heads: int, old: int) -> np.ndarray:
    """Columns of queries, keys and values, `old` of so many heads, from the heads."""
    size = old // (3 * heads)
    each = (np.arange(3)[:, None, None] * heads + units[:, None]) * size + np.arange(size)
    return np.where(units[:, None] == NEW, NEW, each).reshape(-1)


def _positions(labels: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where each label is among others; NEW where it is not."""
    order = np.argsort(among, kind="stable")
    places = order[np.minimum(np.searchsorted(among, labels, sorter=order), len(among) - 1)]
    return np.where(among[places] == labels, places, NEW)


def _row_squares(matrix: np.ndarray) -> np.ndarray:
    """The squared norm of what each input is multiplied by."""
    return np.square(matrix, dtype=float).sum(tuple(i for i in range(matrix.ndim) if i != matrix.ndim - 2))


def _covariance(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return ((x - x.mean(0, dtype=float)) * (y - y.mean(0, dtype=float))).mean(0)
