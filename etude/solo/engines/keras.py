"""Agents of one's own in Keras: their variables by name, the layers of their networks, and their optimizers, whether
JAX or TensorFlow runs below."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import keras
import numpy as np

from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.base.forks import check_home
from etude.base.spaces import zeros
from etude.networks.dense import Activation, Affine, Flatten, Layer
from etude.protocols import Weights
from etude.solo.engines.engine import AgentInterface, AgentVariables, OptimizerSetting, UserAgentEngine
from etude.solo.engines.user_agent import (
    Bound,
    Compiled,
    MakeCopy,
    PriorityRecorder,
    called,
    each,
    find,
    grouped,
    single,
)

_ACTIVATIONS = {"relu", "tanh", "sigmoid", "elu", "gelu", "silu", "softplus", "softmax", "log_softmax"}
_NOTHING = (keras.layers.InputLayer, keras.layers.Dropout)  # what does nothing when a network is evaluated


def check_backend() -> str:
    """ "jax" or "tensorflow"; ConfigError where Keras runs on anything else."""
    backend = keras.backend.backend()
    if backend in ("jax", "tensorflow"):
        check_home(backend)
        return backend
    raise ConfigError(
        f"Keras runs on {backend} in this process; an agent in Keras needs jax or tensorflow. Set KERAS_BACKEND=jax "
        "before keras is imported, or write the agent in PyTorch with etude.RL_pytorch."
    )


class KerasVariables(AgentVariables):
    """The variables that an agent's attributes hold. replicas: those of a strategy, in whose scope they are made;
    ConfigError for others made elsewhere."""

    kinds = (keras.layers.Layer, keras.Variable, keras.random.SeedGenerator)
    variable = keras.Variable

    def __init__(self, agent: Any, replicas: Any = None):
        super().__init__(agent)
        self._replicas = replicas
        self.check_made(self.by_name.values(), type(agent).__name__)

    @staticmethod
    def value(variable: Any) -> np.ndarray:
        """See `AgentVariables`."""
        return np.array(keras.ops.convert_to_numpy(variable.value))

    @staticmethod
    def trainable(variable: Any) -> bool:
        """See `AgentVariables`."""
        return variable.trainable

    def _held(self, path: str, holder: Any) -> list[tuple[str, Any]]:
        if isinstance(holder, keras.Variable):
            return [(path, holder)]
        if isinstance(holder, keras.random.SeedGenerator):
            return [(f"{path}.state", holder.state)]
        return [(f"{path}.{i}.{variable.name}", variable) for i, variable in enumerate(holder.variables)]

    def _learns(self, holder: Any) -> bool:
        return not isinstance(holder, keras.random.SeedGenerator)

    def scope(self) -> AbstractContextManager[object]:
        """The context in which variables are made."""
        return nullcontext() if self._replicas is None else self._replicas.scope()

    def explained(self) -> AbstractContextManager[object]:
        """Turns the loss of a process that holds variables into a ReplicaError."""
        return nullcontext() if self._replicas is None else self._replicas.explained()

    def check_made(self, variables: Iterable[Any], owner: str) -> None:
        """Raise ConfigError where there is a strategy, and variables were made outside of its scope."""
        if self._replicas is not None:
            self._replicas.check_variables(variables, owner)

    def layers(self) -> list[Any]:
        """The networks."""
        return [holder for holder in self._found.values() if isinstance(holder, keras.layers.Layer)]

    def build(self, call: Callable[[], Any]) -> bool:
        """Run code of the agent once where there are layers that make their variables when they are first called.
        Returns whether variables were added; generators of random numbers stay where they were."""
        if all(layer.built for layer in self.layers()):
            return False
        before = self.read(self.by_name)
        with self.scope():
            call()
        self.write(before)
        self.discover()
        return len(self.by_name) > len(before)

    def write(self, weights: Weights) -> None:
        """Give variables these values."""
        for name, value in weights.items():
            self.by_name[name].assign(value)

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that has dense layers and activations only, in the order it lists them."""
        pending = self.layers()
        chains, seen = [], set()
        while pending:
            network = pending.pop(0)
            if id(network) not in seen:
                seen.add(id(network))
                chains.append(self._chain(network))
                pending += [layer for _, layer in find(network, (keras.Model,)).items()]
        return [tuple(chain) for chain in chains if chain]

    def _chain(self, layer: Any) -> list[Layer] | None:
        if isinstance(layer, keras.Model):
            parts = [self._chain(part) for part in layer.layers]
            return None if None in parts else [one for part in parts for one in part or ()]
        if isinstance(layer, _NOTHING):
            return []
        if isinstance(layer, keras.layers.Flatten):
            return [Flatten()]
        name = _activation(layer)
        if name is None or (isinstance(layer, keras.layers.Dense) and not layer.built):
            return None
        after: list[Layer] = [] if name == "linear" else [Activation(name)]
        if not isinstance(layer, keras.layers.Dense):
            return after
        kernel = self.names_by_id.get(id(layer.kernel))  # None where it is computed from several variables
        bias = None if layer.bias is None else self.names_by_id.get(id(layer.bias))
        return None if kernel is None else [Affine(kernel, bias), *after]


