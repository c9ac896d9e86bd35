"""What `build` of an agent gets as `make`: from specs and spaces to parts with their first values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces as gym_spaces

from etude.base.errors import ConfigError
from etude.base.spaces import Space
from etude.networks.architecture import Architecture, ResidualArchitecture, SphericalArchitecture
from etude.networks.conditional import ConditionalArchitecture, by_embedding
from etude.networks.network import Ensemble, FreeParameters, Network, Normaliser, Part, RecurrentNetwork
from etude.networks.random_shift import RandomShift
from etude.networks.recurrent import sequence_architecture
from etude.networks.specs import (
    ActorCritic,
    ByEmbedding,
    Conv,
    Mlp,
    ModuleFactory,
    Recurrent,
    SimBa,
    SimBaV2,
    Spec,
    Transformer,
    framework_of,
)
from etude.networks.tokens import TokenNetwork


def _joined(space: Space | tuple[Space, ...]) -> Space:
    return gym_spaces.Tuple(space) if isinstance(space, tuple) else space


def made_by(factory: ModuleFactory) -> Any:
    """What a user's class or function returns; ConfigError where it wants arguments."""
    try:
        inspect.signature(factory).bind()
    except TypeError as problem:
        raise ConfigError(
            f"network={getattr(factory, '__name__', factory)} cannot be called without arguments: {problem}. Give a "
            "function that passes them, such as network=lambda: MyNetwork(64)."
        ) from None
    return factory()


WrapModule = Callable[[ModuleFactory, tuple[Space, ...], tuple[int, ...], int], Part]
WrapModel = Callable[[Any, Space, int, int], Any]


def _no_model(spec: Any, space: Space, outputs: int, seed: int) -> Any:
    raise ConfigError(
        f"network is {spec!r:.200}; over tokens this algorithm expects Transformer(), or language.Pretrained() with "
        "engine='torch' and compiled=False."
    )


