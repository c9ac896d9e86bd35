"""An agent of one's own, as engines see it: what it is made of, which optimizer trains which variables by which loss,
its hyperparameters, and copies of it whose hyperparameters and priorities are those of one compiled step."""

from __future__ import annotations

import linecache
import math
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import numpy as np

from etude import ops
from etude.base.errors import ConfigError, NetworkError


def grouped(agent: Any, optimizers: Sequence[Any], kind: type) -> list[list[Any]]:
    """`agent.param` as one list of variables for each optimizer; iterators in it become lists that can be read again.

    kind: what a variable is. ConfigError where there are not as many lists as optimizers, or other things in them.
    """
    if not optimizers:
        return []
    if isinstance(agent.param, Iterator):
        agent.param = list(agent.param)
    given = list(agent.param)
    several = bool(given) and not isinstance(given[0], kind) and isinstance(given[0], Iterable)
    if any(isinstance(group, Iterator) for group in given):
        agent.param = given = [list(group) for group in given]
    groups = [list(group) for group in given] if several else [given]
    if len(groups) != len(optimizers):
        raise ConfigError(
            f"train got {len(optimizers)} optimizer{'s' * (len(optimizers) != 1)}; param of {type(agent).__name__} has "
            f"{len(groups)} list{'s' * (len(groups) != 1)} of variables. Give one optimizer for each list in param, "
            "and a list of lists for several."
        )
    if len({id(optimizer) for optimizer in optimizers}) < len(optimizers):
        raise ConfigError("train got the same optimizer twice; each list in param needs one of its own.")
    strange = next((one for group in groups for one in group if not isinstance(one, kind)), None)
    if strange is not None:
        raise ConfigError(
            f"param of {type(agent).__name__} holds a {type(strange).__module__}.{type(strange).__name__}; expected "
            f"{kind.__module__.partition('.')[0]} variables. Derive agents in Keras from etude.RL, agents in PyTorch "
            "from etude.RL_pytorch."
        )
    return groups


def read_losses(agent: Any, found: Any, weight: Any, optimizers: int) -> list[Any]:
    """The scalars that `__call__` returned, a loss per example [B] averaged after the weights [B] are multiplied in.

    ConfigError where a loss has another shape, or there are neither as many as optimizers nor one.
    """
    losses = list(found) if isinstance(found, list | tuple) else [found]
    name, n = type(agent).__name__, weight.shape[0]
    if len(losses) not in (1, optimizers):
        raise ConfigError(
            f"{name}.__call__ returned {len(losses)} losses for {optimizers} optimizers; expected one loss for each "
            "optimizer, or one for all. Return as many losses as train was given optimizers."
        )
    scalars = []
    for loss in losses:
        if isinstance(loss, float | int | np.generic | np.ndarray) or loss is None:
            raise ConfigError(
                f"{name}.__call__ returned {loss!r} as a loss; expected an array computed from the networks, a scalar "
                f"or one value per example, ({n},). Return the loss without turning it into a Python number or a NumPy "
                "array."
            )
        shape = tuple(loss.shape)
        if shape not in ((), (n,)):
            raise ConfigError(
                f"{name}.__call__ returned a loss of shape {shape} for a batch of {n}; expected a scalar or one value "
                f"per example, ({n},). Reduce the other axes, as with mean(loss, axis=-1)."
            )
        scalars.append(ops.mean(loss * weight) if shape else loss)
    return scalars


def no_gradient(agent: Any, variable: str, loss: int, losses: int) -> ConfigError:
    """The error for a trained variable that a loss does not depend on."""
    which = "the loss" if losses == 1 else f"loss {loss}"
    return ConfigError(
        f"{type(agent).__name__}: {which} does not depend on {variable!r}, which param trains with it. Take it out of "
        "param, let the loss use it, or put the losses into the order of the lists in param."
    )


