"""The engine of an agent of one's own: a class with networks, `action`, `__call__` (the loss) and `update_param`, and
optimizers of Keras or torch. The values of its variables stay in the user's own objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.base.spaces import Space, Spaces, storage_dtype, zeros
from etude.base.trees import Tree
from etude.engines.updates import check_finite
from etude.networks.dense import DenseActor, Layer
from etude.protocols import Weights
from etude.solo.engines.user_agent import each

_OBSERVATIONS = 64


class ExportableEngine(Protocol):
    """What is compared."""

    def act(self, observation: Tree) -> Any: ...
    def weights(self) -> Weights: ...
    def load(self, weights: Weights) -> None: ...


def exported(
    engine: ExportableEngine, chains: list[tuple[Layer, ...]], convert: Callable[[Tree], Any], space: Space
) -> Any:
    """The first of the chains of layers that computes what the engine's `act` does, as a `DenseActor`, or None.

    They are compared on random observations, also after the weights of the chain have been changed: another network
    with the same values (a target network) does not change with them. All weights are put back.
    """
    observation = random_observations(space, np.random.default_rng(0), _OBSERVATIONS)
    inputs = convert(observation)
    if not chains or not isinstance(inputs, np.ndarray) or inputs.ndim < 2:
        return None
    before = engine.weights()
    rng = np.random.default_rng(1)
    try:
        for layers in chains:
            actor = DenseActor(layers, before, convert)
            engine.load(before)
            if actor.names and _agree(engine, actor, observation) and _follows(engine, actor, observation, rng):
                return DenseActor(layers, before, convert)
    finally:
        engine.load(before)
    return None


def _follows(engine: ExportableEngine, actor: DenseActor, observation: Tree, rng: np.random.Generator) -> bool:
    changed = {
        name: (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype)
        for name, value in actor.weights().items()
    }
    engine.load(changed)
    actor.load(changed)
    return _agree(engine, actor, observation)


def _agree(engine: ExportableEngine, actor: DenseActor, observation: Tree) -> bool:
    try:
        ours = actor.act(observation)
    except ValueError:  # a network of other inputs
        return False
    theirs = engine.act(observation)
    if not isinstance(theirs, np.ndarray) or theirs.shape != ours.shape or not np.issubdtype(theirs.dtype, np.floating):
        return False
    return bool(np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))))


def random_observations(space: Space, rng: np.random.Generator, n: int) -> Tree:
    """n members of a space, as a tree of arrays [n, ...]; the space's own generator is left alone."""
    space = copy.deepcopy(space)
    space.seed(int(rng.integers(2**31)))
    return trees.stack([_as_tree(space.sample(), zeros(space), space) for _ in range(n)])


def _as_tree(value: Any, like: Tree, space: Space) -> Tree:
    if isinstance(like, np.ndarray):
        return np.asarray(value, like.dtype if like.shape else storage_dtype(space))
    return trees.map(lambda leaf, x: np.asarray(x, leaf.dtype), like, value)


_BOUND = "clipnorm of Keras's optimizers; in PyTorch optimizer.register_step_pre_hook with clip_grad_norm_"


@dataclass(frozen=True)
class AgentInterface:
    """How the methods of an agent are called.

    loss_arguments: from stacked batches to (s, a, next_s, r, d) of `__call__`, trees of arrays [k, B, ...].
    convert: from observations [N, ...] to what `action` gets; picklable where workers act.
    agents: None, or how many agents there are: `action(s[i], i)` is then called for each i, with what i observes.
    update_targets: whether `update_param` is called after every gradient step, as a part of it.
    """

    spaces: Spaces
    loss_arguments: Callable[[Batch], tuple[Any, ...]]
    convert: Callable[[Tree], Any]
    agents: int | None = None
    update_targets: bool = False


class OptimizerSetting(NamedTuple):
    """A number of one optimizer, such as its learning rate."""

    read: Callable[[], float]
    write: Callable[[float], None]