class Maker:
    """Makes the parts of one agent; handed to `Agent.build` as `make`.

    wrap_module: how the engine wraps a module that a user wrote: (what makes it, the spaces of its inputs, outputs,
        the seed of its first weights).
    wrap_model: how it makes a network over tokens of what is no `Transformer`: (the spec, the space of observations,
        outputs, the seed).
    """

    def __init__(self, rng: np.random.Generator, wrap_module: WrapModule, wrap_model: WrapModel = _no_model):
        self._rng, self._wrap_module, self._wrap_model = rng, wrap_module, wrap_model
        self._normalises = False

    def __call__(
        self,
        spec: Spec | ModuleFactory,
        space: Space | tuple[Space, ...],
        outputs: int,
        members: int | None = None,
        gain: float = 1.0,
    ) -> Part:
        """A network from observations in `space` to [B, outputs] ([members, B, outputs] where members is given).

        spec: a spec, or a function without arguments that returns a torch.nn.Module or keras.Model of your own. Where
            space is a tuple of spaces, a torch.nn.Module gets one argument for each, a keras.Model a list of them.
        gain: factor on the initial weights of a spec's last layer.
        Raises NetworkError where a module of your own returns another shape, ConfigError for a recurrent network.
        """
        if members is not None and not isinstance(spec, Mlp | SimBa):
            return Ensemble([self(spec, space, outputs, gain=gain) for _ in range(members)])
        return self._network(spec, space, outputs, members, gain)

    def features(self, spec: Mlp | Conv, space: Space) -> Network:
        """A network from observations in `space` to its last hidden layer, [B, widths[-1]]."""
        return Network(Architecture(spec, space, None), self._rng)

    def values(self, spec: Spec | ModuleFactory, space: Space, actions: int, numbers: int | None = None) -> Part:
        """A network from observations in `space` to the values of actions, [B, actions], or, where numbers is given, to
        so many numbers of each: [B, actions, numbers]. The spec may be dueling.

        Raises NetworkError where a module of your own returns another shape.
        """
        return self._network(spec, space, (actions,) if numbers is None else (actions, numbers))

    def _network(
        self, spec: Any, inputs: Space | tuple[Space, ...], outputs: int | tuple[int, ...],
        members: int | None = None, gain: float = 1.0,
    ) -> Part:  # fmt: skip
        """See `Architecture` for outputs, members and gain."""
        space, shape = _joined(inputs), outputs if isinstance(outputs, tuple) else (outputs,)
        if isinstance(spec, Mlp | Conv):
            return Network(Architecture(spec, space, outputs, members, gain), self._rng)
        if isinstance(spec, SimBa):
            architecture = SphericalArchitecture if isinstance(spec, SimBaV2) else ResidualArchitecture
            return Network(architecture(spec, space, outputs, members, gain), self._rng)
        if not isinstance(spec, ByEmbedding):
            return self._module(spec, inputs if isinstance(inputs, tuple) else (inputs,), shape)
        if self._normalises:
            raise ConfigError(
                f"network = ByEmbedding(key={spec.key!r}), normalize_observation = True; moments belong to a row "
                "of embeddings, not to the action in it. Give normalize_observation=False, and scale the state in the "
                "environment."
            )
        return Network(by_embedding(spec, space, shape, gain), self._rng)

    def conditional(self, sizes: Sequence[int], spec: Mlp) -> Network:
        """The head of an autoregressive policy over parts with so many choices; see `ConditionalArchitecture`."""
        return Network(ConditionalArchitecture(sizes, spec), self._rng)

    def _module(self, factory: Any, inputs: tuple[Space, ...], outputs: tuple[int, ...]) -> Part:
        if isinstance(factory, Recurrent | Transformer):
            raise ConfigError(
                f"network is a {type(factory).__name__}, whose recurrent state this algorithm does not keep; expected "
                "Mlp(...), Conv(...) or a function that returns a module. Networks with a recurrent state are for "
                "recurrent_ppo and r2d2; a Transformer over tokens for bc and ilql, too."
            )
        if isinstance(factory, ActorCritic):
            raise ConfigError(
                "network is an ActorCritic, and this algorithm has one network; expected a spec such as Mlp((64, 64)), "
                "or a function that returns a module."
            )
        if framework_of(type(factory)) is not None:
            name = type(factory).__name__
            raise ConfigError(
                f"network is an instance of {name}; expected what makes one, as an agent may need several, each with "
                f"weights of its own. Give the class, network={name}, or a function, network=lambda: {name}(...)."
            )
        if not callable(factory):
            raise ConfigError(
                f"network is {factory!r}; expected a spec such as Mlp((64, 64)), or a function that returns a "
                "torch.nn.Module or a keras.Model."
            )
        return self._wrap_module(factory, inputs, outputs, int(self._rng.integers(2**31)))

    def recurrent(
        self, spec: Spec | ModuleFactory, space: Space | tuple[Space, ...], outputs: int, gain: float = 1.0
    ) -> RecurrentNetwork:
        """A recurrent network, from observations in `space` to [B, outputs]; ConfigError for another spec."""
        return RecurrentNetwork(sequence_architecture(spec, _joined(space), outputs, gain), self._rng)

    def tokens(
        self, spec: Spec | ModuleFactory, space: Space, outputs: int, gain: float = 1.0, masks: bool = False
    ) -> TokenNetwork:
        """A `Transformer` or `language.Pretrained` over observations of tokens, with so many outputs after each token;
        ConfigError for another spec, NetworkError for other observations. masks: whether a `Transformer` with `causal`
        = False is taken."""
        if not isinstance(spec, Transformer):
            return self._wrap_model(spec, space, outputs, int(self._rng.integers(2**31)))
        if not (spec.causal or masks):
            raise ConfigError(
                "network is a Transformer with causal = False, which sees the tokens that this algorithm predicts. "
                "Give causal=True; bc learns masked tokens with it."
            )
        return TokenNetwork(spec, space, outputs, self._rng, gain)

    def free(self, values: np.ndarray | float, trained: bool = True) -> FreeParameters:
        """Numbers that depend on nothing; not trained, they change where `Agent.after_phase` says so."""
        return FreeParameters(np.asarray(values), trained)

    def noise(self, shape: tuple[int, ...]) -> FreeParameters:
        """Standard normal numbers, which are not trained: the same at every call."""
        return FreeParameters(self._rng.standard_normal(shape), trained=False)

    def normaliser(self, space: Space, on: bool) -> Normaliser:
        """Normalisation of observations; does nothing where `on` is False."""
        self._normalises = self._normalises or on
        return Normaliser(space, on)

    def random_shift(self, space: Space, pixels: int) -> RandomShift:
        """Random shifts of the images in a batch by up to so many pixels; does nothing where this is 0."""
        return RandomShift(space, pixels)
