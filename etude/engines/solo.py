"""Agents that are one object: a class of the user's own with networks, `action`, `__call__` (the loss) and
`update_param`, and optimizers of Keras or torch. The framework is imported when an engine is made, or weights read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from etude.base.data import Batch
from etude.base.errors import ConfigError
from etude.base.spaces import Spaces, zeros
from etude.base.trees import Tree
from etude.engines.solo_engine import Calling, Held, SoloBackend, SoloEngine, load, load_trained
from etude.engines.solo_object import acted
from etude.protocols import Weights


def solo_engine(
    agent: Any,
    optimizers: Any,
    calling: Calling,
    *,
    seed: int = 0,
    jit_compile: bool = True,
    framework: str = "keras",
) -> SoloEngine:
    """An engine for an agent that is one object.

    optimizers: one of Keras or torch, or a list with one for each list in `agent.param`; [] for one that only acts.
    seed: of torch's random numbers; in Keras, give SeedGenerators of the agent their own.
    jit_compile: for TensorFlow, whether XLA compiles what it can (JAX always does, torch never).
    framework: "keras" (with TensorFlow or JAX behind it) or "torch".
    """
    given = list(optimizers) if isinstance(optimizers, Sequence) else [optimizers]
    backend: Any
    if framework == "torch":
        from etude.engines.solo_torch import TorchSolo

        backend = TorchSolo(agent, given, calling, seed)
    elif framework == "keras":
        backend = _keras_backend(agent, given, calling, jit_compile)
    else:
        raise ConfigError(f"Unknown framework {framework!r}; expected keras or torch.")
    return SoloEngine(agent, calling, backend)


def _keras_backend(agent: Any, optimizers: list[Any], calling: Calling, jit_compile: bool) -> SoloBackend:
    from etude.engines.solo_keras import KerasVariables, check_backend, tensors
    from etude.engines.solo_keras_training import KerasParts, KerasSolo

    running = check_backend()
    held, example = KerasVariables(agent), zeros(calling.spaces.observation, 2)
    held.build(lambda: acted(agent, tensors(calling.present(example)), calling.agents))
    parts = KerasParts(held, optimizers)
    program: Any
    if running == "jax":
        from etude.engines.solo_jax import JaxProgram

        program = JaxProgram(parts, calling)
    else:
        from etude.engines.solo_tensorflow import TensorFlowProgram

        program = TensorFlowProgram(parts, calling, jit_compile)
    return KerasSolo(parts, program)


def acting(
    agent: Any, spaces: Spaces, present: Callable[[Tree], Any], agents: int | None = None
) -> Callable[[Tree], Any]:
    """Observations [N, ...] to what `action` returns, in NumPy, for an agent whose class says its `framework`."""

    def arguments(batch: Batch) -> tuple:
        raise ConfigError("This engine was made to act and has no optimizer to learn with.")

    return solo_engine(agent, [], Calling(spaces, arguments, present, agents), framework=agent.framework).act


def weights(agent: Any) -> Weights:
    """All variables that an agent's attributes hold, by name, in NumPy. The agent's class says its `framework`."""
    held = _held(agent)
    return held.read(held.names)


def load_weights(agent: Any, weights: Weights) -> None:
    """Give an agent's variables values; raises NetworkError where a name or a shape does not fit."""
    load(_held(agent), weights)


def parameters(agent: Any) -> Weights:
    """The variables in an agent's `param`, by name, in NumPy."""
    held = _held(agent)
    return held.read(held.trained)


def load_parameters(agent: Any, weights: Weights) -> None:
    """Give the variables in `param` values; raises NetworkError unless these are all of them."""
    load_trained(_held(agent), weights)


def _held(agent: Any) -> Held:
    if agent.framework == "torch":
        from etude.engines.solo_torch_variables import TorchVariables

        return TorchVariables(agent)
    from etude.engines.solo_keras import KerasVariables

    return KerasVariables(agent)


__all__ = [
    "Calling", "SoloEngine", "acting", "load_parameters", "load_weights", "parameters", "solo_engine", "weights",
]  # fmt: skip
