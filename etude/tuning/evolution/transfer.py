"""The state of an engine, carried over to an engine whose networks were mutated: weights, optimizer moments and target
networks, by one index map for each array. Units are compared, and replaced by means, by what they do on a sample."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from etude.base.errors import NetworkError
from etude.engines.activations import ActivationSample, Inputs, acting_parts, layer_inputs
from etude.engines.parameter_layout import ParameterLayout
from etude.networks.network import Part
from etude.tuning.evolution.structure import PARAMETERS, REMOVE_LAYER, REMOVE_UNITS, SHRINK_KERNEL, UNNAMED, Mutation
from etude.tuning.evolution.surgery import MemberSurgery, NetworkMember, NetworkPair, least_useful_block

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
    networks = _networks(parent, child, mutation, values, seen)
    found = _applied(networks, values, child.initial, folds=True)
    if mutation.kind == PARAMETERS:
        found = _perturbed(found, parent, mutation, sample)
    zero = {name: np.zeros_like(child.initial[name]) for name in child.trainable}
    moments = {moment: _applied(networks, state[moment], zero, folds=False) for moment in child.moments}
    return {**state, "values": found, **moments}


class _Network(NamedTuple):
    """A network that the mutation changed: what the names of its arrays begin with, and the surgery of its members."""

    prefix: str
    stacked: bool  # whether it has an axis of members
    members: list[MemberSurgery]

    def applied(self, arrays: Arrays, fresh: Arrays, folds: bool) -> dict[str, np.ndarray]:
        """The child's arrays by full names. folds: whether these are weights; moments are only mapped."""
        found = []
        for e, surgery in enumerate(self.members):
            own, new = (_of_member(_without(self.prefix, x), e, self.stacked) for x in (arrays, fresh))
            mapped = surgery.mapped(own, new)
            found.append(surgery.folded(mapped) if folds else mapped)
        joined = {n: np.stack([own[n] for own in found]) if self.stacked else found[0][n] for n in found[0]}
        return {self.prefix + name: array for name, array in joined.items()}


def _networks(
    parent: ParameterLayout, child: ParameterLayout, mutation: Mutation, values: Arrays, seen: Inputs
) -> list[_Network]:
    """The networks that the mutation changed; target networks keep the units that their sources keep."""
    found: dict[str, list[_Network]] = {}
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
                chosen = replace(chosen, layer=least_useful_block(other, NetworkMember(own, inputs)))
            pair = NetworkPair(other, architecture, chosen)
            stacked = any("members" in axes for layer in pair.before.values() for axes in layer.axes.values())
            members = []
            for e in range(len(next(iter(own.values()))) if stacked else 1):
                kept = None if source is None else source[len(found[name])].members[e].units
                of_member = NetworkMember(_of_member(own, e, stacked), _inputs_of(inputs, e, stacked))
                members.append(MemberSurgery(pair, of_member, kept))
            found[name].append(_Network(f"{name}.{prefix}", stacked, members))
    return [network for networks in found.values() for network in networks]


def _applied(networks: list[_Network], arrays: Arrays, fresh: Arrays, folds: bool) -> dict[str, np.ndarray]:
    """The child's arrays; those of networks that did not change are the parent's."""
    found: dict[str, np.ndarray] = {}
    for network in networks:
        found |= network.applied(arrays, fresh, folds)
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


def _inputs_of(inputs: Arrays, e: int, stacked: bool) -> Arrays:
    """What the layers of one member read: the first one reads what all members read."""
    return {name: x[e] if stacked and x.ndim == 3 else x for name, x in inputs.items()}


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
    for name in (n for part in parts for n in _weights_of(part, layout.parts[part], layout)):
        weight = values[name]
        noise = rng.standard_normal(weight.shape) * (rng.random(weight.shape) < PERTURBED) * mutation.strength
        change = (noise * np.abs(weight)).astype(weight.dtype)
        for each in (name, *followers.get(name, ())):
            found[each] = found[each] + change
    return found


def _weights_of(name: str, part: Part, layout: ParameterLayout) -> list[str]:
    """The names of the trained weight matrices and kernels of a part."""
    own = (f"{name}.{variable}" for variable in part.variables if variable not in part.frozen)
    return [full for full in own if layout.initial[full].ndim >= 2]
