"""The engine of an agent of one's own: a class with networks, `action`, `__call__` (the loss) and `update_param`, and
optimizers of Keras or torch. The values of its variables stay in the user's own objects."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.data import INITIAL_VERSION, Batch, PolicyVersion, Update, listed
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.base.spaces import Space, Spaces, storage_dtype, zeros
from etude.base.trees import Tree
from etude.engines.parameter_layout import check_finite
from etude.networks.dense import DenseActor, Layer
from etude.protocols import Weights
from etude.solo.engines.user_agent import each, find, single

_OBSERVATIONS = 64
_BOUND = "clipnorm of Keras's optimizers; in PyTorch optimizer.register_step_pre_hook with clip_grad_norm_"


def random_observations(space: Space, rng: np.random.Generator, n: int) -> Tree:
    """n members of a space, as a tree of arrays [n, ...]; the space's own generator is left alone."""
    space = copy.deepcopy(space)
    space.seed(int(rng.integers(2**31)))
    return trees.stack([_as_tree(space.sample(), zeros(space), space) for _ in range(n)])


def _as_tree(value: Any, like: Tree, space: Space) -> Tree:
    if isinstance(like, np.ndarray):
        return np.asarray(value, like.dtype if like.shape else storage_dtype(space))
    return trees.map(lambda leaf, x: np.asarray(x, leaf.dtype), like, value)


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


