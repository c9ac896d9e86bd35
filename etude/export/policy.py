"""A trained policy as a function of arrays in the environment's own units: the one description of what every format
computes.

The function is written over `ops`. What is remembered from one step of an episode to the next, recurrent state and
stacked frames, goes in as an input and comes out as an output.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import numpy as np

from etude import __version__, ops
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import ACTION_MASK, Shifted, Space, Spaces, leaves, tree_of
from etude.envs import name_of
from etude.envs.observations import is_text
from etude.explore.policies import best_of
from etude.losses.masks import MaskedValues, allowed_only
from etude.multi_agent.by_policy import PolicyAgents
from etude.networks.encoding import at
from etude.ops.tracing import Traced
from etude.training.assembly.evaluator import TrainedPolicy

FIRST, REWARD, STATE, FRAMES, MASK = "first", "reward", "state", "frames", ACTION_MASK  # names of inputs
NEXT = "next_"  # before the name of what is remembered: what it becomes
EXAMPLES = 3  # of the arrays that a program is traced with


class Input(NamedTuple):
    """An array [N, *shape] that the function takes, or gives where it is remembered.

    path: where it is in an observation of the environment; None: it is no part of that.
    """

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    path: tuple[Any, ...] | None = None

    def zeros(self, n: int) -> np.ndarray:
        """n of them."""
        return np.zeros((n, *self.shape), self.dtype)


class ExportedPolicy:
    """The policy of one agent, with the best actions.

    engine: acts in NumPy, with the present weights. agent: whose observation and action it is, of several; "": of one.
    translation: between the environment's units and the agent's.

    source: the space of what is observed, single frames where they are stacked. space: that of actions. spaces: of what
    the agent sees and does.
    observed, memory: the inputs. Where something is remembered there is one more, `first` [N] bool: the observation is
    the first of an episode; where the rewards so far are, another, `reward` [N], which came with the observation.
    Outputs are the leaves of the action, by the names in `actions`, in the order of its space; `next_` and the name of
    what is remembered; and what the action is the best of: `values` of actions, or the parameters of a distribution,
    such as `logits`, for actions as agents see them.
    """

    def __init__(self, engine: Any, agent: str, translation: Any):
        conversion = translation.conversions[agent]
        self._engine, self._agent, self._conversion, self._frames = engine, agent, conversion, translation.frames
        source = conversion.observations.source if translation.frame is None else translation.frame
        if texts := [".".join(map(str, path)) for path, leaf in leaves(source) if is_text(leaf)]:
            raise ConfigError(f"The observation {texts[0]!r} is a text, which no format takes: train without it.")
        self.source: Space = source
        self.space: Space = conversion.actions.source
        self.spaces: Spaces = conversion.spaces
        given = [(path, leaf.given if isinstance(leaf, Shifted) else leaf) for path, leaf in leaves(source)]
        self.observed: list[Input] = [
            Input(_named("observation", path), np.dtype(leaf.dtype), tuple(leaf.shape or ()), path)
            for path, leaf in given
        ]
        if conversion.observations.reads_infos:
            flags = conversion.observations.space.spaces[MASK].shape  # type: ignore[attr-defined]
            self.observed.append(Input(MASK, np.dtype(bool), flags))
        masks = (None, (MASK,))  # are those of the newest frame
        self._stacked = [each for each in self.observed if self._frames > 1 and each.path not in masks]
        self.memory: list[Input] = [
            each._replace(name=each.name.replace("observation", FRAMES, 1), shape=(self._frames, *each.shape))
            for each in self._stacked
        ]
        # Policies over texts see all tokens so far: keys and values that are kept would save time alone.
        self._remembers: bool = engine.state_size > 0 and not engine.layout.agent.reads_tokens
        self._rewards: list[Input] = []
        if self._remembers:
            self.memory.append(Input(STATE, np.dtype(np.float32), (engine.state_size,)))
            self._rewards += [Input(REWARD, np.dtype(np.float32), ())] * engine.layout.agent.reads_rewards
        self.actions: list[str] = [_named("action", path) for path, _ in leaves(self.space)]

    @property
    def inputs(self) -> list[Input]:
        """All that the function takes."""
        kept = [Input(FIRST, np.dtype(bool), ()), *self._rewards, *self.memory]
        return [*self.observed, *(kept if self.memory else [])]

    @property
    def needed(self) -> list[str]:
        """The names of the outputs that acting needs."""
        return [*self.actions, *(NEXT + each.name for each in self.memory)]

    def weights(self) -> dict[str, np.ndarray]:
        """By name."""
        return self._engine.weights()

    def __call__(self, inputs: Mapping[str, Any], weights: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name, of inputs and weights by name; all of one kind of array."""
        return self._computed(inputs, self._engine.layout.bind(weights))

    def act(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same, as the engine computes it."""
        return self._computed(inputs, self._engine.layout.bind(self.weights()) if self._agent else self._engine)

    def _computed(self, inputs: Mapping[str, Any], agent: Any) -> dict[str, Any]:
        """agent: `act` as of agents, or engines."""
        found: dict[str, Any] = {}
        observed = {each.name: inputs[each.name] for each in self.observed}
        for each, kept in zip(self._stacked, self.memory, strict=False):
            # The last `count` frames [N, count, ...]: of an episode that begins, its first one repeated
            newest = ops.expand_dims(observed[each.name], 1)
            begun = ops.concatenate([newest] * self._frames, 1)
            first = ops.reshape(inputs[FIRST], (-1, *(1 for _ in begun.shape[1:])))
            observed[each.name] = ops.where(first, begun, ops.concatenate([inputs[kept.name][:, 1:], newest], 1))
            found[NEXT + kept.name] = observed[each.name]
        tree = tree_of(self.source, iter([observed[each.name] for each in self.observed if each.path is not None]))
        seen = self._conversion.observations.converted(tree, observed.get(MASK))
        if self._remembers:
            state = agent.rewarded(inputs[STATE], inputs[REWARD]) if self._rewards else inputs[STATE]
            state = ops.where(ops.expand_dims(inputs[FIRST], -1), 0.0, state)
            output, found[NEXT + STATE] = agent.act(seen, state)
        elif self._engine.state_size:
            column = ops.zeros_like(ops.cast(observed[self.observed[0].name][:, :1], "float32"))
            output, _ = agent.act(seen, ops.matmul(column, np.zeros((1, self._engine.state_size), np.float32)))
        else:
            output = agent.act_alone(self._agent, seen) if self._agent else agent.act(seen)
        best = best_of(output)
        if self._remembers:
            found[NEXT + STATE] = agent.acted(found[NEXT + STATE], best)
        actions = self._conversion.actions.converted(best)
        return {**parts_of(output), **dict(zip(self.actions, actions, strict=True)), **found}

    def trace(self) -> dict[str, Traced]:
        """The outputs, as steps of a program from the inputs, whose weights are constants by name."""
        inputs = {each.name: Traced(each.zeros(EXAMPLES), each.name, True) for each in self.inputs}
        weights = {name: Traced(value, name) for name, value in self.weights().items()}
        with np.errstate(all="ignore"):  # the examples are zeros
            return self(inputs, weights)

    def examples(self, n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Valid inputs [n, ...], drawn from the observation space; what is remembered is drawn, too."""
        self.source.seed(int(rng.integers(2**31)))
        values = [self.source.sample() for _ in range(n)]
        found = {each.name: np.empty((n, *each.shape), each.dtype) for each in self.observed}
        for each in self.observed:
            if each.path is None or MASK in each.path:
                found[each.name][:] = rng.random((n, *each.shape)) < 0.5
                found[each.name].reshape(n, -1)[:, rng.integers(each.shape[-1])] = 1
            else:
                found[each.name][:] = [at(value, each.path) for value in values]
        if self.memory:
            found[FIRST] = rng.random(n) < 0.2
        for each in (*self._rewards, *self.memory):
            found[each.name] = rng.uniform(-1, 1, (n, *each.shape)).astype(each.dtype)
        for each, frames in zip(self._stacked, self.memory, strict=False):  # which are observations, too
            found[frames.name] = found[each.name][rng.integers(n, size=(n, self._frames))]
        return found


def parts_of(output: Any, name: str = "") -> dict[str, Any]:
    """What an agent's `act` returned, by name."""
    if isinstance(output, MaskedValues):
        return {"values": allowed_only(output)}
    if not isinstance(output, tuple):
        return {name or "values": output}
    each: Any = zip(getattr(output, "_fields", range(len(output))), output, strict=True)
    return {key: x for part, own in each for key, x in parts_of(own, f"{name}.{part}" if name else str(part)).items()}


def _named(what: str, path: tuple[Any, ...]) -> str:
    return ".".join([what, *map(str, path)])


def policies_of(policy: TrainedPolicy, engine: Any = None) -> dict[str, ExportedPolicy]:
    """The policy of a run, by "", or that of each agent whose policy is a network, by its name.

    engine: what acts; None: NumPy. ConfigError where that cannot.
    """
    agent, translation = policy.agent, policy.translation
    try:
        engine = engine or policy.in_numpy()
    except NetworkError as problem:
        raise ConfigError(f"{agent} cannot be exported: {problem} to='safetensors' writes its weights.") from problem
    if isinstance(agent, PolicyAgents):
        driven = {name: own for own in (*agent.learners, *agent.frozen) for name in agent.subsets[own].agents}
        return {name: ExportedPolicy(engine.of[own], name, translation) for name, own in driven.items()}
    return {name: ExportedPolicy(engine, name, translation) for name in translation.conversions}


def exported(run: Any, path: Path, suffix: str = "") -> dict[Path, ExportedPolicy]:
    """The policies of a run, and where each goes: to the path itself, or below it by the agents' names."""
    found = policies_of(run.policy)
    if set(found) == {""}:
        return {path: found[""]}
    return {path.with_suffix("") / (quote(name, safe="") + suffix): own for name, own in found.items()}


def title(run: Any) -> str:
    """What the policy of a run is, in a line."""
    return f"{run.algorithm} on {name_of(run.environment)} after {run.step:,} steps, exported by etude {__version__}."
