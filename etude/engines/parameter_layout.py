"""What an engine finds in a built agent: every variable by name, which loss trains which, which copies follow which;
and what its losses report."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.agent import Agent, Loss, Losses
from etude.base import seeding
from etude.base.checks import Stored
from etude.base.data import Batch, Update, listed
from etude.base.errors import CheckpointError, ConfigError, NetworkError, NumericalError
from etude.base.schedules import Linear
from etude.base.spaces import Space, Spaces, describe
from etude.config import TrustRegionConfig
from etude.engines.optimizers import TRUST_REGION_METRICS, clip_by_norm, norm_of
from etude.networks.layers import unit
from etude.networks.maker import Maker
from etude.networks.network import Normaliser, Part, parts_of, put_part
from etude.optimizers import PREFIX, Optimizer, adjustable_settings, with_settings
from etude.protocols import Weights

FLOAT32 = float(np.finfo(np.float32).max)
Arrays = dict[str, Any]  # of an engine's framework, by name


class Following(NamedTuple):
    """A variable of a target network and the online one that it follows."""

    target: str
    source: str
    tau: str | None  # see `networks.TargetOf`
    every: str | None


FILLED = ".filled"  # after the name of a loss: the share of minibatches in which there was something to learn from


class ParameterLayout:
    """A built agent, taken apart by name. Names are `attribute.variable`, or `attribute.key.variable` for a dict of
    parts."""

    def __init__(self, agent: Agent, spaces: Spaces, make: Maker):
        self.agent: Agent = copy.copy(agent)
        self.agent.before_build()
        self.agent.build(make, spaces)
        self.parts: dict[str, Part] = parts_of(self.agent)
        self.initial: Weights = {
            f"{p}.{v}": np.array(value, order="C")
            for p, part in self.parts.items()
            for v, value in part.variables.items()
        }
        self.groups: dict[str, tuple[str, ...]] = {}  # loss name -> the variables that it trains
        for name, part in self.parts.items():
            trained = tuple(f"{name}.{v}" for v in part.variables if v not in part.frozen)
            if trained:
                group = self.agent.trained_by(name)
                self.groups[group] = self.groups.get(group, ()) + trained
        self.trainable: tuple[str, ...] = tuple(name for group in self.groups.values() for name in group)
        config = self.agent.config
        self.transforms: bool = type(self.agent).transform_gradient is not Agent.transform_gradient
        # The names of what the optimizer keeps
        self.moments: tuple[Any, ...] = (*config.optimizer.averages, *config.optimizer.squares)
        self.layers: dict[str, dict[str, tuple[str, ...]]] = self._layers() if config.layer_gradient_norms else {}
        names = {id(part): name for name, part in self.parts.items()}
        self.following: tuple[Following, ...] = tuple(
            Following(
                f"{name}.{v}", f"{names[id(part.target_of.source)]}.{v}", part.target_of.tau, part.target_of.every
            )
            for name, part in self.parts.items()
            if part.target_of is not None
            for v in part.variables
        )
        online = {name: part for name, part in self.parts.items() if part.target_of is None}
        self._projected = tuple(f"{name}.{v}" for name, part in online.items() for v in part.projected)
        # The weights of no target copies that are noise, and those that no loss trains, such as running statistics
        self.noisy: tuple[str, ...] = tuple(f"{name}.{v}" for name, part in online.items() for v in part.noise)
        self.untrained: tuple[str, ...] = tuple(f"{name}.{v}" for name, part in online.items() for v in part.frozen)
        delays = self.agent.trained_every
        if not set(delays) <= set(self.groups) or len(set(delays.values())) > 1:
            raise ConfigError(
                f"{self.agent}.trained_every is {delays}; expected losses among {sorted(self.groups)}, "
                "and one config field for all of them."
            )
        # The losses that are not trained at every gradient step, and the config field that says how often
        self.delayed: frozenset[str] = frozenset(delays)
        self.delay: str | None = next(iter(delays.values()), None)
        regions, kind = self.agent.trust_regions, type(config)
        if not regions <= set(self.groups) or regions and not issubclass(kind, TrustRegionConfig):
            raise ConfigError(
                f"{self.agent}.trust_regions is {sorted(regions)}, its config a {kind.__name__}; "
                f"expected losses among {sorted(self.groups)}, and a config derived from TrustRegionConfig."
            )
        fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
        named = {field for following in self.following for field in (following.tau, following.every) if field}
        named |= set(delays.values())
        if named - fields.keys():
            raise ConfigError(
                f"target and trained_every name the config fields {sorted(named - fields.keys())}, which "
                f"{kind.__name__} lacks."
            )
        ruled = {rule.hyperparameter for rule in config.adapt} & set(adjustable_settings(config.optimizer))
        floats = {name for name, value in fields.items() if isinstance(value, float | Linear)}
        self.hyper: tuple[str, ...] = tuple(sorted(named | floats | ruled))
        self._settings = tuple(name for name in self.hyper if name.startswith(PREFIX))  # of the optimizer
        own = {group: f"{group.rpartition('.')[2]}_learning_rate" for group in self.groups}
        self.rates: dict[str, str] = {  # loss name -> config field
            group: rate if rate in self.hyper else "learning_rate" for group, rate in own.items()
        }
        self.normaliser: str | None = next(
            (n for n, p in self.parts.items() if isinstance(p, Normaliser) and p.parts), None
        )
        self.portable: bool = all(part.portable for part in self.parts.values())
        sizes = {(part.noise_size,) for part in self.parts.values() if part.noise}
        if not sizes <= set(self.agent.batch_noise.values()):
            raise ConfigError(
                f"{self.agent}'s loss draws no noise for layers, and its network has noisy ones. Leave "
                "`noisy` of the network at 0, or use dqn, c51, qr_dqn or rainbow."
            )
        units = {(part.dropout,) for part in self.parts.values() if part.dropout}
        if not units <= set(self.agent.batch_noise.values()):
            raise ConfigError(
                f"{self.agent}'s loss draws no noise for the dropout of this network. Leave `dropout` "
                "at 0, or give it to the critics of sac: network=ActorCritic(Mlp(...), Mlp(..., dropout=0.01))."
            )

    def bind(self, values: Mapping[str, Any], hyper: Mapping[str, Any] | None = None, acting: bool = False) -> Any:
        """The agent as a function of these variables, with these (traced) scalars in its config, for its losses: what
        is no target is then in training mode, unless the agent is to act."""
        agent = copy.copy(self.agent)
        for name, part in self.parts.items():
            training = not (hyper is None or acting) and part.target_of is None
            put_part(agent, name, part.bound({v: values[f"{name}.{v}"] for v in part.variables}, training))
        return self._with_hyper(agent, hyper) if hyper else agent

    def bounded(self, group: str, gradients: Mapping[str, Any], hyper: Any) -> tuple[Any, dict[str, Any]]:
        """The gradient [P] that trains a group, of gradients by name, transformed and clipped; and metrics of it."""
        layers, limit = self.layers.get(group, {}), "max_gradient_norm"
        reported = {metric: norm_of([gradients[name] for name in own]) for metric, own in layers.items()}
        gradient = self.transformed(group, self.vector(gradients, group), hyper)
        if limit in self.hyper:
            gradient, norm = clip_by_norm(gradient, hyper[limit])
            reported[f"{group}_gradient_norm"] = norm
            reported[f"{group}_gradient_clipped"] = ops.cast(norm > hyper[limit], "float32")
        return gradient, reported

    def measured(
        self, values: Mapping[str, Any], batch: Batch, noise: Any, hyper: Any, group: str, vector: Any
    ) -> tuple[Any, Any]:
        """The value of a loss and its `Loss.policy`, where all that it trains is this vector."""
        found = self.bind({**values, **self.split(group, vector)}, hyper).loss(batch, noise)[group]
        return found.value, found.policy

    def transformed(self, group: str, gradient: Any, hyper: Mapping[str, Any]) -> Any:
        """What the agent makes of the gradient [P] of a loss."""
        if not self.transforms:
            return gradient
        found = self._with_hyper(copy.copy(self.agent), hyper).transform_gradient(group, gradient)
        shape = getattr(found, "shape", None)
        if shape != gradient.shape:
            what = type(found).__name__ if shape is None else f"shape {list(shape)}"
            raise ConfigError(
                f"{self.agent}.transform_gradient returned {what} for the gradient of {group!r}; "
                f"expected a vector of its shape, {list(gradient.shape)}."
            )
        return found

    def config(self, hyper: Mapping[str, Any]) -> Any:
        """The config with these (traced) scalars."""
        return self._with_hyper(copy.copy(self.agent), hyper).config

    @staticmethod
    def _with_hyper(agent: Agent, hyper: Mapping[str, Any]) -> Agent:
        """An agent of the caller's own, with these (traced) scalars in its config."""
        # A shallow copy instead of dataclasses.replace: the config's own checks are for numbers, not for tracers.
        agent.config = copy.copy(agent.config)
        for field, value in hyper.items():
            if not field.startswith(PREFIX):
                object.__setattr__(agent.config, field, value)
        return agent

    def optimizer(self, hyper: Mapping[str, Any]) -> Optimizer:
        """The optimizer, with the settings of it that are among these (traced) scalars."""
        return with_settings(self.agent.config.optimizer, {name: hyper[name] for name in self._settings})

    def on_sphere(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The variables whose columns a gradient step scales to norm 1, scaled, by name."""
        return {name: unit(values[name], -2) for name in self._projected}

    def size(self, group: str) -> int:
        """How many numbers a loss trains."""
        return sum(self.initial[name].size for name in self.groups[group])

    def vector(self, arrays: Mapping[str, Any], group: str) -> Any:
        """Those of these arrays that a loss trains, as one vector [P]."""
        return ops.concatenate([ops.reshape(arrays[name], (-1,)) for name in self.groups[group]])

    def split(self, group: str, flat: Any) -> dict[str, Any]:
        """A vector with one number for each that a loss trains, as arrays by name."""
        parts, start = {}, 0
        for name in self.groups[group]:
            own = self.initial[name]
            parts[name] = ops.reshape(flat[start : start + own.size], own.shape)
            start += own.size
        return parts

    def parted(self, vectors: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays by name, from the vectors of all losses."""
        return {name: array for group, flat in vectors.items() for name, array in self.split(group, flat).items()}

    def joined(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The inverse of `parted`."""
        return {group: self.as_vector(arrays, group) for group in self.groups}

    def as_vector(self, weights: Mapping[str, np.ndarray], group: str | None = None) -> np.ndarray:
        """Those of these weights that a loss trains, or all losses, one after the other: [P]."""
        names = self.trainable if group is None else self.groups[group]
        return np.concatenate([np.reshape(weights[name], -1) for name in names])

    def from_vector(self, vectors: np.ndarray) -> dict[str, np.ndarray]:
        """Trained weights by name, [..., *shape], from vectors [..., P]."""
        ends = np.cumsum([self.initial[name].size for name in self.trainable])
        parts = np.split(vectors, ends[:-1], axis=-1)
        return {
            name: part.reshape(*vectors.shape[:-1], *self.initial[name].shape)
            for name, part in zip(self.trainable, parts, strict=True)
        }

    def metrics_of(self, losses: Losses, groups: Iterable[str]) -> set[str]:
        """The names of the metrics of these losses, those of their gradients included."""
        own = {group: (*losses[group].metrics, *self.gradient_metrics(group), f"{group}{FILLED}") for group in groups}
        return {name for names in own.values() for name in names}

    def told_by(self, losses: Losses) -> dict[str, set[str]]:
        """What is reported of each loss that says where there is something to learn from, by the name of the latter."""
        saying = [group for group, loss in losses.items() if loss.filled is not None]
        return {f"{group}{FILLED}": {group, *self.metrics_of(losses, (group,))} for group in saying}

    def gradient_metrics(self, group: str) -> tuple[str, ...]:
        """The names of the metrics of a loss's gradient."""
        bound = ("norm", "clipped") if "max_gradient_norm" in self.hyper else ()
        within = TRUST_REGION_METRICS if group in self.agent.trust_regions else ()
        named = (*(f"gradient_{what}" for what in bound), *within)
        return (*(f"{group}_{what}" for what in named), *self.layers.get(group, ()))

    def check_losses(self, losses: Losses) -> None:
        """Raise ConfigError where these are no losses, or they and the trained parts do not go by the same names."""
        wrong = [losses] if not isinstance(losses, dict) else [x for x in losses.values() if not isinstance(x, Loss)]
        if wrong:
            raise ConfigError(
                f"{self.agent}.loss returned a {type(wrong[0]).__name__} where a "
                f"{'Loss' if isinstance(losses, dict) else 'Losses'} is expected. Return "
                f"Losses({', '.join(f'{name}=Loss(value)' for name in sorted(self.groups))})."
            )
        if set(losses) != set(self.groups) and (self.groups or not losses):  # without any, losses only report
            raise ConfigError(
                f"{self.agent}.loss returned losses named {sorted(losses)}; its trained parts are named "
                f"{sorted(self.groups)}. Each loss trains the part of its name: give both the same names."
            )
        for name, loss in losses.items():
            if name in self.agent.trust_regions and loss.policy is None:
                raise ConfigError(
                    f"{self.agent}.loss returned {name!r} without a policy to bound; return "
                    "Loss(value, policy=(distribution, batch.weight))."
                )
            if shape := tuple(getattr(loss.value, "shape", ())):
                raise ConfigError(
                    f"{self.agent}.loss returned {name!r} with shape {list(shape)}; expected a scalar, "
                    "such as ops.mean(...) of it."
                )

    def check_weights(self, weights: Weights) -> None:
        """Raise NetworkError where a weight's name or shape does not fit."""
        for name, value in weights.items():
            own = self.initial.get(name)
            if own is None:
                raise NetworkError(
                    f"There is no weight named {name!r}; the agent has {', '.join(sorted(self.initial))}."
                )
            if np.shape(value) != own.shape:
                raise NetworkError(f"Weight {name!r} has shape {np.shape(value)}; the agent's has {own.shape}.")

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where this is not the state of an engine of this agent."""
        optimizer = self.agent.config.optimizer
        tables = {name for name, part in saved.table().items() if isinstance(part.value, dict)} - set(self.moments)
        if "values" in tables and len(tables) > 2:  # beside weights and generator: what another optimizer keeps
            raise CheckpointError(
                f"The run was saved with another optimizer ({saved.place}) than {type(optimizer).__name__}. "
                "A loaded run keeps its optimizer: leave `optimizer` as it was, or give a new run its weights: "
                "start_from=."
            )
        held = saved.fields(("values", *self.moments, "step", "noise"), ("delayed",) if self.delay else ())
        trained = {name: self.initial[name] for name in self.trainable}
        self._check_networks(held["values"])
        held["values"].like(self.initial)
        for average in optimizer.averages:
            held[average].like(trained)
        for square in optimizer.squares:  # as large as float32 is
            for name, moment in held[square].fields(trained).items():
                moment.array(trained[name].dtype, trained[name].shape, 0, FLOAT32, any_width=True)
        for counter in ("step", *(("delayed",) if "delayed" in held else ())):
            held[counter].whole(0, 2**30)
        seeding.check_generator(held["noise"])

    def _check_networks(self, saved: Stored) -> None:
        """Raise CheckpointError where these are weights of other networks, which lists how they differ."""
        shapes = {name: getattr(part.value, "shape", None) for name, part in saved.table().items()}
        fitting = [name for name, own in self.initial.items() if shapes.get(name) == own.shape]
        other = [f"{saved.place}/{name} is {shapes[name]}, here {own.shape}" for name, own in self.initial.items()
                 if shapes.get(name) not in (None, own.shape)]  # fmt: skip
        new, gone = [n for n in self.initial if n not in shapes], [n for n in shapes if n not in self.initial]
        if not (other or new or gone):
            return
        raise CheckpointError(
            f"The networks differ from those of the checkpoint ({saved.place}). Weights that fit: {some_of(fitting)}. "
            f"Of another shape: {some_of(other)}. New: {some_of(new)}. Gone: {some_of(gone)}. A loaded run keeps its "
            "networks: leave `network` as it was, or give a new run the weights that fit: start_from=, which takes a "
            "dict of arrays, too."
        )

    def as_own(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Arrays by the names of variables, in the dtypes of these."""
        return {name: np.asarray(array, self.initial[name].dtype) for name, array in arrays.items()}

    def check_gradients(self, gradients: Weights) -> None:
        """Raise NetworkError where these are not gradients of all trained weights, NumericalError where one is NaN."""
        if set(gradients) != set(self.trainable):
            raise NetworkError(
                f"Gradients of {sorted(gradients)}; expected one of each trained weight: {sorted(self.trainable)}."
            )
        self.check_weights(gradients)
        bad = [name for name, gradient in gradients.items() if not np.isfinite(gradient).all()]
        if bad:
            raise NumericalError(f"The gradient of {', '.join(bad)} is not finite. Lower the learning rate.")

    def draw_noise(self, rng: np.random.Generator, k: int, n: int) -> dict[str, np.ndarray]:
        """The standard normal arrays [k, n, ...], or [k, ...] for whole batches, that the losses of k batches of n
        need."""
        shapes = {name: (k, n, *shape) for name, shape in self.agent.noise.items()}
        shapes |= {name: (k, *shape) for name, shape in self.agent.batch_noise.items()}
        return {name: rng.standard_normal(shape, np.float32) for name, shape in sorted(shapes.items())}

    def draw_layer_noise(self, rng: np.random.Generator) -> Weights:
        """Standard normal numbers for the weights that are noise, by name: what is explored with."""
        return {name: rng.standard_normal(self.initial[name].shape, np.float32) for name in self.noisy}

    def _layers(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By loss and by the metric of a layer, its trained variables: those of `q.dense0_gradient_norm` are
        `q.dense0.weight` and `q.dense0.bias`."""
        found: dict[str, dict[str, tuple[str, ...]]] = {group: {} for group in self.groups}
        for group, names in self.groups.items():
            for name in names:
                metric = f"{name.rpartition('.')[0]}_gradient_norm"
                found[group][metric] = (*found[group].get(metric, ()), name)
        return found

    def times_due(self, done: int, k: int, hyper: Mapping[str, float]) -> int:
        """At how many of k gradient steps after the first `done` the delayed losses are trained."""
        every = 1 if self.delay is None else int(hyper[self.delay])
        return (done + k) // every - done // every

    def times_delayed(self, state: Mapping[str, Any]) -> int:
        """How often the delayed losses were trained in an engine of this state; early ones tell it by the present
        setting of what says how often."""
        counted = self.times_due(0, int(state["step"]), vars(self.agent.config))
        return int(state.get("delayed", counted))


# The fields of a batch that cross to the framework; `index` stays behind, for the replay's priorities.
READ_BY_LOSSES = ("observation", "action", "reward", "discount", "next_observation", "weight", "extras")


def read_losses(losses: Losses) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """(scalars by loss name, metrics by name, the first td_error or None)."""
    scalars = {name: loss.value for name, loss in losses.items()}
    metrics = {}
    for loss, found in losses.items():
        for name, value in found.metrics.items():
            mean = ops.mean(value) if len(getattr(value, "shape", ())) else value
            metrics[name] = mean if found.filled is None else mean * found.filled
        if found.filled is not None:
            metrics[f"{loss}{FILLED}"] = found.filled
    td_error = next((loss.td_error for loss in losses.values() if loss.td_error is not None), None)
    return scalars, metrics, td_error


def update_of(
    losses: Collection[str], numbers: dict[str, float], told: Mapping[str, set[str]], td_error: Any, steps: int
) -> Update:
    """An update that reports these numbers. losses: those of them that are losses. told: see `ParameterLayout.told_by`;
    of means over all minibatches these become means over those in which there was something to learn from, if any."""
    for filled, names in told.items():
        share = numbers.pop(filled, 1.0)
        for name in names & numbers.keys() if share < 1.0 else ():
            mean = numbers.pop(name)
            if share > 0.0:
                numbers[name] = mean / share
    metrics = {name: value for name, value in numbers.items() if name not in losses}
    return Update({name: numbers[name] for name in losses if name in numbers}, metrics, td_error, steps)


def check_finite(update: Update, bound: str = "set max_gradient_norm") -> None:
    """Raise NumericalError where a loss is NaN or infinite. bound: how gradients are given a bound."""
    bad = {name: value for name, value in update.losses.items() if not math.isfinite(value)}
    if bad:
        raise NumericalError(
            f"The loss became {', '.join(f'{name} = {value}' for name, value in bad.items())}. Usual causes: a "
            "learning rate that is too large, rewards of very different size (normalise them), or gradients without a "
            f"bound ({bound}). Go on from the last checkpoint with a smaller learning rate."
        )


def some_of(names: Iterable[str], most: int = 8) -> str:
    """Names in a message: the first ones, in their order, and how many more there are; "none" of no names."""
    return listed(names, most) or "none"


def check_module(module: Any, two: list[Any], inputs: tuple[Space, ...], outputs: tuple[int, ...]) -> None:
    """Raise NetworkError where a user's module cannot be called with `two`, two of each input, or returns a wrong shape
    for them."""
    name, what = type(module).__name__, " and ".join(describe(space) for space in inputs)
    named = f"2 observations of {what}" if len(inputs) == 1 else f"2 each of {what} (observation, action)"
    try:
        shape = tuple(module(*two).shape)
    except Exception as problem:
        raise NetworkError(
            f"The network {name} cannot read {named}: {problem}. Make its inputs and its first layer fit them."
        ) from problem
    if shape != (2, *outputs):
        raise NetworkError(
            f"The network {name} returned shape {shape} for {named}; "
            f"expected {(2, *outputs)}. Its last layer needs {' x '.join(map(str, outputs))} units. Where actor "
            "and critic differ, give each its own: network=ActorCritic(actor=..., critic=...)."
        )


def loss_noise(seed: int) -> np.random.Generator:
    """The generator of the noise that losses get, the same on every engine."""
    return seeding.generator(seed, "loss noise")


class LaidOutEngine:
    """The base of engines: what they tell of an agent with this layout of its weights."""

    def __init__(self, layout: ParameterLayout):
        self.layout: ParameterLayout = layout
        self.state_size: int = layout.agent.state_size
        self.acted: Any = layout.agent.acted
        self.rewarded: Any = layout.agent.rewarded

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        self.layout.check_state(saved)