class AgentVariables:
    """The variables that an agent's attributes hold, in its own framework. They are the user's own: their values are
    read and written in place.

    kinds: what holds variables, networks first. variable: what a variable is.
    """

    kinds: ClassVar[tuple[type, ...]]
    variable: ClassVar[type]

    def __init__(self, agent: Any):
        self.agent: Any = agent
        self.discover()

    def discover(self) -> None:
        """Find the variables: again where layers have been built since."""
        self._found = find(self.agent, self.kinds)
        self.by_name: dict[str, Any] = {}
        self.names_by_id: dict[int, str] = {}  # names by identity
        for path, holder in self._found.items():
            for name, variable in self._held(path, holder):
                if self.names_by_id.setdefault(id(variable), name) == name:
                    self.by_name[name] = variable

    @property
    def names(self) -> tuple[str, ...]:
        """Of all variables."""
        return tuple(self.by_name)

    @property
    def trained(self) -> tuple[str, ...]:
        """Of those in `param`."""
        parts = ([part] if isinstance(part, self.variable) else part for part in self.agent.param)
        return tuple(dict.fromkeys(self.name_of(variable) for part in parts for variable in part))

    def name_of(self, variable: Any) -> str:
        """The name of a variable."""
        return self.names_by_id[id(variable)]

    def holders(self) -> dict[str, dict[str, bool]]:
        """The variables of each network, and those that are in none, by where the agent holds them: whether they are
        trainable."""
        found = {path: self._held(path, holder) for path, holder in self._found.items() if self._learns(holder)}
        return {path: {self.name_of(v): self.trainable(v) for _, v in held} for path, held in found.items()}

    def read(self, names: Iterable[str]) -> Weights:
        """The values of these variables."""
        with self.explained():
            return {name: self.value(self.by_name[name]) for name in names}

    def load(self, weights: Weights) -> None:
        """Give variables values by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        unknown = sorted(weights.keys() - set(self.names))
        if unknown:
            raise NetworkError(
                f"There is no weight named {unknown[0]!r}; the agent has {', '.join(sorted(self.names))}."
            )
        for name, own in self.read(weights).items():
            if np.shape(weights[name]) != own.shape:
                raise NetworkError(f"Weight {name!r} has shape {np.shape(weights[name])}; the agent's has {own.shape}.")
        self.write(weights)

    def load_trained(self, weights: Weights) -> None:
        """Give the variables in `param` values; raises NetworkError unless these are all of them."""
        missing = sorted(set(self.trained) - weights.keys())
        if missing:
            raise NetworkError(f"The weights lack {missing[0]!r}, which param of {type(self.agent).__name__} holds.")
        self.load(weights)

    def explained(self) -> AbstractContextManager[object]:
        """Tells of what can be lost while variables are read."""
        return nullcontext()

    def write(self, weights: Weights) -> None:
        """Give variables values, unchecked."""
        raise NotImplementedError

    def chains(self) -> list[tuple[Layer, ...]]:
        """The layers of every network that is a chain of dense layers and activations, in the order it lists them."""
        raise NotImplementedError

    @staticmethod
    def value(variable: Any) -> np.ndarray:
        """The value of a variable, in NumPy."""
        raise NotImplementedError

    @staticmethod
    def trainable(variable: Any) -> bool:
        """Whether the user has not frozen it."""
        raise NotImplementedError

    def _held(self, path: str, holder: Any) -> list[tuple[str, Any]]:
        """The variables of what `find` has found at a path, with their names."""
        raise NotImplementedError

    def _learns(self, holder: Any) -> bool:
        """Whether what it holds may be trained."""
        return True


class UserAgentEngine:
    """Evaluates and trains an agent of one's own; see `make_engine`. What differs between frameworks is in the classes
    derived.

    groups: for each optimizer, the variables in its list of `param`; those that are not trainable are left out.
    traces: how often the loss was traced: it does not rise when a float attribute of the agent changes.
    busy: other processes, which are left their cores where the framework can be told: torch can.
    """

    state_size = 0
    name: str
    device: str

    def __init__(
        self,
        variables: AgentVariables,
        groups: Sequence[Sequence[Any]],
        optimizers: Sequence[Any],
        interface: AgentInterface,
    ):
        self.agent: Any = variables.agent
        self.spaces: Spaces = interface.spaces
        self.variables: Any = variables
        self.optimizers: tuple[Any, ...] = tuple(optimizers)
        self.groups: list[list[Any]] = [[one for one in group if variables.trainable(one)] for group in groups]
        self.traces: int = 0
        self.busy: Busy = Busy()
        self._interface = interface
        if not all(self.groups):
            raise ConfigError(
                f"param of {type(self.agent).__name__} holds no trainable variables. Build the networks in __init__ "
                "before their weights are read: begin a keras.Sequential with keras.Input, or call a network once on "
                "an array."
            )

    # -- what the classes derived write --------------------------------------------------------------------------------

    def _evaluate(self, method: str, inputs: Any) -> Any:
        """What `action`, or `reward_model`, returns for trees of [N, ...] arrays, in NumPy."""
        raise NotImplementedError

    def _learn(self, arguments: Any, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
        """k gradient steps: (losses [k, L], td_error [k, B], ratio [k, B])."""
        raise NotImplementedError

    def _gradients(self, row: Any, jit_compile: bool) -> list[list[np.ndarray]]:
        """Those of each optimizer's variables at one batch, (arguments, weight), and the present values of all."""
        raise NotImplementedError

    def _explanation(self, method: str, problem: Exception) -> Exception | None:
        """What to raise in the place of a framework's problem with a method of the agent; None where it is clear."""
        raise NotImplementedError

    def _prepare(self, arguments: Any) -> None:
        """Make variables that networks make at their first call, from the arguments [k, B, ...] of batches."""

    def optimizer_settings(self, name: str, of_all: bool = False) -> list[OptimizerSetting]:
        """`learning_rate`, `weight_decay`, `beta1` or `beta2` of each optimizer that has it as a number. What is
        written is learned with from then on; the loss is traced anew at the first such change alone.

        of_all: of learning rates, raise ConfigError for one that follows a schedule."""
        raise NotImplementedError

    def update_param(self) -> None:
        """Call the agent's `update_param`; what it changes is learned with from then on."""
        raise NotImplementedError

    def _own_state(self) -> dict[str, Any]:
        """What learning goes on from besides the variables: optimizers, generators."""
        raise NotImplementedError

    def _check_own(self, stored: dict[str, Stored]) -> None:
        """Raise CheckpointError where `_restore_own` cannot continue from these fields."""
        raise NotImplementedError

    def _restore_own(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    # -- acting and learning -------------------------------------------------------------------------------------------

    def act(self, observation: Tree) -> Any:
        """What `action` returns for observations [N, ...], in NumPy arrays; with several agents, a tuple. Actions with
        the axes of the environment's are flattened, as all actions are."""
        return trees.map(_flattened, self._evaluate("action", self._interface.convert(observation)))

    def rewards(self, *arguments: Any) -> np.ndarray:
        """What `reward_model` returns for trees of arrays [k, B, ...], in one call with [k * B, ...]: [k, B] float32.
        Nothing is differentiated. Raises ConfigError where it does not return one number for each row."""
        shape = np.shape(arguments[-1])[:2]
        n = shape[0] * shape[1]
        inputs = each(lambda x: x.reshape(n, *x.shape[2:]), arguments)
        found = np.asarray(self._evaluate("reward_model", inputs))
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
        losses, td_error, ratio = self._learn(self._arguments(batches), batches.weight)
        k, count = losses.shape
        names = ["loss"] if count == 1 else [f"loss{i}" for i in range(count)]
        means = losses.astype(np.float64).mean(0).tolist()
        update = Update(dict(zip(names, means, strict=True)), {}, td_error, k, ratio)
        check_finite(update, _BOUND)
        return update

    def gradients(self, batches: Batch, jit_compile: bool = True) -> list[Weights]:
        """What each of k batches alone would train with, by name. Nothing is changed. jit_compile: for TensorFlow."""
        arguments, variables = self._arguments(batches), self.variables
        before = self.weights(set(variables.names) - set(variables.trained))  # running statistics, generators
        found = []
        for i in range(len(batches.weight)):
            row = each(lambda x, i=i: single(x[i]), (arguments, batches.weight))  # type: ignore[misc]
            with self._explained("__call__"):
                groups = self._gradients(row, jit_compile)
            found.append({f"{i}.{j}": one for i, group in enumerate(groups) for j, one in enumerate(group)})
        variables.write(before)
        return found

    def _arguments(self, batches: Batch) -> tuple[Any, ...]:
        """The arguments of the loss, stacked; ConfigError for an engine that cannot learn."""
        arguments = tuple(self._interface.loss_arguments(batches))
        if len(arguments) != 5:
            raise ConfigError(f"loss_arguments returned {len(arguments)} trees; expected (s, a, next_s, r, d).")
        if not self.optimizers:
            raise ConfigError("This engine was made with no optimizer: it acts, and cannot learn.")
        self._prepare(arguments)
        return arguments

    @contextmanager
    def _explained(self, method: str) -> Iterator[None]:
        """Tells what to do where a method of the agent does what the framework cannot."""
        try:
            yield
        except Exception as problem:
            error = self._explanation(method, problem)
            if error is None:
                raise
            raise error from problem

    # -- weights and state ---------------------------------------------------------------------------------------------

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These variables by name, or all that the agent's attributes hold, in NumPy."""
        return self.variables.read(self.variables.names if names is None else names)

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Give variables values by name, the others stay; raises NetworkError where a name or a shape does not fit."""
        self.variables.load(weights)

    def parameters(self) -> Weights:
        """The variables in `param`, by name."""
        return self.weights(self.variables.trained)

    def left_alone(self, before: Weights, calls: int) -> str | None:
        """What to tell of variables outside of `param` that gradient steps and so many calls of `update_param` left as
        they were `before`; None where all follow."""
        name, trained, holders = type(self.agent).__name__, self.parameters(), self.variables.holders()
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
        return (
            f"{listed(lost, 4)} of {name} is never trained: param does not hold it, and update_param does not change "
            "it. Add its variables to param; what is to stay as it is, freeze: requires_grad_(False), or trainable = "
            "False in Keras."
        )

    def state(self) -> dict[str, Any]:
        """Variables, optimizers and generators."""
        return {"framework": self.name, "values": self.weights(), **self._own_state()}

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
        self._check_own(stored)

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""
        self.load(state["values"])
        self._restore_own(state)

    # -- acting without the framework ----------------------------------------------------------------------------------

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
        """The first of the agent's chains of layers that computes what `act` does.

        They are compared on random observations, also after the weights of the chain have been changed: another network
        with the same values (a target network) does not change with them. All weights are put back.
        """
        if self._interface.agents is not None:
            return None
        own, convert, chains = self._own_state(), self._interface.convert, self.variables.chains()
        observation = random_observations(self.spaces.observation, np.random.default_rng(0), _OBSERVATIONS)
        inputs = convert(observation)
        if not chains or not isinstance(inputs, np.ndarray) or inputs.ndim < 2:
            return None
        before, rng = self.weights(), np.random.default_rng(1)
        try:
            for layers in chains:
                actor = DenseActor(layers, before, convert)
                self.load(before)
                if not (actor.names and self._acts_like(actor, observation)):
                    continue
                changed = {
                    name: (value + 0.1 * rng.standard_normal(value.shape)).astype(value.dtype)
                    for name, value in actor.weights().items()
                }
                self.load(changed)
                actor.load(changed)
                if self._acts_like(actor, observation):
                    return DenseActor(layers, before, convert)
        finally:
            self.load(before)
            self._restore_own(own)
        return None

    def _acts_like(self, actor: DenseActor, observation: Tree) -> bool:
        try:
            ours = actor.act(observation)
        except ValueError:  # a network of other inputs
            return False
        theirs = self.act(observation)
        if (
            not isinstance(theirs, np.ndarray)
            or theirs.shape != ours.shape
            or not np.issubdtype(theirs.dtype, np.floating)
        ):
            return False
        return bool(np.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(theirs).max()))))


def _flattened(output: Any) -> Any:
    """[N, ...] with one more axis; with none for whole numbers [N], which are Discrete actions."""
    if not isinstance(output, np.ndarray) or output.ndim == 2 or output.ndim == 1 and output.dtype.kind in "biu":
        return output
    return output.reshape(len(output), -1)