class AgentVariables(Protocol):
    """The variables that an agent's attributes hold, in its own framework."""

    agent: Any

    @property
    def names(self) -> tuple[str, ...]:
        """Of all variables."""

    @property
    def trained(self) -> tuple[str, ...]:
        """Of those in `param`."""

    def read(self, names: Iterable[str]) -> Weights:
        """The values of these variables."""

    def write(self, weights: Weights) -> None:
        """Give variables values."""

    def holders(self) -> dict[str, dict[str, bool]]:
        """The variables of each network, and those that are in none, by where the agent holds them: whether they are
        trainable."""

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that is a chain of dense layers and activations."""


def load(variables: AgentVariables, weights: Weights) -> None:
    """Give variables values by name, the others stay; raises NetworkError where a name or a shape does not fit."""
    unknown = sorted(weights.keys() - set(variables.names))
    if unknown:
        raise NetworkError(
            f"There is no weight named {unknown[0]!r}; the agent has {', '.join(sorted(variables.names))}."
        )
    for name, own in variables.read(weights).items():
        if np.shape(weights[name]) != own.shape:
            raise NetworkError(f"Weight {name!r} has shape {np.shape(weights[name])}; the agent's has {own.shape}.")
    variables.write(weights)


def load_trained(variables: AgentVariables, weights: Weights) -> None:
    """Give the variables in `param` values; raises NetworkError unless these are all of them."""
    missing = sorted(set(variables.trained) - weights.keys())
    if missing:
        raise NetworkError(f"The weights lack {missing[0]!r}, which param of {type(variables.agent).__name__} holds.")
    load(variables, weights)


class UserAgentBackend(Protocol):
    """What differs between frameworks."""

    name: str
    device: str
    trains: bool  # whether there are optimizers
    busy: Busy  # other processes, which are left their cores where the framework can be told

    @property
    def variables(self) -> AgentVariables:
        """The agent's variables."""

    @property
    def traces(self) -> int:
        """How often `__call__` was traced."""

    def act(self, observation: Any) -> Any:
        """What `action` returns for [N, ...] arrays, in NumPy."""

    def rewards(self, arguments: Any) -> np.ndarray:
        """What `reward_model` returns for these arguments, trees of [N, ...] arrays, in NumPy."""

    def prepare(self, arguments: Any) -> None:
        """Make variables that networks make at their first call, from the arguments [B, ...] of one batch."""

    def learn(self, arguments: Any, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """k gradient steps: (losses [k, L], td_error [k, B], ratio [k, B])."""

    def gradients(self, arguments: Any, weight: np.ndarray, jit_compile: bool) -> list[Weights]:
        """Those of each of k batches, by name, at the present values of the variables."""

    def optimizer_settings(self, name: str) -> list[OptimizerSetting]:
        """`learning_rate`, `weight_decay`, `beta1` or `beta2` of each optimizer that has it as a number."""

    def update_param(self) -> None:
        """Call the agent's `update_param`."""

    def state(self) -> dict[str, Any]:
        """What learning goes on from besides the variables: optimizers, generators."""

    def check_state(self, stored: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these fields."""

    def restore(self, state: dict[str, Any]) -> None: ...


class UserAgentEngine:
    """Evaluates and trains an agent of one's own; see `make_engine`."""

    state_size = 0

    def __init__(self, agent: Any, interface: AgentInterface, backend: UserAgentBackend):
        self.agent: Any = agent
        self.spaces: Spaces = interface.spaces
        self._interface, self._backend = interface, backend
        self.name: str = backend.name
        self.device: str = backend.device

    @property
    def traces(self) -> int:
        """How often the loss was traced: it does not rise when a float attribute of the agent changes."""
        return self._backend.traces

    def share(self, busy: Busy) -> None:
        """Leave other processes their cores, where the framework can be told: torch can."""
        self._backend.busy = busy

    def act(self, observation: Tree) -> Any:
        """What `action` returns for observations [N, ...], in NumPy arrays; with several agents, a tuple. Actions with
        the axes of the environment's are flattened, as all actions are."""
        return trees.map(_flattened, self._backend.act(self._interface.convert(observation)))

    def rewards(self, *arguments: Any) -> np.ndarray:
        """What `reward_model` returns for trees of arrays [k, B, ...], in one call with [k * B, ...]: [k, B] float32.
        Nothing is differentiated. Raises ConfigError where it does not return one number for each row."""
        shape = np.shape(arguments[-1])[:2]
        n = shape[0] * shape[1]
        found = np.asarray(self._backend.rewards(each(lambda x: x.reshape(n, *x.shape[2:]), arguments)))
        if found.size != n:
            raise ConfigError(
                f"{type(self.agent).__name__}.reward_model returned shape {found.shape} for {n} steps; expected one "
                f"reward for each, ({n},). Reduce the other axes, as with sum(reward, axis=-1)."
            )
        return found.reshape(shape).astype(np.float32, copy=False)

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """k gradient steps in one call; `batches` has leading axes [k, B]. `hyper` is not read: the agent's own float
        attributes are. Losses are named "loss", or "loss0", "loss1", ... where there are several.

        Raises NumericalError on NaN, ConfigError where losses, optimizers and `param` do not fit together.
        """
        arguments = self._arguments(batches)
        losses, td_error, ratio = self._backend.learn(arguments, batches.weight)
        k, count = losses.shape
        names = ["loss"] if count == 1 else [f"loss{i}" for i in range(count)]
        means = losses.astype(np.float64).mean(0).tolist()
        update = Update(dict(zip(names, means, strict=True)), {}, td_error, k, ratio)
        check_finite(update, _BOUND)
        return update

    def gradients(self, batches: Batch, jit_compile: bool = True) -> list[Weights]:
        """What each of k batches alone would train with, by name. Nothing is changed. jit_compile: for TensorFlow."""
        arguments, variables = self._arguments(batches), self._backend.variables
        before = self.weights(set(variables.names) - set(variables.trained))  # running statistics, generators
        found = self._backend.gradients(arguments, batches.weight, jit_compile)
        variables.write(before)
        return found

    def optimizer_settings(self, name: str) -> list[OptimizerSetting]:
        """`learning_rate`, `weight_decay`, `beta1` or `beta2` of each optimizer that has it as a number. What is
        written is learned with from then on; the loss is traced anew at the first such change alone."""
        return self._backend.optimizer_settings(name)

    def _arguments(self, batches: Batch) -> tuple[Any, ...]:
        """The arguments of the loss, stacked; ConfigError for an engine that cannot learn."""
        arguments = tuple(self._interface.loss_arguments(batches))
        if len(arguments) != 5:
            raise ConfigError(f"loss_arguments returned {len(arguments)} trees; expected (s, a, next_s, r, d).")
        if not self._backend.trains:
            raise ConfigError("This engine was made with no optimizer: it acts, and cannot learn.")
        self._backend.prepare(arguments)
        return arguments

    def update_param(self) -> None:
        """Call the agent's `update_param`; what it changes is learned with from then on."""
        self._backend.update_param()

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These variables by name, or all that the agent's attributes hold, in NumPy."""
        variables = self._backend.variables
        return variables.read(variables.names if names is None else names)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Give variables values by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        load(self._backend.variables, weights)

    def left_alone(self, before: Weights, calls: int) -> str | None:
        """What to tell of variables outside of `param` that gradient steps and so many calls of `update_param` left as
        they were `before`; None where all follow."""
        name, trained, holders = type(self.agent).__name__, self.parameters(), self._backend.variables.holders()
        now = self.weights()
        same = {key for key, value in before.items() if key not in trained and np.array_equal(value, now[key])}
        others = {path: own for path, own in holders.items() if own and trained.keys().isdisjoint(own)}
        if calls and others and all(same.issuperset(own) for own in others.values()):
            return (
                f"update_param of {name} was called {calls} times and changed nothing: {', '.join(others)} did not "
                "follow. Copy weights in it, as with etude.solo.assign_param; without target networks, leave it out."
            )
        lost = []
        for path, own in holders.items():
            alone = [key for key, trainable in own.items() if trainable and key in same]
            lost += [path] if alone and len(alone) == sum(own.values()) else alone
        if not lost:
            return None
        shown = ", ".join(lost[:4]) + f" and {len(lost) - 4} more" * (len(lost) > 4)
        return (
            f"{shown} of {name} is never trained: param does not hold it, and update_param does not change "
            "it. Add its variables to param; what is to stay as it is, freeze: requires_grad_(False), or trainable = "
            "False in Keras."
        )

    def parameters(self) -> Weights:
        """The variables in `param`, by name."""
        return self.weights(self._backend.variables.trained)

    def load_parameters(self, weights: Weights) -> None:
        """Give the variables in `param` values; raises NetworkError unless these are all of them."""
        load_trained(self._backend.variables, weights)

    def state(self) -> dict[str, Any]:
        """Variables, optimizers and generators."""
        return {"framework": self._backend.name, "values": self.weights(), **self._backend.state()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""
        own = self.state()
        framework = saved.fields(("framework",), saved.table())["framework"].text()
        if ("torch" in (framework, self.name)) and framework != self.name:
            raise CheckpointError(
                f"The agent was saved on {framework}; its optimizer cannot go on on {self.name}. Load its weights "
                "only, or go on where it was saved."
            )
        stored = saved.fields(own)
        stored["values"].like(own["values"])
        self._backend.check_state(stored)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.load(state["values"])
        self._backend.restore(state)

    @property
    def exportable(self) -> bool:
        """Whether workers can act without the framework: see `actor`."""
        return self._exported is not None

    def actor(self) -> DenseActor | None:
        """The network that `action` evaluates with its present weights, in NumPy, where it is plain dense layers."""
        if self._exported is None:
            return None
        layers, names = self._exported.layers, self._exported.names
        return DenseActor(layers, self.weights(names), self._interface.convert)

    @cached_property
    def _exported(self) -> DenseActor | None:
        if self._interface.agents is not None:
            return None
        before = self._backend.state()
        found = exported(self, self._backend.variables.chains(), self._interface.convert, self.spaces.observation)
        self._backend.restore(before)
        return found


def _flattened(output: Any) -> Any:
    """[N, ...] with one more axis; with none for whole numbers [N], which are Discrete actions."""
    if not isinstance(output, np.ndarray) or output.ndim == 2 or output.ndim == 1 and output.dtype.kind in "biu":
        return output
    return output.reshape(len(output), -1)
