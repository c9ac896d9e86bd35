"""Networks with values in them: what `make` (`networks.maker`) gives to an agent's `build`.

A part is a function of named arrays. What `build` makes holds their initial values, in NumPy; an engine binds the same
part to arrays of its framework (`Part.bound`), so that nothing here knows which one it is.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from etude import ops
from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.base.trees import Tree
from etude.networks.architecture import Architecture
from etude.networks.conditional import ConditionalArchitecture, EmbeddingArchitecture
from etude.networks.layers import DROPOUT, DROPOUT_OF_UNITS, Record, draw_all
from etude.networks.normaliser import NormalisedPart, normalise, normalised_parts
from etude.networks.recurrent import RecurrentArchitecture
from etude.networks.specs import Conv
from etude.networks.transformer import TransformerArchitecture


class TargetOf(NamedTuple):
    """How a target copy follows its source."""

    source: Part
    tau: str | None  # the config field with the rate of an average, w += rate * (source - w); None: w is copied
    every: str | None  # the config field with the gradient steps between two times that it follows; None: at each


class Part:
    """A component of an agent: a function of observations and of the named arrays in `variables`."""

    variables: Mapping[str, Any]
    frozen: frozenset[str] = frozenset()  # variables that no loss trains
    moved: Mapping[str, Any] = {}  # variables that calling the part changed, such as running statistics of a module
    portable: bool = True  # whether NumPy can compute it quickly enough to act
    in_numpy: bool = True  # whether NumPy can compute it at all
    fixed: int = 0  # how many numbers it computes with that are no variables: those of a pretrained model
    target_of: TargetOf | None = None
    training: bool = False  # whether modules of a user's own are in training mode: dropout, statistics of the batch
    projected: tuple[str, ...] = ()  # weights whose columns are scaled to norm 1 after each gradient step
    noise: Mapping[str, tuple[int, ...]] = {}  # shapes of the variables that hold noise; they are 0 without it
    dropout: int = 0  # how many units may be dropped; see `dropping`

    def __call__(self, observation: Tree = None) -> Any:
        raise NotImplementedError

    def bound(self, variables: Mapping[str, Any], training: bool = False) -> Self:
        """The same function of other arrays."""
        part = copy.copy(self)
        part.variables, part.training = variables, training
        return part

    def evaluated(self) -> Self:
        """The same part, in no training mode: what it normalises, it normalises by running statistics."""
        return self.bound(self.variables)

    def dropping(self, examples: Any, units: Any) -> Self:
        """The same part, which drops units by noise [B] of examples and noise [dropout] of units, standard normal."""
        return self.bound({**self.variables, DROPOUT: examples, DROPOUT_OF_UNITS: units}, self.training)

    def member(self, i: int) -> Part:
        """One of several networks (`members`), with outputs [B, outputs]: the others are not computed."""
        raise NotImplementedError

    @property
    def architectures(self) -> Mapping[str, Any]:
        """The architectures that it consists of, by what the names of their variables begin with; none for modules of a
        user's own and for numbers."""
        return {}

    def recording(self, record: Record) -> Part:
        """The same part, which calls `record(name, inputs)` at every layer of its architectures."""
        return self

    @property
    def noise_size(self) -> int:
        """How many numbers of noise its layers take; 0 where none is noisy."""
        return sum(math.prod(shape) for shape in self.noise.values())

    def perturbed(self, noise: Any) -> Self:
        """The same part with this noise [noise_size], standard normal, in its layers; itself where none is noisy."""
        if not self.noise:
            return self
        drawn, end = {}, 0
        for name, shape in self.noise.items():
            start, end = end, end + math.prod(shape)
            drawn[name] = ops.reshape(noise[start:end], shape)
        return self.bound({**self.variables, **drawn}, self.training)


class _ArchitecturePart(Part):
    """What one architecture computes."""

    architecture: Any

    @property
    def architectures(self) -> Mapping[str, Any]:
        return {"": self.architecture}

    def recording(self, record: Record) -> Part:
        part = copy.copy(self)
        part.architecture = self.architecture.recording(record)
        return part


