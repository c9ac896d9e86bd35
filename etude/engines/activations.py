"""What goes on inside an agent's networks: the inputs of their layers, in NumPy."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from etude.agent import Agent
from etude.base import trees
from etude.base.data import Batch
from etude.base.schedules import all_at
from etude.base.trees import Tree
from etude.engines.parameter_layout import ParameterLayout
from etude.networks.network import put_part

Inputs = dict[str, dict[str, np.ndarray]]  # by part and layer: [..., inputs]
STEPS = 8  # that a recurrent agent takes on the observations of a sample


class ActivationSample(NamedTuple):
    """What an agent is evaluated on.

    observation: [N, ...], as the agent sees them; None: what acts is not evaluated by itself. batch: [N] as its losses
    take it; None: networks that only losses evaluate, such as critics of actions, are not evaluated.
    """

    observation: Tree | None
    batch: Batch | None = None


def layer_inputs(layout: ParameterLayout, values: Mapping[str, np.ndarray], sample: ActivationSample) -> Inputs:
    """The inputs of the layers that a sample passes through."""
    agent, found = _recording_agent(layout, values)
    if sample.observation is not None:
        _act(agent, sample.observation)
    if sample.batch is not None:
        n = len(sample.batch.weight)
        noise = {name: np.zeros((n, *shape), np.float32) for name, shape in agent.noise.items()}
        noise |= {name: np.zeros(shape, np.float32) for name, shape in agent.batch_noise.items()}
        # A loss of the user's own may need its framework: what it alone evaluates is then not measured.
        with np.errstate(all="ignore"), contextlib.suppress(Exception):
            agent.loss(sample.batch, noise)
    return {part: {name: _joined(xs) for name, xs in layers.items()} for part, layers in found.items() if layers}


def acting_parts(layout: ParameterLayout, values: Mapping[str, np.ndarray], observation: Tree) -> set[str]:
    """The parts with networks that acting evaluates."""
    agent, found = _recording_agent(layout, values)
    if agent.state_size:
        agent.act(observation, _zeros(agent, observation))
    else:
        agent.act(observation)
    return {part for part, layers in found.items() if layers}


def _recording_agent(
    layout: ParameterLayout, values: Mapping[str, np.ndarray]
) -> tuple[Agent, dict[str, dict[str, list[np.ndarray]]]]:
    config = layout.agent.config
    agent = layout.bind(values, all_at(config, layout.hyper, 0, 1))
    found: dict[str, dict[str, list[np.ndarray]]] = {}
    for name, part in layout.parts.items():
        bound = part.bound({v: values[f"{name}.{v}"] for v in part.variables})
        own = found.setdefault(name, {})
        record = lambda layer, x, own=own: own.setdefault(layer, []).append(np.asarray(x))  # noqa: E731
        put_part(agent, name, bound.recording(record))
    return agent, found


def _act(agent: Agent, observation: Tree) -> None:
    critic = type(agent).value is not Agent.value
    if not agent.state_size:
        agent.act(observation)
        if critic:
            agent.value(observation)
        return
    state, n = _zeros(agent, observation), len(trees.leaves(observation)[0])
    each = max(1, n // STEPS)
    state = state[:each]
    for start in range(0, n - each + 1, each):
        now = trees.map(lambda x, start=start: x[start : start + each], observation)
        if critic:
            agent.value(now, state)
        _, state = agent.act(now, state)


def _zeros(agent: Agent, observation: Tree) -> np.ndarray:
    return np.zeros((len(trees.leaves(observation)[0]), agent.state_size), np.float32)


def _joined(inputs: list[np.ndarray]) -> np.ndarray:
    """Those with the most axes, one after the other; [B, n] or, of several networks in one, [members, B, n]."""
    most = max(x.ndim for x in inputs)
    return np.concatenate([x for x in inputs if x.ndim == most], -2)


def in_numpy(layout: ParameterLayout) -> bool:
    """Whether no network is a module of the user's own."""
    return all(part.in_numpy for part in layout.parts.values())
