"""Engines of agents of one's own. The framework is imported when an engine is made, or weights are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, zeros
from etude.base.trees import Tree
from etude.protocols import Weights
from etude.solo.engines.engine import (
    AgentInterface,
    AgentVariables,
    UserAgentBackend,
    UserAgentEngine,
    load,
    load_trained,
)
from etude.solo.engines.user_agent import acted, find, holds, numbers, take_numbers


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
    backend: Any
    if framework == "torch":
        from etude.engines.torch import leave_to_home
        from etude.solo.engines.torch import TorchAgentBackend

        leave_to_home()
        backend = TorchAgentBackend(agent, given, interface, seed)
    elif framework == "keras":
        backend = _keras_backend(agent, given, interface, jit_compile, replicas)
    else:
        raise ConfigError(f"Unknown framework {framework!r}; expected keras or torch.")
    return UserAgentEngine(agent, interface, backend)


def _keras_backend(
    agent: Any, optimizers: list[Any], interface: AgentInterface, jit_compile: bool, replicas: Any
) -> UserAgentBackend:
    from etude.solo.engines.keras import KerasAgentBackend, KerasParts, KerasVariables, check_backend, tensors

    running = check_backend()
    variables = KerasVariables(agent, replicas)
    example = zeros(interface.spaces.observation, 2)
    variables.build(lambda: acted(agent, tensors(interface.convert(example)), interface.agents))
    parts = KerasParts(variables, optimizers)
    program: Any
    if running == "jax":
        from etude.solo.engines.jax import JaxProgram

        program = JaxProgram(parts, interface)
    elif replicas is not None:
        from etude.solo.engines.tensorflow import replicated_program

        program = replicated_program(parts, interface, jit_compile, replicas)
    else:
        from etude.solo.engines.tensorflow import TensorFlowProgram

        program = TensorFlowProgram(parts, interface, jit_compile)
    return KerasAgentBackend(parts, program)


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
    name, (kind, *_), first = type(agent).__name__, _kinds(agent), dict[int, str]()
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
    kinds = _kinds(agent)
    return {name: value for name, value in vars(agent).items() if not holds(value, kinds)}


def _kinds(agent: Any) -> tuple[type, ...]:
    """What holds variables in the framework of an agent, networks first."""
    if agent.framework == "torch":
        import torch

        return torch.nn.Module, torch.Tensor
    import keras

    return keras.layers.Layer, keras.Variable, keras.random.SeedGenerator


def weights(agent: Any) -> Weights:
    """All variables that an agent's attributes hold, by name, in NumPy. The agent's class says its `framework`."""
    variables = _variables(agent)
    return variables.read(variables.names)


def load_weights(agent: Any, weights: Weights) -> None:
    """Give an agent's variables values; raises NetworkError where a name or a shape does not fit."""
    load(_variables(agent), weights)


def parameters(agent: Any) -> Weights:
    """The variables in an agent's `param`, by name, in NumPy."""
    variables = _variables(agent)
    return variables.read(variables.trained)


def load_parameters(agent: Any, weights: Weights) -> None:
    """Give the variables in `param` values; raises NetworkError unless these are all of them."""
    load_trained(_variables(agent), weights)


def _variables(agent: Any) -> AgentVariables:
    if agent.framework == "torch":
        from etude.solo.engines.torch import TorchVariables

        return TorchVariables(agent)
    from etude.solo.engines.keras import KerasVariables

    return KerasVariables(agent)


__all__ = [
    "AgentInterface", "UserAgentEngine", "acting_engine", "check_networks", "load_parameters", "load_weights",
    "make_engine", "numbers", "parameters", "take_numbers", "weights", "without_variables",
]  # fmt: skip
