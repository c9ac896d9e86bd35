"""A policy as data, for clients that act for themselves: the steps from one observation to an action of the
environment, exploration included, which a client computes in NumPy.

The steps are traced from what the run's own actor computes, so there is one description of networks, normalisation and
distributions, and none is written for clients. Each program is computed once as a client does before it is given out.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from etude import ops
from etude.base.data import LOG_PROB, RECURRENT_STATE, SAMPLED_ACTION
from etude.base.errors import ConfigError
from etude.base.schedules import at
from etude.base.spaces import ACTION_MASK, Box, Dict, Space, Spaces, choices, clipped_to, leaves, parts, tree_of
from etude.engines.numpy import NumpyEngine
from etude.envs.adapter import SpaceConversion
from etude.envs.observations import is_text
from etude.explore import EpsilonGreedy, GaussianNoise, Greedy, Sample
from etude.explore.policies import best_of
from etude.losses.masks import MaskedValues
from etude.ops.tracing import Traced, steps
from etude.protocols import Explorer
from etude.serving import client

EXAMPLES = 3  # of the arrays that a program is traced with
STATE, UNIFORM, NORMAL, EXPLORE = "state", "uniform", "normal", "explore."


class LocalPolicy:
    """The policy of a run as data. Raises ConfigError for what clients cannot compute.

    description: the program. extras: the shapes of what else is known of an action, such as its log probability.
    """

    def __init__(self, actor: Any, explorer: Explorer, spaces: Spaces, conversion: SpaceConversion):
        if not isinstance(actor, NumpyEngine):
            raise ConfigError("NumPy does not compute this policy, its engine does: convolutions, modules, adapt=.")
        if type(explorer) not in (EpsilonGreedy, GaussianNoise, Greedy, Sample):
            raise ConfigError(
                f"the explorer {type(explorer).__name__} is none of EpsilonGreedy, GaussianNoise, Greedy and Sample."
            )
        if actor.layout.agent.reads_rewards:
            raise ConfigError("the policy acts by the rewards so far, which the server alone adds up.")
        self._observations, self._actions = conversion.observations, conversion.actions
        if any(is_text(leaf) for _, leaf in leaves(self._observations.source)):
            raise ConfigError("observations hold a text.")
        self._actor, self._explorer, self._spaces = actor, explorer, spaces
        inputs = {
            name: Traced(np.zeros((EXAMPLES, *shape), dtype), name, True) for name, dtype, shape in self._inputs()
        }
        weights = {name: Traced(value, name, True) for name, value in self._actor.weights().items()}
        explored = {name: Traced(np.float32(value), name, True) for name, value in self.parameters(0).items()}
        with np.errstate(all="ignore"):  # the examples are zeros
            outputs = self._outputs(inputs, weights, explored)
        prefixed = {name: out.shape[1:] for name, out in outputs.items() if name.startswith("extra.")}
        self.extras: dict[str, Any] = {name.removeprefix("extra."): shape for name, shape in prefixed.items()}
        self._constants: dict[str, np.ndarray] = {}
        self._read: set[str] = set()
        self.description: dict[str, Any] = self._described(outputs)
        given = {name: one.value for name, one in {**inputs, **weights, **explored}.items()}
        try:  # as a client computes it
            with np.errstate(all="ignore"):
                found = client.ClientProgram(self.description)({**given, **self._constants})
        except (ValueError, TypeError, LookupError) as error:
            raise ConfigError(f"the client cannot compute it: {error}.") from error
        for name, out in outputs.items():
            if not np.array_equal(found[name], out.value, equal_nan=out.dtype.kind == "f"):
                raise ConfigError(f"the client computes {name} otherwise.")

    def arrays(self, step: int) -> dict[str, np.ndarray]:
        """What the program reads beside observations and noise, at environment step `step`."""
        explored = {name: np.array(value, np.float32) for name, value in self.parameters(step).items()}
        found = {**self._actor.weights(), **explored, **self._constants}
        return {name: np.ascontiguousarray(found[name]) for name in sorted(self._read)}

    def _inputs(self) -> list[tuple[str, Any, tuple[int, ...]]]:
        """Name, dtype and shape of all but weights and parameters."""
        source, action = self._observations.source, self._spaces.action
        found: list[Any] = [(_named(path), leaf.dtype, tuple(leaf.shape or ())) for path, leaf in leaves(source)]
        if self._observations.reads_infos:
            found.append((ACTION_MASK, np.dtype(bool), (sum(choices(self._actions.source)),)))
        if self._actor.state_size:
            found.append((STATE, np.dtype(np.float32), (self._actor.state_size,)))
        size = math.prod(action.shape or ())
        normal = isinstance(action, Box) and not isinstance(self._explorer, Greedy)
        one_choice = isinstance(self._explorer, EpsilonGreedy)  # whether to explore, and which action
        uniform = 2 if one_choice else 0 if normal and isinstance(self._explorer, Sample) else size
        return [*found, (NORMAL, np.dtype(np.float32), (size * normal,)), (UNIFORM, np.dtype(np.float32), (uniform,))]

    def parameters(self, step: int) -> dict[str, float]:
        """Of the explorer, at this environment step."""
        own = self._explorer
        if isinstance(own, EpsilonGreedy):
            return {EXPLORE + "epsilon": at(own.epsilon, step, own.total)}
        if isinstance(own, GaussianNoise):
            std = at(own.std, step, own.total)
            return {EXPLORE + "std": std, EXPLORE + "random": float(step < own.random_steps)}
        return {}

    def _outputs(self, inputs: Any, weights: Any, explored: Any) -> dict[str, Any]:
        source = self._observations.source
        tree = tree_of(source, iter([inputs[_named(path)] for path, _ in leaves(source)]))
        seen = self._observations.converted(tree, inputs.get(ACTION_MASK))
        agent, found = self._actor.layout.bind(weights), {}
        if self._actor.state_size:
            output, found["next"] = agent.act(seen, inputs[STATE])
            found["extra." + RECURRENT_STATE] = inputs[STATE]
        else:
            output = agent.act(seen)
        action, log_prob = self._explored(output, inputs, explored)
        bounded, bounds = isinstance(self._spaces.action, Box), clipped_to(self._spaces.action)
        if log_prob is not None:
            found["extra." + LOG_PROB] = log_prob
            if bounded:
                found["extra." + SAMPLED_ACTION] = action
        if self._actor.state_size:
            found["next"] = agent.acted(found["next"], action)
        executed = action if bounds is None else ops.clip(action, *bounds)
        each = self._actions.converted(executed)
        return found | {f"action{i}": own for i, own in enumerate(each)}

    def _explored(self, output: Any, inputs: Any, explored: Any) -> tuple[Any, Any]:
        """Actions as the explorer chooses them, and their log probabilities where the run needs them."""
        uniform, own = inputs[UNIFORM], self._explorer
        if isinstance(own, Sample):
            noise = inputs[NORMAL] if isinstance(self._spaces.action, Box) else uniform
            return output.sample_with_log_prob(noise) if own.log_prob else (output.sample(noise), None)
        best = best_of(output)
        if isinstance(own, EpsilonGreedy):
            if isinstance(output, MaskedValues):
                free = ops.cast(output.allowed, "int64")
                rank = ops.cast(uniform[:, 1] * ops.cast(ops.sum(free, 1), "float32"), "int64")
                random = ops.argmax(ops.cast(ops.cumsum(free, 1) > ops.expand_dims(rank, -1), "int64"))
            else:
                random = ops.cast(uniform[:, 1] * np.float32(output.shape[1]), "int64")
            return ops.where(uniform[:, 0] < explored[EXPLORE + "epsilon"], random, best), None
        if isinstance(own, GaussianNoise):
            shape = (-1, *best.shape[1:])
            random = ops.reshape(2.0 * uniform[:, : math.prod(best.shape[1:])] - 1.0, shape)
            near = ops.clip(best + explored[EXPLORE + "std"] * ops.reshape(inputs[NORMAL], shape), -1.0, 1.0)
            return ops.where(explored[EXPLORE + "random"] > 0, random, near), None
        return best, None

    # -- as data -------------------------------------------------------------------------------------------------------

    def _described(self, outputs: dict[str, Any]) -> dict[str, Any]:
        places: dict[Traced, Any] = {}
        program: list[Any] = []
        for step in steps(outputs.values()):
            if step.operation:
                places[step] = len(program)
                program.append([step.operation, *(_plain(part, places) for part in step.arguments)])
                continue
            places[step] = name = step.name or f"constant{len(self._constants)}"
            if not step.name:
                self._constants[name] = step.value
            self._read.add(name)
        inputs = self._inputs()
        self._read -= {name for name, _, _ in inputs}
        observed = [
            {
                "name": _named(path),
                "path": list(path),
                "dtype": np.dtype(leaf.dtype).name,
                "shape": list(leaf.shape or ()),
            }
            for path, leaf in leaves(self._observations.source)
        ]
        sizes = {name: shape for name, _, shape in inputs}
        return {
            "observation": observed,
            "action_mask": sizes.get(ACTION_MASK, (0,))[0],
            "state": sizes.get(STATE, (0,))[0],
            "noise": {UNIFORM: sizes[UNIFORM][0], NORMAL: sizes[NORMAL][0]},
            "program": program,
            "outputs": {name: places[out] for name, out in outputs.items()},
            "observations": _structure(self._observations.source),
            "action": _structure(self._actions.source),
        }


def _named(path: tuple[Any, ...]) -> str:
    return ".".join(["observation", *map(str, path)])


def _structure(space: Space) -> Any:
    """How the leaves of an action make one: null is a leaf."""
    inner = parts(space)
    if not inner:
        return None
    each = {key: _structure(part) for key, part in inner}
    return each if isinstance(space, Dict) else list(each.values())


def _plain(argument: Any, places: dict[Traced, Any]) -> Any:
    """An argument in JSON: {"x": place} is a step or a name, {"slice": [a, b, c]}, {"all": true} an ellipsis."""
    if isinstance(argument, Traced):
        return {"x": places[argument]}
    if isinstance(argument, tuple):
        return [_plain(part, places) for part in argument]
    if isinstance(argument, slice):
        return {"slice": [argument.start, argument.stop, argument.step]}
    if argument is Ellipsis:
        return {"all": True}
    if isinstance(argument, float) and not math.isfinite(argument):
        return {"float": str(argument)}
    return argument
