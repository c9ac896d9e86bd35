"""Optimizers of Keras and torch as a learning-rate finder needs them: their rates, and copies for another process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

from etude.base.errors import ConfigError
from etude.solo.engines.engine import OptimizerSetting


class LearningRates:
    """All learning rates of some optimizers: the first one as it is set, the others in the same ratio to it."""

    def __init__(self, framework: str, optimizers: Sequence[Any]):
        self._rates = [one for optimizer in optimizers for one in _rates_of(framework, optimizer)]
        self.first: float = self._rates[0].read()
        if self.first <= 0:
            raise ConfigError(f"The first learning rate of the optimizers is {self.first}; expected a number above 0.")
        self._ratios = [one.read() / self.first for one in self._rates]

    def set(self, rate: float) -> None:
        """Learn with this rate from the next update on."""
        for one, ratio in zip(self._rates, self._ratios, strict=True):
            one.write(rate * ratio)


def _rates_of(framework: str, optimizer: Any) -> list[OptimizerSetting]:
    if framework == "torch":
        return [_of_group(optimizer, i) for i in range(len(optimizer.param_groups))]
    import keras

    rate = optimizer._learning_rate
    if not isinstance(rate, keras.Variable):
        raise ConfigError(
            f"The learning rate of the optimizer {optimizer.name!r} follows a schedule, {type(rate).__name__}; "
            "expected a number, which the ramp replaces. Give it one, such as keras.optimizers.Adam(1e-3)."
        )
    from etude.solo.engines.keras import learning_rate

    return [learning_rate(optimizer)]


def _of_group(optimizer: Any, i: int) -> OptimizerSetting:
    """That of a group of parameters of torch, whose rate may be a tensor. Loading a state replaces the groups."""

    def write(rate: float) -> None:
        group = optimizer.param_groups[i]
        if isinstance(group["lr"], int | float):
            group["lr"] = rate
        else:
            group["lr"].fill_(rate)

    return OptimizerSetting(lambda: float(optimizer.param_groups[i]["lr"]), write)


def backend_of(agent: Any) -> str | None:
    """What Keras runs on in this process, for an agent that is written in it; else None."""
    if agent.framework == "torch":
        return None
    import keras

    return keras.backend.backend()


class OptimizerCopy(NamedTuple):
    """An optimizer without what it has learned, to be made again for a copy of its agent; travels by cloudpickle.

    settings: of Keras, its config; of torch, its own state, with the names of parameters in the place of these.
    """

    kind: Any
    settings: dict[str, Any]

    @staticmethod
    def of(agent: Any, optimizer: Any) -> OptimizerCopy:
        """ConfigError for what is no optimizer of the agent's framework, and for an optimizer of torch that trains what
        is not the agent's."""
        if agent.framework != "torch":
            return OptimizerCopy(type(optimizer), optimizer.get_config())
        from etude.solo.engines.torch import TorchVariables

        names = TorchVariables(agent).names_by_id
        groups = []
        for group in optimizer.param_groups:
            if not all(id(value) in names for value in group["params"]):
                raise ConfigError(
                    f"The {type(optimizer).__name__} optimizer holds parameters that are none of "
                    f"{type(agent).__name__}'s. Make it with those: torch.optim.Adam(agent.param)."
                )
            groups.append({**group, "params": [names[id(value)] for value in group["params"]]})
        return OptimizerCopy(type(optimizer), {**optimizer.__getstate__(), "state": {}, "param_groups": groups})

    def made_for(self, agent: Any) -> Any:
        """An optimizer of this kind, with these settings, that has learned nothing."""
        if agent.framework != "torch":
            return self.kind.from_config(self.settings)
        from etude.solo.engines.torch import TorchVariables

        variables = TorchVariables(agent).by_name
        groups = [
            {**group, "params": [variables[name] for name in group["params"]]}
            for group in self.settings["param_groups"]
        ]
        made = self.kind.__new__(self.kind)
        made.__setstate__({**self.settings, "state": defaultdict(dict), "param_groups": groups})
        return made