def assign_param(targets: Iterable[Any], sources: Iterable[Any], tau: float = 1.0) -> None:
    """target += tau * (source - target) for corresponding variables of Keras, or tensors of torch.

    tau: 1 copies (Mnih et al. 2015); less lets the targets follow slowly (Lillicrap et al. 2016, arXiv:1509.02971).
    Raises NetworkError where the two are not alike.
    """
    targets, sources = list(targets), list(sources)
    shapes = [[tuple(variable.shape) for variable in variables] for variables in (targets, sources)]
    if shapes[0] != shapes[1]:
        raise NetworkError(f"assign_param got variables of shapes {shapes[0]} for {shapes[1]}; expected the same.")
    torch: Any = sys.modules.get("torch")
    if torch is not None and any(isinstance(target, torch.Tensor) for target in targets):
        with torch.no_grad():
            for target, source in zip(targets, sources, strict=True):
                target.lerp_(source.detach(), tau)
        return
    for target, source in zip(targets, sources, strict=True):
        copies = isinstance(tau, float | int) and tau == 1.0
        target.assign(source if copies else target + tau * (source - target))


_FRAMEWORKS = {"keras", "tensorflow", "jax", "jaxlib", "torch"}
_DEPTH = 6  # of attributes in which networks are looked for
_VERSIONS = 8  # compiled functions that are kept for attributes that change back and forth
_NO_NETWORKS = ("env", "_session_state")  # attributes
_PLAIN = (bool, int, float, str, bytes, type(None), np.generic)


class PriorityRecorder:
    """What `self.prioritized_replay` is inside `__call__`: takes the errors of the batch, and offers its weights.

    weights: [B], the importance weights of the batch.
    """

    def __init__(self, weights: Any):
        self.weights = weights
        self.td_error: Any = None
        self.ratio: Any = None

    def update(self, TD: Any, ratio: Any = None) -> None:
        """Report the error [B] of each example, and how likely its action is now over how likely it was when taken [B].

        What was reported last counts; ConfigError where there is not one number per example.
        """
        self.td_error = self._of_each_example("TD", TD)
        self.ratio = None if ratio is None else self._of_each_example("ratio", ratio)

    def _of_each_example(self, name: str, value: Any) -> Any:
        n = self.weights.shape[0]
        if not isinstance(value, float | int) and np.prod(value.shape, dtype=int) == n:
            return ops.stop_gradient(ops.cast(ops.reshape(value, (n,)), "float32"))
        shape = () if isinstance(value, float | int) else tuple(value.shape)
        raise ConfigError(
            f"prioritized_replay.update got {name} of shape {shape} for a batch of {n}; expected one number per "
            f"example, ({n},). Reduce the other axes, and leave the examples apart."
        )


