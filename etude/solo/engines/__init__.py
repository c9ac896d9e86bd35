"""Engines of agents of one's own. The framework is imported when an engine is made, or weights are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces
from etude.base.trees import Tree
from etude.protocols import Weights
from etude.solo.engines.engine import AgentInterface, AgentVariables, UserAgentEngine
from etude.solo.engines.user_agent import find, holds, numbers, take_numbers


def make_engine(
    agent: Any,
    optimizers: Any,
    interface: AgentInterface,
    *,
    seed: int = 0,
    jit_compile: bool = True,
    framework: str = "keras",
    replicas: Any = None,
) -> UserAgentEngine:
    """An engine for an agent of one's own.

    optimizers: one of Keras or torch, or a list with one for each list in `agent.param`; [] for one that only acts.
    seed: of torch's random numbers; in Keras, give SeedGenerators of the agent their own.
    jit_compile: for TensorFlow, whether XLA compiles what it can (JAX always does, torch never).
    framework: "keras" (with TensorFlow or JAX behind it) or "torch".
    replicas: for TensorFlow, those of a strategy (see `engines.strategy_replicas`); None: one.
    """
    given = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
    if framework == "torch":
        from etude.engines.torch import leave_to_home
        from etude.solo.engines.torch import TorchAgentEngine

        leave_to_home()
        return TorchAgentEngine(agent, given, interface, seed)
    if framework != "keras":
        raise ConfigError(f"Unknown framework {framework!r}; expected keras or torch.")
    from etude.solo.engines.keras import check_backend

    kind: Any
    if check_backend() == "jax":
        from etude.solo.engines.jax import JaxAgentEngine as kind
    elif replicas is None:
        from etude.solo.engines.tensorflow import TensorFlowAgentEngine as kind
    elif replicas.scheduled:
        from etude.solo.engines.tensorflow import ScheduledAgentEngine as kind
    else:
        from etude.solo.engines.tensorflow import ReplicatedAgentEngine as kind
    return kind(agent, given, interface, jit_compile, replicas)


def acting_engine(
    agent: Any, spaces: Spaces, convert: Callable[[Tree], Any], agents: int | None = None
) -> UserAgentEngine:
    """An engine that only acts, for an agent whose class names its `framework`."""

    def no_arguments(batch: Batch) -> tuple[Any, ...]:
        raise ConfigError("This engine was made to act and has no optimizer to learn with.")

    return make_engine(agent, [], AgentInterface(spaces, no_arguments, convert, agents), framework=agent.framework)


def check_networks(agent: Any, warn: Callable[[str], None]) -> None:
    """Warn where two attributes of an agent are one network, as of a target that was never a copy; ConfigError for
    networks that other processes are to train, too."""
    name, kind, first = type(agent).__name__, _kind(agent).kinds[0], dict[int, str]()
    for attribute, value in vars(agent).items():
        if isinstance(value, kind) and (other := first.setdefault(id(value), attribute)) != attribute:
            same = f"{other} and {attribute} of {name} are one network"
            warn(f"{same}: update_param changes nothing. Give a target a network of its own.")
            break
    for path, network in find(agent, (kind,)).items() if agent.framework == "torch" else ():
        wrapped = {type(part).__name__ for part in network.modules()} & {"DistributedDataParallel", "DataParallel"}
        if wrapped:
            raise ConfigError(
                f"{path} of {name} is a {wrapped.pop()}, whose gradients this process alone would step with: its "
                "processes would diverge. Give the agent the module itself, and train it in one process."
            )


def without_variables(agent: Any) -> dict[str, Any]:
    """The attributes of an agent that neither are nor hold networks and variables."""
    return {name: value for name, value in vars(agent).items() if not holds(value, _kind(agent).kinds)}


def weights(agent: Any) -> Weights:
    """All variables that an agent's attributes hold, by name, in NumPy. The agent's class says its `framework`."""
    variables = variables_of(agent)
    return variables.read(variables.names)


def load_weights(agent: Any, weights: Weights) -> None:
    """Give an agent's variables values; raises NetworkError where a name or a shape does not fit."""
    variables_of(agent).load(weights)


def parameters(agent: Any) -> Weights:
    """The variables in an agent's `param`, by name, in NumPy."""
    variables = variables_of(agent)
    return variables.read(variables.trained)


def load_parameters(agent: Any, weights: Weights) -> None:
    """Give the variables in `param` values; raises NetworkError unless these are all of them."""
    variables_of(agent).load_trained(weights)


def variables_of(agent: Any) -> AgentVariables:
    """All variables that an agent's attributes hold."""
    return _kind(agent)(agent)


def backend_of(agent: Any) -> str | None:
    """What Keras runs on in this process, for an agent that is written in it; else None."""
    if agent.framework == "torch":
        return None
    import keras

    return keras.backend.backend()


def _kind(agent: Any) -> type[AgentVariables]:
    """The variables of agents of this one's framework."""
    if agent.framework == "torch":
        from etude.solo.engines.torch import TorchVariables

        return TorchVariables
    from etude.solo.engines.keras import KerasVariables

    return KerasVariables


__all__ = [
    "AgentInterface", "UserAgentEngine", "acting_engine", "backend_of", "check_networks",
    "load_parameters", "load_weights", "make_engine", "numbers", "parameters", "take_numbers", "variables_of",
    "weights", "without_variables",
]  # fmt: skip
