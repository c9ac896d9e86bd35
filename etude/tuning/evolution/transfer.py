"""The state of an engine, carried over to an engine whose networks were mutated: weights, optimizer moments and target
networks, by one index map for each array. Units are compared, and replaced by means, by what they do on a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import NetworkError
from etude.engines.activations import ActivationSample, acting_parts, layer_inputs
from etude.engines.parameter_layout import ParameterLayout
from etude.networks.layers import NEW, LayerUnits, labelled, unflattened
from etude.tuning.evolution.structure import (
    ADD_LAYER,
    PARAMETERS,
    REMOVE_LAYER,
    REMOVE_UNITS,
    SHRINK_KERNEL,
    UNIT_KINDS,
    UNNAMED,
    Mutation,
)

Arrays = Mapping[str, np.ndarray]
PERTURBED = 0.1  # of the entries of a weight matrix
MEASURED = (REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL)  # kinds of mutations that look at activations


def transfer(
    state: Mapping[str, Any],
    parent: ParameterLayout,
    child: ParameterLayout,
    mutation: Mutation,
    sample: ActivationSample | None = None,
) -> dict[str, Any]:
    """The state of the parent's engine (`Engine.state`) as one that the child's engine restores.

    Growth changes no output: what reads new units has weights of 0 for them. New weights are those that the child was
    built with, their moments 0. Of removed units, the least important ones go, and what they added on average to
    the layers after them is added to the biases of these. A target network undergoes the same surgery as its source
    with its own weights, so that it lags as before.

    sample: what importance and means are measured on by removals, and what noise on parameters finds the acting
        networks with; None: every unit has variance 1 and mean 0, and all trained networks get noise.
    Raises NetworkError where the networks differ by more than the mutation.
    """
    values = state["values"]
    seen = layer_inputs(parent, values, sample) if sample is not None and mutation.kind in MEASURED else {}
    found: dict[str, list[_Network]] = {}  # that the mutation changed; targets keep the units that their sources keep
    names = {id(part): name for name, part in child.parts.items()}
    for name in sorted(child.parts, key=lambda name: child.parts[name].target_of is not None):
        part, before, found[name] = child.parts[name], parent.parts.get(name), []
        source = None if part.target_of is None else found[names[id(part.target_of.source)]]
        for prefix, architecture in part.architectures.items():
            other = None if before is None else before.architectures.get(prefix)
            if other is None or other.spec == architecture.spec:
                continue
            own, inputs = _without(f"{name}.{prefix}", values), _without(prefix, seen.get(name, {}))
            chosen = mutation if source is None else source[len(found[name])].members[0].pair.mutation
            if chosen.kind == REMOVE_LAYER and chosen.layer == UNNAMED:
                chosen = replace(chosen, layer=least_useful_block(other, _NetworkMember(own, inputs)))
            pair = _NetworkPair(other, architecture, chosen)
            stacked = any("members" in axes for layer in pair.before.values() for axes in layer.axes.values())
            members = []
            for e in range(len(next(iter(own.values()))) if stacked else 1):
                kept = None if source is None else source[len(found[name])].members[e].units
                read = {layer: x[e] if stacked and x.ndim == 3 else x for layer, x in inputs.items()}  # else by all
                of_member = _NetworkMember(_of_member(own, e, stacked), read)
                members.append(MemberSurgery(pair, of_member, kept))
            found[name].append(_Network(f"{name}.{prefix}", stacked, members))
    networks = [network for networks in found.values() for network in networks]
    arrays = _applied(networks, values, child.initial, folds=True)
    if mutation.kind == PARAMETERS:
        arrays = _perturbed(arrays, parent, mutation, sample)
    zero = {name: np.zeros_like(child.initial[name]) for name in child.trainable}
    moments = {moment: _applied(networks, state[moment], zero, folds=False) for moment in child.moments}
    return {**state, "values": arrays, **moments}


class _Network(NamedTuple):
    """A network that the mutation changed: what the names of its arrays begin with, and the surgery of its members."""

    prefix: str
    stacked: bool  # whether it has an axis of members
    members: list[MemberSurgery]


def _applied(networks: list[_Network], arrays: Arrays, fresh: Arrays, folds: bool) -> dict[str, np.ndarray]:
    """The child's arrays; those of networks that did not change are the parent's. folds: whether these are weights;
    moments are only mapped."""
    found: dict[str, np.ndarray] = {}
    for prefix, stacked, surgeries in networks:
        members = []
        for e, surgery in enumerate(surgeries):
            of_parent, of_child = (_of_member(_without(prefix, x), e, stacked) for x in (arrays, fresh))
            mapped = surgery.mapped(of_parent, of_child)
            members.append(surgery.folded(mapped) if folds else mapped)
        for name, array in members[0].items():
            found[prefix + name] = np.stack([member[name] for member in members]) if stacked else array
    for name, new in fresh.items():
        if name in found:
            continue
        if name not in arrays or np.shape(arrays[name]) != new.shape:
            had = f"shape {np.shape(arrays[name])}" if name in arrays else "nothing of this name"
            raise NetworkError(
                f"The child's {name!r} has shape {new.shape}, the parent has {had}: the networks differ by more "
                "than the mutation. Give the layouts of before and after it."
            )
        found[name] = arrays[name]
    return {name: found[name] for name in fresh}


def _without(prefix: str, arrays: Arrays) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _of_member(arrays: Arrays, e: int, stacked: bool) -> Arrays:
    return {name: array[e] for name, array in arrays.items()} if stacked else arrays


def _perturbed(
    values: Arrays, layout: ParameterLayout, mutation: Mutation, sample: ActivationSample | None
) -> dict[str, np.ndarray]:
    """Gaussian noise on a tenth of the entries of the weight matrices that acting reads; target networks get the same,
    so that they lag as before."""
    rng, found = np.random.default_rng(mutation.seed), dict(values)
    followers: dict[str, list[str]] = {}
    for following in layout.following:
        followers.setdefault(following.source, []).append(following.target)
    online = {name for name, part in layout.parts.items() if part.target_of is None}
    parts = sorted(online if sample is None else acting_parts(layout, values, sample.observation))
    names = [f"{name}.{own}" for name in parts for own in layout.parts[name].variables
             if own not in layout.parts[name].frozen]  # fmt: skip
    for name in (name for name in names if values[name].ndim >= 2):
        weight = values[name]
        noise = rng.standard_normal(weight.shape) * (rng.random(weight.shape) < PERTURBED) * mutation.strength
        change = (noise * np.abs(weight)).astype(weight.dtype)
        for each in (name, *followers.get(name, ())):
            found[each] = found[each] + change
    return found


SLOPE = 0.5  # of an activation function that was not evaluated
INCOMING = ("inputs", "recurrent", "kernel")  # axes whose new entries are 0 for units that there were
OUTGOING = ("units", "gates", "heads")


class _NetworkPair:
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
        # None: the layer is new
        self.source: dict[str, str | None] = {name: self._source(layer) for name, layer in self.after.items()}

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


class _NetworkMember(NamedTuple):
    """One of the networks that a part computes together: its weights, and what its layers were seen to read."""

    values: Arrays
    inputs: Arrays

    def read(self, layer: str) -> np.ndarray | None:
        """[B, inputs], images as as many rows as they have pixels; None where the layer was not evaluated."""
        x = self.inputs.get(layer)
        return None if x is None else x.reshape(-1, x.shape[-1])


def least_useful_block(network: Any, member: _NetworkMember) -> int:
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

    def __init__(self, pair: _NetworkPair, member: _NetworkMember, units: dict[str, np.ndarray] | None = None):
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
            # What a removed block added on average is added by the layer whose output it was added to
            residual = [name for name, layer in self.pair.after.items() if layer.residual]
            for name, layer in self.pair.before.items():
                if layer.residual and self.pair.is_mutated(layer):
                    matrix, x = self._matrix(name), self._member.read(name)
                    means = np.zeros(len(matrix)) if x is None else x.mean(0, dtype=float)
                    change = means @ matrix + self._member.values[f"{name}.bias"]
                    self._add_to_bias(found, residual[2 * self.pair.mutation.layer], change)
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
            own, units = self.units[name], self.pair.before[source].units
            columns = np.arange(old // units)[:, None] * units + own  # one gate after the other
            return np.where(own == NEW, NEW, columns).reshape(-1)
        if axis == "heads":
            kept, heads = self.units[name][:, None], self.pair.before[source].units
            size = old // (3 * heads)  # columns of queries, keys and values of a head
            each = (np.arange(3)[:, None, None] * heads + kept) * size + np.arange(size)
            return np.where(kept == NEW, NEW, each).reshape(-1)
        if axis in ("inputs", "features"):
            return _positions(self._read[name], self.pair.read[source])
        origins = np.arange(new) - (new - old) // 2  # kernels change alike on both sides
        return np.where((origins < 0) | (origins >= old), NEW, origins)

    def _columns(self, name: str, source: str) -> np.ndarray:
        """For each column of a layer's weights that of the parent's; a layer that lost inputs has no new units."""
        matrix = next(iter(self.pair.after[name].axes.values()))
        return self._axis(name, source, matrix[-1], self._matrix(source).shape[-1], 0)

    def _add_to_bias(self, found: dict[str, np.ndarray], name: str, change: np.ndarray) -> None:
        for bias in [array for array in self.pair.after[name].axes if array.endswith(".bias")][:1]:  # or it has none
            found[bias] = found[bias] + change.astype(np.float32)

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

    def _compose(self, found: dict[str, np.ndarray], name: str, source: str, gone: np.ndarray) -> None:
        """Read the inputs of a removed dense layer in the place of its units, through the linear function of these
        inputs that each unit is closest to: its slope is the regression of the unit on what it is computed from."""
        readers = self.pair.readers
        removed = next(own for own, layer in self.pair.before.items() if self.pair.is_mutated(layer)
                       and source in [reader for reader, *_ in readers(own)])  # fmt: skip
        weight = self._matrix(removed)
        bias = np.reshape(self._member.values.get(f"{removed}.bias", np.zeros(weight.shape[1])), -1)
        onward = self._matrix(source)[gone]
        x, units = self._member.read(removed), self._outputs(removed)
        if x is None or units is None:
            slope, intercept = np.full(weight.shape[1], SLOPE), SLOPE * bias.astype(float)
        else:
            before = x @ weight + bias
            slope = ((before - before.mean(0, dtype=float)) * (units - units.mean(0, dtype=float))).mean(
                0
            ) / np.maximum(before.var(0, dtype=float), 1e-12)
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


def _positions(labels: np.ndarray, among: np.ndarray) -> np.ndarray:
    """Where each label is among others; NEW where it is not."""
    order = np.argsort(among, kind="stable")
    places = order[np.minimum(np.searchsorted(among, labels, sorter=order), len(among) - 1)]
    return np.where(among[places] == labels, places, NEW)


def _row_squares(matrix: np.ndarray) -> np.ndarray:
    """The squared norm of what each input is multiplied by."""
    return np.square(matrix, dtype=float).sum(tuple(i for i in range(matrix.ndim) if i != matrix.ndim - 2))
