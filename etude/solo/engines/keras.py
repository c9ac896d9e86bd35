"""Agents of one's own in Keras: their variables by name, the layers of their networks, and their optimizers, whether
JAX or TensorFlow runs below."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol

import keras
import numpy as np

from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.errors import ConfigError
from etude.base.forks import check_home
from etude.networks.dense import Activation, Affine, Flatten, Layer
from etude.protocols import Weights
from etude.solo.engines.engine import OptimizerSetting
from etude.solo.engines.user_agent import Bound, PriorityRecorder, check_trained, each, find, flat, grouped, single

_KINDS = (keras.Variable, keras.layers.Layer, keras.random.SeedGenerator)
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


class KerasVariables:
    """The variables that an agent's attributes hold. They are the user's own: their values are read and written in
    place. replicas: those of a strategy, in whose scope they are made; ConfigError for others made elsewhere."""

    def __init__(self, agent: Any, replicas: Any = None):
        self.agent: Any = agent
        self._replicas = replicas
        self.discover()
        self.check_made(self.by_name.values(), type(agent).__name__)

    def discover(self) -> None:
        """Find the variables: again where layers have been built since."""
        self._found = find(self.agent, _KINDS)
        self._layers = [holder for holder in self._found.values() if isinstance(holder, keras.layers.Layer)]
        self.by_name: dict[str, Any] = {}
        self.names_by_id: dict[int, str] = {}  # names by identity
        for path, holder in self._found.items():
            for name, variable in _variables(path, holder):
                if self.names_by_id.setdefault(id(variable), name) == name:
                    self.by_name[name] = variable

    def holders(self) -> dict[str, dict[str, bool]]:
        """See `engine.AgentVariables`."""
        return {
            path: {self.name_of(variable): variable.trainable for _, variable in _variables(path, holder)}
            for path, holder in self._found.items()
            if not isinstance(holder, keras.random.SeedGenerator)
        }

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

    @property
    def names(self) -> tuple[str, ...]:
        """Of all variables."""
        return tuple(self.by_name)

    @property
    def trained(self) -> tuple[str, ...]:
        """Of those in `param`."""
        return tuple(dict.fromkeys(self.name_of(variable) for variable in flat(self.agent.param, keras.Variable)))

    def name_of(self, variable: Any) -> str:
        """The name of a variable."""
        return self.names_by_id[id(variable)]

    def build(self, call: Callable[[], Any]) -> bool:
        """Run code of the agent once where there are layers that make their variables when they are first called.
        Returns whether variables were added; generators of random numbers stay where they were."""
        if all(layer.built for layer in self._layers):
            return False
        before = self.read(self.by_name)
        with self.scope():
            call()
        self.write(before)
        self.discover()
        return len(self.by_name) > len(before)

    def read(self, names: Iterable[str]) -> Weights:
        """The values of these variables."""
        with self.explained():
            return {name: value_of(self.by_name[name]) for name in names}

    def write(self, weights: Weights) -> None:
        """Give variables these values."""
        for name, value in weights.items():
            self.by_name[name].assign(value)

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that has dense layers and activations only, in the order it lists them."""
        pending = list(self._layers)
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


def _variables(path: str, holder: Any) -> list[tuple[str, Any]]:
    if isinstance(holder, keras.Variable):
        return [(path, holder)]
    if isinstance(holder, keras.random.SeedGenerator):
        return [(f"{path}.state", holder.state)]
    return [(f"{path}.{i}.{variable.name}", variable) for i, variable in enumerate(holder.variables)]


def value_of(variable: Any) -> np.ndarray:
    """The value of a variable of Keras, in NumPy."""
    return np.array(keras.ops.convert_to_numpy(variable.value))


def tensors(tree: Any) -> Any:
    """NumPy arrays as those of the framework."""
    return each(lambda x: keras.ops.convert_to_tensor(single(x)), tree)


class KerasParts:
    """The variables of an agent by what trains them.

    groups: for each optimizer, what it trains. trained: all of these. others: all other variables.
    """

    def __init__(self, variables: KerasVariables, optimizers: Sequence[Any]):
        self.variables: KerasVariables = variables
        self.agent: Any = variables.agent
        self.optimizers: tuple[Any, ...] = tuple(optimizers)
        groups = grouped(self.agent, self.optimizers, keras.Variable) if self.optimizers else []
        self.groups: list[list[Any]] = [[variable for variable in group if variable.trainable] for group in groups]
        check_trained(self.agent, self.groups)
        for optimizer, group in zip(self.optimizers, self.groups, strict=True):
            _build(optimizer, group, variables)
        self.trained: list[Any] = list({id(variable): variable for group in self.groups for variable in group}.values())
        self._scalars: list[tuple[int, str]] = []  # settings of optimizers that were adjusted: scalars of the step

    @property
    def others(self) -> list[Any]:
        """The variables that no loss trains."""
        trained = {id(variable) for variable in self.trained}
        return [variable for variable in self.variables.by_name.values() if id(variable) not in trained]

    def settings(self) -> tuple[Any, ...]:
        """What the optimizers' code holds as constants."""
        return tuple(
            (name, None if (i, name) in self._scalars else value)
            for i, optimizer in enumerate(self.optimizers)
            for name, value in sorted(vars(optimizer).items())
            if not name.startswith("_") and isinstance(value, float | int | str | None)
        )

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

    def optimizer_settings(self, name: str) -> list[OptimizerSetting]:
        """See `engine.UserAgentBackend`. A learning rate is a variable of its optimizer; schedules are left out."""
        found = []
        for i, optimizer in enumerate(self.optimizers):
            attribute = {"beta1": "beta_1", "beta2": "beta_2"}.get(name, name)
            if name == "learning_rate" and isinstance(optimizer._learning_rate, keras.Variable):
                found.append(learning_rate(optimizer))
            elif name != "learning_rate" and isinstance(vars(optimizer).get(attribute), int | float):
                read = functools.partial(vars(optimizer).__getitem__, attribute)
                found.append(OptimizerSetting(read, functools.partial(self._set_scalar, i, attribute)))
        return found

    def _set_scalar(self, i: int, name: str, value: float) -> None:
        if (i, name) not in self._scalars:
            self._scalars.append((i, name))
        vars(self.optimizers[i])[name] = float(np.float32(value))

    def state(self) -> dict[str, Any]:
        """The variables of each optimizer, by position."""
        found = [{str(i): value_of(v) for i, v in enumerate(optimizer.variables)} for optimizer in self.optimizers]
        return {"optimizers": found}

    def check_state(self, stored: dict[str, Stored]) -> None:
        """Raise CheckpointError where these are not the variables of such optimizers."""
        for optimizer, saved in zip(self.optimizers, stored["optimizers"].items(len(self.optimizers)), strict=True):
            values = saved.fields(str(i) for i in range(len(optimizer.variables)))
            for variable, value in zip(optimizer.variables, values.values(), strict=True):
                own = value_of(variable)
                least = 0 if variable.name.endswith("velocity") or own.dtype.kind in "iu" else None  # squares, counts
                value.array(own.dtype, own.shape, least, any_width=True)

    def restore(self, state: dict[str, Any]) -> None:
        """Give the optimizers' variables back their values."""
        for optimizer, values in zip(self.optimizers, state["optimizers"], strict=True):
            for i, variable in enumerate(optimizer.variables):
                variable.assign(values[str(i)])