class Network(_ArchitecturePart):
    """An architecture and its variables."""

    def __init__(
        self, architecture: Architecture | ConditionalArchitecture | EmbeddingArchitecture, rng: np.random.Generator
    ):
        self.architecture: Any = architecture
        self.variables: dict[str, np.ndarray] = draw_all(architecture.parameters, rng)
        self.noise: dict[str, tuple[int, ...]] = architecture.noise
        self.frozen: frozenset[str] = frozenset(architecture.noise)
        self.portable: bool = architecture.portable
        if isinstance(architecture, Architecture):
            self.frozen |= frozenset(architecture.statistics)
            self.dropout: int = architecture.dropout
            self.projected: tuple[str, ...] = architecture.projected

    def __call__(self, observation: Tree = None) -> Any:
        if not (self.training and isinstance(self.architecture, Architecture) and self.architecture.statistics):
            return self.architecture(self.variables, observation)
        moved: dict[str, Any] = {}
        outputs = self.architecture(self.variables, observation, moved)
        self.moved: Any = moved
        self.variables = {**self.variables, **moved}
        return outputs

    def member(self, i: int) -> Part:
        return self.bound({name: self.variables[name][i] for name in self.architecture.parameters})


class NetworkForEach(Part):
    """A network as a function of several sets of variables, each for as many consecutive observations."""

    def __init__(self, network: Network):
        self.architecture: Any = network.architecture
        self.variables: Mapping[str, Any] = network.variables

    def __call__(self, observation: Tree = None) -> Any:
        return self.architecture.for_each(self.variables, observation)


class RecurrentNetwork(_ArchitecturePart):
    """A recurrent architecture, or one of a transformer, and its variables.

    state_size: of the recurrent state of one environment, which is zeros where an episode begins; 0 for others.
    """

    def __init__(self, architecture: RecurrentArchitecture | TransformerArchitecture, rng: np.random.Generator):
        self.architecture: Any = architecture
        self.state_size: int = architecture.state_size
        self.variables: dict[str, np.ndarray] = draw_all(architecture.parameters, rng)
        self.portable: bool = not isinstance(architecture.spec.before, Conv)

    def __call__(self, observation: Tree = None, state: Any = None) -> Any:
        """One step; see `RecurrentArchitecture.step`."""
        return self.architecture.step(self.variables, observation, state)

    def unroll(self, observation: Tree, state: Any, first: Any = None, trained: Any = None) -> tuple[Any, Any]:
        """Sequences; see `RecurrentArchitecture.unroll`. A transformer returns the last state alone, [B, 1, M]."""
        told = () if trained is None else (trained,)
        return self.architecture.unroll(self.variables, observation, state, first, *told)


class Ensemble(Part):
    """Several networks of one kind that one matrix product cannot compute, with outputs [members, B, outputs]."""

    def __init__(self, members: list[Part]):
        self._members = members
        self.variables = {f"{i}.{n}": value for i, part in enumerate(members) for n, value in part.variables.items()}
        self.frozen: frozenset[str] = frozenset(f"{i}.{name}" for i, part in enumerate(members) for name in part.frozen)
        self.noise: Any = {f"{i}.{name}": shape for i, part in enumerate(members) for name, shape in part.noise.items()}
        self.portable: bool = all(part.portable for part in members)
        self.dropout: int = sum(part.dropout for part in members)
        self.projected: tuple[str, ...] = tuple(
            f"{i}.{name}" for i, part in enumerate(members) for name in part.projected
        )

    def __call__(self, observation: Tree = None) -> Any:
        bound = [self.member(i) for i in range(len(self._members))]
        outputs = [part(observation) for part in bound]
        self.moved: Any = {f"{i}.{name}": value for i, part in enumerate(bound) for name, value in part.moved.items()}
        self.variables: dict[str, Any] = {**self.variables, **self.moved}
        return ops.stack(outputs, 0)

    @property
    def architectures(self) -> Mapping[str, Any]:
        found = enumerate(self._members)
        return {f"{i}.{prefix}": own for i, part in found for prefix, own in part.architectures.items()}

    def recording(self, record: Record) -> Part:
        part = copy.copy(self)
        part._members = [
            own.recording(lambda name, x, i=i: record(f"{i}.{name}", x))  # type: ignore[misc]
            for i, own in enumerate(self._members)
        ]
        return part

    def member(self, i: int) -> Part:
        part = self._members[i]
        found = part.bound({name: self.variables[f"{i}.{name}"] for name in part.variables}, self.training)
        if DROPOUT not in self.variables:
            return found
        start = sum(own.dropout for own in self._members[:i])
        return found.dropping(self.variables[DROPOUT], self.variables[DROPOUT_OF_UNITS][start : start + part.dropout])