def each(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` of every array in nested dicts, lists and tuples; None stays. (Users also nest lists.)"""
    if isinstance(tree, dict):
        return {key: each(function, part) for key, part in tree.items()}
    if isinstance(tree, list | tuple):
        parts = [each(function, part) for part in tree]
        return parts if isinstance(tree, list) else tuple(parts)
    return None if tree is None else function(tree)


def single(x: Any) -> np.ndarray:
    """An array, with float64 as float32."""
    x = np.asarray(x)
    return x.astype(np.float32) if x.dtype == np.float64 else x


def find(holder: Any, kinds: tuple[type, ...]) -> dict[str, Any]:
    """The objects of these kinds among an object's attributes, also in lists, tuples, dicts and objects of the user's
    own, by name: `attribute`, `attribute.0`, `attribute.key`. Each is found once; what only `param` holds comes
    last."""
    found: dict[str, Any] = {}
    seen = {id(holder)}
    attributes = {name: value for name, value in _held(holder).items() if name != "param"}
    for name, attribute in (attributes | {"param": getattr(holder, "param", None)}).items():
        found |= dict(_walk(attribute, name, kinds, seen))
    return found


def holds(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is, or holds, an object of these kinds."""
    return next(_walk(value, "", kinds, set()), None) is not None


def _walk(value: Any, path: str, kinds: tuple[type, ...], seen: set[int]) -> Iterator[tuple[str, Any]]:
    if isinstance(value, kinds):
        if id(value) not in seen:
            seen.add(id(value))
            yield path, value
        return
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list | tuple):
        inner = enumerate(value)
    elif path.count(".") < _DEPTH and not _of_a_library(value):
        inner = _held(value).items()
    if inner and id(value) not in seen:
        seen.add(id(value))
        for key, part in list(inner):
            yield from _walk(part, f"{path}.{key}", kinds, seen)


def called(agent: Any, method: str, inputs: Any, agents: int | None) -> Any:
    """What `reward_model` returns, or `action`: for each of several agents, from what it observes, or for the one that
    there is."""
    if method != "action":
        return getattr(agent, method)(*inputs)
    return agent.action(inputs) if agents is None else tuple(agent.action(inputs[i], i) for i in range(agents))


def hyperparameters(agent: Any) -> dict[str, float]:
    """The float attributes of an agent and its classes that do not begin with an underscore."""
    found: dict[str, float] = {}
    for holder in (*reversed(type(agent).__mro__), agent):
        for name, value in vars(holder).items():
            if isinstance(value, float | np.floating) and not name.startswith("_"):
                found[name] = float(value)
            else:
                found.pop(name, None)
    return found


def numbers(holder: Any) -> dict[str, float]:
    """The finite numbers that an object's own attributes hold, those aside that `RL` declares: what was annealed."""
    kinds = [kind for kind in type(holder).__mro__ if kind.__module__.startswith("etude.solo")]
    declared = {name for kind in kinds for name in vars(kind).get("__annotations__", ())}
    return {name: value for name, value in vars(holder).items()
            if type(value) in (int, float) and math.isfinite(value) and name not in declared}  # fmt: skip


def take_numbers(holder: Any, saved: dict[str, float]) -> None:
    """Give an object's attributes the `numbers` that were saved, where it has such."""
    for name, value in saved.items():
        if type(getattr(holder, name, None)) is type(value):
            setattr(holder, name, value)


class Bound:
    """Makes shallow copies of an agent with other attributes, and notes in `read` which attributes its code reads.

    sets: what becomes of attributes that the agent's code sets: "refused", as compiled code sets them once, "kept" by
    the agent, or "forgotten" with the copy.
    """

    def __init__(self, agent: Any, sets: Literal["refused", "kept", "forgotten"] = "refused"):
        self.agent = agent
        self.read: set[str] = set()
        kind: Any = type(agent)
        read = self.read

        def look_up(copy: Any, name: str) -> Any:
            read.add(name)
            return kind.__getattribute__(copy, name)

        def put(copy: Any, name: str, value: Any) -> None:
            if sets == "refused":
                raise ConfigError(
                    f"{kind.__name__} sets self.{name} in code that is compiled: its Python runs once, and what it "
                    "sets is lost. Set it in update_param, which is not compiled with set(..., update_batches=1), or "
                    "in a callback; what every minibatch changes is a keras.Variable."
                )
            kind.__setattr__(copy, name, value)
            if sets == "kept":
                setattr(agent, name, value)

        # A class attribute goes before a property of the same name, and instance attributes before it.
        body = {
            "prioritized_replay": None,
            "__getattribute__": look_up,
            "__setattr__": put,
            "__module__": kind.__module__,
        }
        self._kind: Any = type(kind)(kind.__name__, (kind,), body)

    def copy(self, hyper: dict[str, Any], recorder: PriorityRecorder | None) -> Any:
        """The agent with these hyperparameters, and with the recorder that takes its priorities."""
        copy = object.__new__(self._kind)
        vars(copy).update(vars(self.agent) | hyper | {"prioritized_replay": recorder})
        return copy

    def key(self, hyper: dict[str, float]) -> Any:
        """What a trace of the agent's code holds as constants: compiled functions are good for one key."""
        own, constants = vars(self.agent), {}
        for name in sorted(self.read - hyper.keys() - {"prioritized_replay"}):
            if name in own:
                constants[name] = _fingerprint(own[name], (id(self.agent),))
            else:
                value = getattr(self.agent, name, None)  # a property, or an attribute of the class
                constants[name] = _fingerprint(value) if isinstance(value, (*_PLAIN, np.ndarray)) else None
        return tuple(hyper), tuple(constants.items())


def _fingerprint(value: Any, within: tuple[int, ...] = ()) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if isinstance(value, list | tuple):
        return tuple(_fingerprint(part, within) for part in value)
    if isinstance(value, dict):
        return tuple((key, _fingerprint(part, within)) for key, part in value.items())
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    if id(value) not in within and not _of_a_library(value):
        parts = ((name, _fingerprint(part, (*within, id(value)))) for name, part in _held(value).items())
        return id(value), *parts
    return id(value)


def _of_a_library(value: Any) -> bool:
    """Whether an object is a class, or of a class of Python, or of one that is derived from one of a framework: its
    variables are no constants."""
    kind = type(value)
    if kind.__module__ == "builtins" or isinstance(value, type):
        return True
    return any(base.__module__.partition(".")[0] in _FRAMEWORKS for base in kind.__mro__)


def _held(value: Any) -> dict[str, Any]:
    """The attributes and slots of an object, those aside that hold environments and the training of an agent."""
    state: Any = object.__getstate__(value)
    own, slots = state if isinstance(state, tuple) else (state, None)
    return {name: part for name, part in ((own or {}) | (slots or {})).items() if name not in _NO_NETWORKS}


MakeCopy = Callable[..., Any]  # from the scalars [H] of a trace, and perhaps a recorder, to a copy of the agent


class Compiled:
    """A function of an agent's code that is compiled again only where a constant that its trace read has changed.

    make: returns the compiled function, whose traces read the agent through the copies that it is given.
    """

    def __init__(self, agent: Any, make: Callable[[MakeCopy], Callable[..., Any]]):
        self._bound, self._make = Bound(agent), make
        self._versions: dict[Any, Callable[..., Any]] = {}

    def __call__(self, *arguments: Any) -> Any:
        """Call it with `arguments` and, last, the hyperparameters [H] float32."""
        given = hyperparameters(self._bound.agent)
        names, key = tuple(given), self._bound.key(given)

        def copy(hyper: Any, recorder: PriorityRecorder | None = None) -> Any:
            return self._bound.copy({name: hyper[i] for i, name in enumerate(names)}, recorder)

        if key not in self._versions:
            if len(self._versions) == _VERSIONS:
                del self._versions[next(iter(self._versions))]
            self._versions[key] = self._make(copy)
        function, known = self._versions[key], len(self._bound.read)
        result = function(*arguments, np.array(list(given.values()), np.float32))
        if len(self._bound.read) != known:  # this call traced: keys have more in them from now on
            self._versions = {self._bound.key(given): function}
        return result


def of_numpy(agent: Any, method: str, problem: BaseException, library: str) -> ConfigError | None:
    """The error for a line of the agent that calls NumPy; None where its last one does not."""
    lines = [
        (frame.f_code.co_filename, number)
        for frame, number in traceback.walk_tb(problem.__traceback__)
        if frame.f_globals.get("__name__", "").partition(".")[0] not in _FRAMEWORKS | {"numpy"}
    ]
    file, number = lines[-1]
    line = linecache.getline(file, number).strip()
    called = re.search(r"\b(?:np|numpy)\.(\w+)", line)
    if called is None:
        return None
    return ConfigError(
        f"{type(agent).__name__}.{method} gives to NumPy what the networks computed, which then has no gradient: "
        f"{file}:{number}: {line}. Write {library}.{called[1]}, or what stands for it, in the place of {called[0]}. "
        f"{str(problem).splitlines()[0]}"
    )


def not_traceable(agent: Any, method: str, problem: Exception) -> ConfigError:
    """The error for code that needs numbers where there are only the symbols of a trace."""
    if method != "update_param" and (found := of_numpy(agent, method, problem, "keras.ops")):
        return found
    first = str(problem).splitlines()[0]
    if method == "update_param":
        return ConfigError(
            f"{type(agent).__name__}.update_param is a part of every compiled step where neither update_steps nor "
            "update_batches is set, and reads weights as NumPy arrays, which code that is compiled cannot do. Let it "
            f"use etude.solo.assign_param, or have it called outside, with set(..., update_batches=1). {first}"
        )
    return ConfigError(
        f"{type(agent).__name__}.{method} turned an array into a Python number, bool or NumPy array, which code that "
        "is compiled cannot do. Float attributes (gamma, clip, ...) are arrays there, too: compute with keras.ops, or "
        f"begin the name of one that never changes with an underscore. {first}"
    )