def learning_rate(optimizer: Any) -> OptimizerSetting:
    """The learning rate of an optimizer, which is a variable: nothing is compiled again when it changes."""
    return OptimizerSetting(lambda: float(value_of(optimizer._learning_rate)), optimizer._learning_rate.assign)


def _build(optimizer: Any, group: list[Any], variables: KerasVariables) -> None:
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigError(
            f"An agent in Keras was given a {type(optimizer).__module__}.{type(optimizer).__name__} to train with; "
            "expected a keras.optimizers.Optimizer, such as keras.optimizers.Adam()."
        )
    variables.check_made(optimizer.variables, f"The optimizer {optimizer.name!r}")
    if not optimizer.built:
        with variables.scope():
            optimizer.build(group)
    known = {id(variable) for variable in optimizer._trainable_variables}
    if not {id(variable) for variable in group} <= known:
        raise ConfigError(
            f"The optimizer {optimizer.name!r} was made for other variables than those in param: it has trained "
            "another agent. Give each agent an optimizer of its own."
        )


class Program(Protocol):
    """What differs between the frameworks below Keras: see `solo.UserAgentBackend` for what it does."""

    name: str
    device: str
    traces: int

    def forget(self) -> None:
        """Compile anew: variables were added."""

    def act(self, observation: Any) -> Any: ...
    def rewards(self, arguments: Any) -> Any: ...
    def learn(self, arguments: Any, weight: np.ndarray) -> Any: ...
    def gradients(self, arguments: Any, weight: np.ndarray, jit_compile: bool) -> list[Weights]: ...


class KerasAgentBackend:
    """See `make_engine.UserAgentBackend`."""

    busy: Busy = Busy()  # not read: XLA settles its threads when a process computes for the first time

    def __init__(self, parts: KerasParts, program: Program):
        self.variables: KerasVariables = parts.variables
        self._parts, self._program = parts, program
        self.trains: bool = bool(parts.optimizers)
        self._prepared = False
        self.name: str = program.name
        self.device: str = program.device
        computing = program.act, program.rewards, program.learn, program.gradients
        self.act, self.rewards, self.learn, self.gradients = (_at_home(self.name, each) for each in computing)
        self.optimizer_settings: Callable[[str], list[OptimizerSetting]] = parts.optimizer_settings
        self.state, self.check_state, self.restore = parts.state, parts.check_state, parts.restore

    @property
    def traces(self) -> int:
        """How often the loss was traced."""
        return self._program.traces

    def update_param(self) -> None:
        """Call the agent's method, eagerly."""
        with self.variables.explained():
            self._parts.agent.update_param()

    def prepare(self, arguments: Any) -> None:
        """Call the loss once where networks that only it uses are not built."""
        if not self._prepared:
            first = tensors(each(lambda x: x[0], arguments))
            recorder = PriorityRecorder(keras.ops.ones(length(first)))
            if self.variables.build(lambda: Bound(self._parts.agent).copy({}, recorder)(*first)):
                self._program.forget()
            self._prepared = True


def _at_home(framework: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes on a framework, and raises ConfigError in forks of the process where that runs."""

    def call(*arguments: Any) -> Any:
        check_home(framework)
        return function(*arguments)

    return call


def padded(tree: Any, rows: int) -> Any:
    """Arrays [n, ...] as [rows, ...]: the last row is repeated, so that what is computed from it is harmless."""

    def pad(x: np.ndarray) -> np.ndarray:
        return x if len(x) == rows else np.concatenate([x, np.repeat(x[-1:], rows - len(x), 0)])

    return each(lambda x: pad(single(x)), tree)


def next_power(n: int) -> int:
    """The smallest power of two that is not below n: few sizes are compiled."""
    return 1 << (n - 1).bit_length()


def length(tree: Any) -> int:
    """The number of rows of the arrays in a tree."""
    sizes: list[int] = []
    each(lambda x: sizes.append(len(x)), tree)
    return sizes[0]
