"""The hyperparameters of an agent of one's own that may be adjusted: where each is read and written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.replay import Prioritised
from etude.solo.engines import UserAgentEngine
from etude.solo.learner import EpisodeLearner
from etude.solo.policies import EPSILON_GREEDY

KNOBS = {
    "batch": "batch_size",
    "alpha": "priority_exponent",
    "lr": "learning_rate",
    "eps": "epsilon",
    "freq": "target_update_every",
    "tau": "tau",
    "gamma": "gamma",
    "store": "rollout_length",
    "weight_decay": "weight_decay",
    "beta1": "beta1",
    "beta2": "beta2",
    "clip": "clip_range",
    "beta": "importance_exponent",
    "num_updates": "gradient_steps",
}
"""By the name in `NAME_params`, the hyperparameter of runs that it stands for: it moves in the same direction."""

_ATTRIBUTES = ("tau", "gamma", "clip", "beta")
_OPTIMIZER = {"lr": "learning_rate", "weight_decay": "weight_decay", "beta1": "beta1", "beta2": "beta2"}


class Knob(NamedTuple):
    """One number that may be adjusted. name: as events have it. like: see `KNOBS`. whole: whether it is a count."""

    name: str
    like: str
    whole: bool
    read: Callable[[], float]
    write: Callable[[float], None]


@dataclass(frozen=True)
class Knobs:
    """Finds the numbers that an argument such as lr_params adjusts: one of each optimizer, or policy, where there are
    several. replicas: of a strategy, over which batches are divided."""

    agent: Any
    learner: EpisodeLearner
    engine: UserAgentEngine
    replicas: int = 1

    def __call__(self, name: str) -> list[Knob]:
        """ConfigError where this agent has no such hyperparameter, or where nobody has."""
        if name not in KNOBS:
            arguments = ", ".join(f"{each}_params" for each in KNOBS)
            raise ConfigError(f"adjust takes no argument {name}_params; expected some of {arguments}.")
        if name in _OPTIMIZER:
            return self._of_optimizers(name)
        if name in _ATTRIBUTES:
            return [self._attribute(name)]
        if name == "eps":
            return self._epsilons()
        return [self._exponent() if name == "alpha" else self._count(name)]

    def _of_optimizers(self, name: str) -> list[Knob]:
        settings = self.engine.optimizer_settings(_OPTIMIZER[name])
        if not settings:
            raise ConfigError(
                f"{name}_params adjusts {_OPTIMIZER[name]} of the optimizers, and none of this agent's has one that is "
                "a number. Leave it out, or train with an optimizer that has it, such as AdamW."
            )
        return [
            Knob(label, KNOBS[name], False, setting.read, setting.write)
            for label, setting in zip(_numbered(name, len(settings)), settings, strict=True)
        ]

    def _attribute(self, name: str) -> Knob:
        agent = self.agent
        if not isinstance(getattr(agent, name, None), float):
            raise ConfigError(
                f"{name}_params adjusts the attribute {name} of the agent, and {type(agent).__name__} has no float of "
                "this name. Set it in __init__, and read it in __call__."
            )
        return Knob(name, KNOBS[name], False, partial(getattr, agent, name), partial(setattr, agent, name))

    def _epsilons(self) -> list[Knob]:
        greedy = [each for each in self.learner.policies if isinstance(each, EPSILON_GREEDY)]
        if not greedy:
            raise ConfigError(
                "eps_params adjusts eps of the policies, and none of this agent's has one. Give "
                "set(policy=EpsGreedyQPolicy(...)), or leave eps_params out."
            )
        return [
            Knob(label, KNOBS["eps"], False, partial(getattr, policy, "eps"), partial(setattr, policy, "eps"))
            for label, policy in zip(_numbered("eps", len(greedy)), greedy, strict=True)
        ]

    def _exponent(self) -> Knob:
        selector = self.learner.buffer.selector
        if not isinstance(selector, Prioritised):
            raise ConfigError(
                "alpha_params adjusts the exponent of priorities. Give set(..., PR=True), or leave it out."
            )
        return Knob(
            "alpha", KNOBS["alpha"], False, partial(getattr, selector, "alpha"), partial(setattr, selector, "alpha")
        )

    def _count(self, name: str) -> Knob:
        learner, settings = self.learner, self.learner.settings
        own = {"batch": "batch", "store": "num_store", "num_updates": "num_updates"}.get(name)
        if own is None:
            own = "update_steps" if settings.update_steps is not None else "update_batches"
        if learner.count_of(own) is None:
            raise ConfigError(
                f"{name}_params adjusts {own}, and it is None: {_MEANING[own]}. Give set(..., {own}=...), or leave "
                f"{name}_params out."
            )
        return Knob(own, KNOBS[name], True, partial(_as_float, learner, own), partial(learner.set_count, own))


_MEANING = {"num_updates": "one pass over the pool", "update_batches": "update_param is called after every minibatch"}


def _as_float(learner: EpisodeLearner, name: str) -> float:
    value = learner.count_of(name)
    assert value is not None
    return float(value)


def _numbered(name: str, count: int) -> list[str]:
    return [name] if count == 1 else [f"{name}[{i}]" for i in range(count)]