def _activation(layer: Any) -> str | None:
    """The name of a layer's activation; None for other layers, and for functions that NumPy has no name for."""
    if isinstance(layer, keras.layers.Dense | keras.layers.Activation):
        name = getattr(layer.activation, "__name__", None)
        return name if name in _ACTIVATIONS | {"linear"} else None
    kinds = {keras.layers.ReLU: "relu", keras.layers.ELU: "elu", keras.layers.Softmax: "softmax"}
    return kinds.get(type(layer))  # odd settings of theirs show when the chain is compared with the network


def tensors(tree: Any) -> Any:
    """NumPy arrays as those of the framework."""
    return each(lambda x: keras.ops.convert_to_tensor(single(x)), tree)


class KerasAgentEngine(UserAgentEngine):
    """k gradient steps are one compiled call, of JAX or TensorFlow: see the classes derived.

    trained: what the losses train. jit_compile: whether XLA compiles, for TensorFlow. replicas: of a strategy, or None.
    """

    def __init__(
        self, agent: Any, optimizers: Sequence[Any], interface: AgentInterface, jit_compile: bool, replicas: Any = None
    ):
        variables, example = KerasVariables(agent, replicas), zeros(interface.spaces.observation, 2)
        variables.build(lambda: called(agent, "action", tensors(interface.convert(example)), interface.agents))
        super().__init__(variables, grouped(agent, optimizers, keras.Variable), optimizers, interface)
        for optimizer, group in zip(self.optimizers, self.groups, strict=True):
            if not isinstance(optimizer, keras.optimizers.Optimizer):
                raise ConfigError(
                    f"An agent in Keras was given a {type(optimizer).__module__}.{type(optimizer).__name__} to train "
                    "with; expected a keras.optimizers.Optimizer, such as keras.optimizers.Adam()."
                )
            variables.check_made(optimizer.variables, f"The optimizer {optimizer.name!r}")
            if not optimizer.built:
                with variables.scope():
                    optimizer.build(group)
            known = {id(variable) for variable in optimizer._trainable_variables}
            if not {id(variable) for variable in group} <= known:
                raise ConfigError(
                    f"The optimizer {optimizer.name!r} was made for other variables than those in param: it has "
                    "trained another agent. Give each agent an optimizer of its own."
                )
        self.trained: list[Any] = list({id(variable): variable for group in self.groups for variable in group}.values())
        self._scalars: list[tuple[int, str]] = []  # settings of optimizers that were adjusted: scalars of the step
        self._jit, self._replicas, self._prepared = jit_compile, replicas, False
        self.device = self._device_of([*self.trained, *self.others][0])
        self._forget()

    def _forget(self) -> None:
        """Compile anew: variables were added."""
        agent, agents = self.agent, self._interface.agents
        calls = {name: lambda own, x, name=name: called(own, name, x, agents) for name in ("action", "reward_model")}
        self._evaluating = {name: Compiled(agent, partial(self._compile, call)) for name, call in calls.items()}
        self._learning: dict[Any, Compiled] = {}  # by the constants of the optimizers
        self._differentiating = {jit: Compiled(agent, partial(self._compile_gradients, jit)) for jit in (True, False)}

    # -- what the classes derived write --------------------------------------------------------------------------------

    @staticmethod
    def _device_of(variable: Any) -> str:
        """Where a variable is: cpu, cuda:0, ..."""
        raise NotImplementedError

    def _compile(self, call: Callable[[Any, Any], Any], copy: MakeCopy) -> Callable[..., Any]:
        """`call(agent, inputs)`, which is not differentiated."""
        raise NotImplementedError

    def _compile_learn(self, copy: MakeCopy) -> Callable[..., Any]:
        """k gradient steps."""
        raise NotImplementedError

    def _compile_gradients(self, jit: bool, copy: MakeCopy) -> Callable[..., Any]:
        """The gradients at one batch."""
        raise NotImplementedError

    def _evaluated(self, compiled: Compiled, inputs: Any) -> Any:
        """What is compiled returns for arrays [N, ...], in NumPy."""
        raise NotImplementedError

    # -- acting and learning -------------------------------------------------------------------------------------------

    def _evaluate(self, method: str, inputs: Any) -> Any:
        check_home(self.name)
        with self._explained(method):
            return self._evaluated(self._evaluating[method], inputs)

    def _prepare(self, arguments: Any) -> None:
        """Call the loss once where networks that only it uses are not built."""
        check_home(self.name)
        if not self._prepared:
            first = tensors(each(lambda x: x[0], arguments))
            recorder = PriorityRecorder(keras.ops.ones(length(first)))
            if self.variables.build(lambda: Bound(self.agent).copy({}, recorder)(*first)):
                self._forget()
            self._prepared = True

    def _steps(self) -> Compiled:
        """The gradient steps, compiled for what the optimizers' code holds as constants now."""
        constants = tuple(
            (name, None if (i, name) in self._scalars else value)
            for i, optimizer in enumerate(self.optimizers)
            for name, value in sorted(vars(optimizer).items())
            if not name.startswith("_") and isinstance(value, float | int | str | None)
        )
        if constants not in self._learning:
            self._learning = {constants: Compiled(self.agent, self._compile_learn)}
        return self._learning[constants]

    def update_param(self) -> None:
        """Call the agent's method, eagerly."""
        with self.variables.explained():
            self.agent.update_param()

    @property
    def others(self) -> list[Any]:
        """The variables that no loss trains."""
        trained = {id(variable) for variable in self.trained}
        return [variable for variable in self.variables.by_name.values() if id(variable) not in trained]

    def scalars(self) -> np.ndarray:
        """The settings that are arguments of the compiled step: [S] float32."""
        return np.array([vars(self.optimizers[i])[name] for i, name in self._scalars], np.float32)

    @contextmanager
    def tracing(self, scalars: Any) -> Iterator[None]:
        """Optimizers compute with these settings [S] in the place of numbers."""
        before = self.scalars()
        for place, (i, name) in enumerate(self._scalars):
            vars(self.optimizers[i])[name] = scalars[place]
        try:
            yield
        finally:
            for value, (i, name) in zip(before.tolist(), self._scalars, strict=True):
                vars(self.optimizers[i])[name] = value

    def optimizer_settings(self, name: str, of_all: bool = False) -> list[OptimizerSetting]:
        """See `UserAgentEngine`. A learning rate is a variable of its optimizer."""
        found = []
        for i, optimizer in enumerate(self.optimizers):
            attribute = {"beta1": "beta_1", "beta2": "beta_2"}.get(name, name)
            rate = optimizer._learning_rate
            if name == "learning_rate" and isinstance(rate, keras.Variable):
                read = lambda rate=rate: float(KerasVariables.value(rate))  # noqa: E731
                found.append(OptimizerSetting(read, rate.assign))
            elif of_all:
                raise ConfigError(
                    f"The learning rate of the optimizer {optimizer.name!r} follows a schedule, {type(rate).__name__}; "
                    "expected a number, which the ramp replaces. Give it one, such as keras.optimizers.Adam(1e-3)."
                )
            elif name != "learning_rate" and isinstance(vars(optimizer).get(attribute), int | float):
                read = partial(vars(optimizer).__getitem__, attribute)
                found.append(OptimizerSetting(read, partial(self._set_scalar, i, attribute)))
        return found

    def _set_scalar(self, i: int, name: str, value: float) -> None:
        if (i, name) not in self._scalars:
            self._scalars.append((i, name))
        vars(self.optimizers[i])[name] = float(np.float32(value))

    def _own_state(self) -> dict[str, Any]:
        """The variables of each optimizer, by position."""
        value = KerasVariables.value
        return {"optimizers": [{str(i): value(v) for i, v in enumerate(one.variables)} for one in self.optimizers]}

    def _check_own(self, stored: dict[str, Stored]) -> None:
        for optimizer, saved in zip(self.optimizers, stored["optimizers"].items(len(self.optimizers)), strict=True):
            values = saved.fields(str(i) for i in range(len(optimizer.variables)))
            for variable, value in zip(optimizer.variables, values.values(), strict=True):
                own = KerasVariables.value(variable)
                least = 0 if variable.name.endswith("velocity") or own.dtype.kind in "iu" else None  # squares, counts
                value.array(own.dtype, own.shape, least, any_width=True)

    def _restore_own(self, state: dict[str, Any]) -> None:
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            for i, variable in enumerate(optimizer.variables):
                variable.assign(values[str(i)])


def padded(tree: Any, rows: int) -> Any:
    """Arrays [n, ...] as [rows, ...]: the last row is repeated, so that what is computed from it is harmless."""

    def pad(x: np.ndarray) -> np.ndarray:
        return x if len(x) == rows else np.concatenate([x, np.repeat(x[-1:], rows - len(x), 0)])

    return each(lambda x: pad(single(x)), tree)


def length(tree: Any) -> int:
    """The number of rows of the arrays in a tree."""
    sizes: list[int] = []
    each(lambda x: sizes.append(len(x)), tree)
    return sizes[0]