class FreeParameters(Part):
    """Numbers that depend on nothing, such as the log standard deviations of a policy; called with no argument."""

    def __init__(self, values: np.ndarray, trained: bool = True):
        self.variables: dict[str, Any] = {"value": np.asarray(values, np.float32)}
        self.frozen: frozenset[str] = frozenset() if trained else frozenset(self.variables)

    def __call__(self, observation: Tree = None) -> Any:
        return self.variables["value"]


class Normaliser(Part):
    """Centres and scales observations by moments that the run keeps up to date (`RunningMoments.values`)."""

    def __init__(self, space: Space, on: bool):
        self.parts: list[NormalisedPart] = normalised_parts(space) if on else []
        means = {f"{name}.mean": np.zeros(shape, np.float32) for name, _, shape in self.parts}
        self.variables: Any = means | {f"{name}.scale": np.ones(shape, np.float32) for name, _, shape in self.parts}
        self.frozen: frozenset[str] = frozenset(self.variables)

    def __call__(self, observation: Tree = None) -> Tree:
        return normalise(self.variables, self.parts, observation) if self.parts else observation

    def part(self, path: tuple[str, ...], observation: Tree) -> Tree:
        """The part of the observations under a path, normalised; there are no other parts."""
        n = len(path)
        own = [part._replace(path=part.path[n:]) for part in self.parts if part.path[:n] == path]
        return normalise(self.variables, own, observation)


AnyPart = TypeVar("AnyPart", bound=Part)


def target(part: AnyPart, *, tau: str | None = None, every: str | None = None) -> AnyPart:
    """A target network: a copy of a network that follows it.

    tau: the name of the config field with the rate of an exponential average; None: its values are copied.
    every: the name of the config field with the number of gradient steps from one time that it follows to the next;
        None: at every gradient step. Fields, so that the numbers can change while a run goes on.
    """
    if tau is None and every is None:
        raise ConfigError("target takes tau=, every= or both, each the name of a config field.")
    follower = frozen(part)
    follower.target_of = TargetOf(part, tau, every)
    return follower


def frozen(part: AnyPart) -> AnyPart:
    """A copy of a network that no loss trains."""
    found = part.bound({name: np.copy(value) for name, value in part.variables.items()})
    found.frozen = frozenset(part.variables)
    return found


def parts_of(holder: Any) -> dict[str, Part]:
    """The parts that an object holds, by attribute, or `attribute.key` for a dict of parts."""
    found: dict[str, Part] = {}
    for name, value in vars(holder).items():
        if isinstance(value, Part):
            found[name] = value
        elif isinstance(value, dict):
            found |= {f"{name}.{key}": part for key, part in value.items() if isinstance(part, Part)}
    return found


def put_part(holder: Any, name: str, part: Part | None) -> None:
    """Give an object a part under a name of `parts_of`; a dict that holds it is not changed but replaced."""
    attribute, _, key = name.partition(".")
    setattr(holder, attribute, {**getattr(holder, attribute), key: part} if key else part)
