"""A model that another library trained: its layers, as PyTorch has them, and the run that they become; the named
tensors of a file, with an account of those that nothing has read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base.data import listed
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.base.spaces import Box, Space, scale
from etude.checkpoint.run_directory import RunDirectory
from etude.envs import action_space_of
from etude.networks import ActorCritic, Conv, Mlp
from etude.networks.encoding import Image, split
from etude.networks.normaliser import Moments, normalised_parts
from etude.protocols import Weights
from etude.run import Run
from etude.serving.clients import SpacesAlone
from etude.training.description import config_for
from etude.training.schedule import Schedule

NATURE_CNN = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # fixed, for images of whatever size: not the default of `Conv`
POLICY = "model.policy"  # the part of PPO and A2C whose outputs are in the environment's units there
LOG_STD = "model.log_std.value"  # its log deviations


class Layer(NamedTuple):
    """A dense layer [outputs, inputs] or a convolution [outputs, inputs, height, width], and its bias [outputs]."""

    weight: np.ndarray
    bias: np.ndarray


class Layers(NamedTuple):
    """A network from input to output: convolutions over images (those of `NATURE_CNN`), then dense layers, of which
    the last has no activation."""

    convolutions: tuple[Layer, ...]
    dense: tuple[Layer, ...]

    def spec(self, activation: str, initializer: str) -> Mlp | Conv:
        """The network as data. initializer: of layers that are added later."""
        widths = tuple(len(layer.bias) for layer in self.dense[:-1])
        return Conv(NATURE_CNN, widths, activation) if self.convolutions else Mlp(widths, activation, initializer)

    def with_actions_first(self) -> Layers:
        """A critic whose actions join the features of images after a dense layer, as one that reads them beside the
        images: that layer passes each action on as the difference of two ReLUs."""
        if not self.convolutions:
            return self
        (features, bias), (weight, after), *rest = self.dense
        actions = weight.shape[1] - len(bias)
        passed = np.vstack([np.eye(actions), -np.eye(actions)])
        first = np.block(
            [[passed, np.zeros((2 * actions, features.shape[1]))], [np.zeros((len(bias), actions)), features]]
        )
        own = weight[:, len(bias) :]
        second = np.hstack([own, -own, weight[:, : len(bias)]])
        widened = Layer(first, np.append(np.zeros(2 * actions), bias)), Layer(second, after)
        return self._replace(dense=(*widened, *rest))

    def in_image_order(self, image: Image) -> Layers:
        """With the features of an image in the order (height, width, channels), in the place of PyTorch's."""
        height, width = image.height, image.width
        for _, kernel, stride in NATURE_CNN:
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        (weight, bias), *rest = self.dense
        features = height * width * len(self.convolutions[-1].bias)
        if height < 1 or width < 1 or weight.shape[1] < features:
            raise NetworkError(f"{weight.shape[1]} features; images of {image.height} x {image.width} have {features}")
        before, after = weight[:, :-features], weight[:, -features:]
        after = after.reshape(len(bias), -1, height, width).transpose(0, 2, 3, 1).reshape(len(bias), -1)
        return self._replace(dense=(Layer(np.hstack([before, after]), bias), *rest))

    def named(self) -> Weights:
        """The arrays by the names that etude has for them, each as it is laid out there."""
        convolutions = {f"image0.conv{i}": (x.transpose(2, 3, 1, 0), b) for i, (x, b) in enumerate(self.convolutions)}
        layers = convolutions | {f"dense{i}": (x.T, b) for i, (x, b) in enumerate(self.dense)}
        return {f"{name}.{part}": x for name, both in layers.items() for part, x in zip(PARTS, both, strict=True)}


PARTS = ("weight", "bias")


@dataclass(frozen=True)
class ImportedModel:
    """What a file of another library holds.

    source: the path. library: who wrote it. algorithm: as `etude list` has it. activation: after each hidden layer.
    networks: by the names of the agent's parts; a tuple for an ensemble. numbers: of the agent's other parts, by the
        names of its weights.
    hyperparameters: fields of the config. environments: in how many it was trained; None: not known.
    observation_space, action_space: as the file has them; None: it has none.
    observations, returns: the moments by which observations and rewards are normalised; None: they are not.
    raw_critic: whether critics read actions in the environment's units. (The policies of PPO and A2C have such units.)
    notes: what was assumed, and what is otherwise than there.
    """

    source: str
    library: str
    algorithm: str
    activation: str
    networks: Mapping[str, Layers | tuple[Layers, ...]]
    numbers: Mapping[str, np.ndarray] = field(default_factory=dict)
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    environments: int | None = None
    observation_space: Space | None = None
    action_space: Space | None = None
    observations: Moments | None = None
    returns: Moments | None = None
    raw_critic: bool = False
    notes: tuple[str, ...] = ()

    @property
    def config(self) -> Any:
        """The algorithm's config with the networks and hyperparameters of the model, and its defaults for the rest."""
        initializer = "orthogonal" if POLICY in self.networks else "fan_in"
        specs = {
            name.rpartition(".")[2]: (own[0] if isinstance(own[0], Layers) else own).spec(self.activation, initializer)
            for name, own in self.networks.items()
        }
        actor = next(specs[name] for name in ("policy", "actor", "q") if name in specs)
        critic = specs.get("critic", actor)
        return config_for(
            self.algorithm,
            None,
            network=actor if actor == critic else ActorCritic(actor, critic),
            normalize_observation=self.observations is not None,
            normalize_reward=self.returns is not None,
            **self.hyperparameters,
        )

    def run(self, env: Any = None, run_dir: RunDirectory | str | Path | None = None, **setup: Any) -> Run:
        """The model as a run of no steps, which acts as the model does; saved, where it is given a `run_dir`.

        env: the environment that it was trained on, as of `Run`, in the same wrappers; None: nothing but the spaces of
            the file, so that loading the run needs env=. setup: other arguments of `Run`.
        ConfigError where there are no such spaces, NetworkError where the environment has other ones.
        """
        if env is None:
            if self.observation_space is None or self.action_space is None:
                raise ConfigError(
                    f"{self.source} does not name its environment, and holds no spaces that can be read: say what it "
                    "was trained on, as in env='CartPole-v1' (--env CartPole-v1)."
                )
            env = SpacesAlone(self.observation_space, self.action_space, masks=False)
        if self.environments is not None:
            setup.setdefault("environments", self.environments)
        run = Run(self.algorithm, env, config=self.config, **setup)
        try:
            # Raise NetworkError where the environment's spaces are not those of the file
            own = run.engine.spaces.observation, action_space_of(run.environment)
            for name, there, here in zip(SPACES, (self.observation_space, self.action_space), own, strict=True):
                if there is not None and not _alike(there, here):
                    raise self._unfit(run, f"its {name} are {there!s:.120}, and the environment's {here!s:.120}")
            try:
                found = self._weights(run)
            except (ValueError, NetworkError) as problem:
                raise self._unfit(run, str(problem)) from None
            state = run.state()
            for name, own in state["engine"]["values"].items():
                if name in found and found[name].shape != own.shape:
                    raise self._unfit(run, f"{name} has shape {found[name].shape} in the file, and {own.shape} for it")
            state["engine"]["values"] |= found
            if self.observations is not None:
                (part,) = normalised_parts(run.engine.spaces.observation)
                state["moments"] = {part.name: self.observations._asdict()}
            if self.returns is not None:
                state["scale"] = {**state["scale"], "moments": self.returns._asdict()}
            run.restore(state)
            if run_dir is not None:
                self.save(run, run_dir)
        except BaseException:
            run.close()
            raise
        return run

    def save(self, run: Run, run_dir: RunDirectory | str | Path) -> None:
        """Save the model's run in a directory, which is the run's from now on."""
        run.use_directory(run_dir)
        assert run.directory is not None
        run.directory.write_config({**run.description(), "total": 0, "schedule": Schedule().plain()})
        run.directory.save(0, run.state(), {"imported": self.source, "library": self.library})

    def _unfit(self, run: Run, what: str) -> NetworkError:
        return NetworkError(
            f"{self.source} does not fit the environment {run.description()['environment']}: {what}. Give the one that "
            "it was trained on, in the same wrappers: env= and wrappers= (--env, --wrapper, --frame-stack)."
        )

    def _weights(self, run: Run) -> Weights:
        """The weights by the names, and in the units, of the agent, moments of observations included."""
        action = action_space_of(run.environment)
        images = split(run.engine.spaces.observation)[1]
        found: dict[str, Any] = {name: np.asarray(value) for name, value in self.numbers.items()}
        middle, half = (x.reshape(-1) for x in scale(action)[:2]) if isinstance(action, Box) else (None, None)

        def canonical(name: str, layers: Layers) -> Weights:
            if middle is not None and half is not None and name == POLICY:
                *hidden, (weight, bias) = layers.dense
                layers = layers._replace(dense=(*hidden, Layer(weight / half[:, None], (bias - middle) / half)))
            if middle is not None and half is not None and self.raw_critic and name.startswith("critic"):
                (weight, bias), *rest = layers.dense
                first, last = weight[:, : -len(half)], weight[:, -len(half) :]
                layers = layers._replace(dense=(Layer(np.hstack([first, last * half]), bias + last @ middle), *rest))
            if layers.convolutions:
                if len(images) != 1:
                    raise NetworkError(f"it reads one image, and the environment has {len(images)}")
                layers = layers.in_image_order(Image.of(images[0][1]))  # type: ignore[arg-type]
            return layers.named()

        for name, own in self.networks.items():
            if isinstance(own, Layers):
                found |= {f"{name}.{each}": x for each, x in canonical(name, own).items()}
                continue
            members = [canonical(name, layers) for layers in own]
            if own[0].convolutions:
                found |= {f"{name}.{i}.{each}": x for i, arrays in enumerate(members) for each, x in arrays.items()}
            else:
                stacked = {each: np.stack([arrays[each] for arrays in members]) for each in members[0]}
                found |= {f"{name}.{each}": x if x.ndim == 3 else x[:, None] for each, x in stacked.items()}
        if half is not None and LOG_STD in found:
            found[LOG_STD] = found[LOG_STD].reshape(-1) - np.log(half)
        if self.observations is not None:
            (part,) = normalised_parts(run.engine.spaces.observation)
            found[f"normaliser.{part.name}.mean"] = self.observations.mean
            found[f"normaliser.{part.name}.scale"] = self.observations.scale
        return {name: np.array(value, np.float32, order="C") for name, value in found.items()}


SPACES = ("observations", "actions")


def _alike(there: Space, here: Space) -> bool:
    """Whether two spaces have equal shapes and bounds; those of images in any order of the axes, and as files print
    numbers."""
    if not (isinstance(there, Box) and isinstance(here, Box)):
        return there == here
    if len(here.shape) >= 3:
        return sorted(there.shape) == sorted(here.shape)
    return there.shape == here.shape and all(
        np.allclose(getattr(there, end), getattr(here, end), 1e-5) for end in ("low", "high")
    )


SHOWN = 4  # names in an error


class NamedTensors:
    """Arrays by name. where: the file. expected: what it may hold."""

    def __init__(self, where: str, arrays: Any, expected: str):
        self.where, self.expected = where, expected
        if not isinstance(arrays, Mapping) or not arrays:
            raise self.error(f"it holds no tensors by name, but a {type(arrays).__name__}")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or array.dtype.kind != "f" or not np.isfinite(array).all():
                raise self.error(f"{name} is no tensor of finite numbers")
        self._arrays: dict[str, np.ndarray] = dict(arrays)
        self._read: set[str] = set()

    def error(self, what: str) -> CheckpointError:
        """What is wrong with the file."""
        return CheckpointError(f"{self.where} cannot be imported: {what}. Expected {self.expected}.")

    def have(self, *beginnings: str) -> bool:
        """Whether names begin with each of these."""
        return all(any(name.startswith(beginning) for name in self._arrays) for beginning in beginnings)

    def read(self, name: str) -> np.ndarray:
        """An array by its name."""
        if name not in self._arrays:
            raise self.error(f"there is no {name}; it has {listed(self._arrays, SHOWN)}")
        self._read.add(name)
        return self._arrays[name]

    def pass_over(self, beginning: str) -> None:
        """Count as read what is there under another name, too."""
        self._read |= {name for name in self._arrays if name.startswith(beginning)}

    def layer(self, name: str) -> Layer:
        """A dense layer or a convolution."""
        weight, bias = self.read(f"{name}.weight"), self.read(f"{name}.bias")
        if weight.ndim not in (2, 4) or weight.shape[:1] != bias.shape:
            raise self.error(f"{name} has weights of shape {weight.shape} and biases of shape {bias.shape}")
        return Layer(weight, bias)

    def sequence(self, name: str) -> Layers:
        """The layers of a `Sequential`: convolutions, each with its activation, a `Flatten` after them, and dense
        layers with activations between them."""
        pattern = re.compile(rf"{re.escape(name)}\.(\d{{1,3}})\.")
        places = sorted({int(found[1]) for each in self._arrays if (found := pattern.match(each))})
        layers = [self.layer(f"{name}.{place}") for place in places]
        convolutions = [layer for layer in layers if layer.weight.ndim == 4]
        flat = bool(convolutions and len(layers) > len(convolutions))
        expected = [2 * i + (flat and i >= len(convolutions)) for i in range(len(layers))]
        if places != expected or any(layer.weight.ndim == 4 for layer in layers[len(convolutions) :]):
            raise self.error(
                f"{name} has layers at {', '.join(map(str, places))}, which are not Linear layers or convolutions with "
                "an activation after each"
            )
        if convolutions and [layer.weight.shape[::2] for layer in convolutions] != [(32, 8), (64, 4), (64, 3)]:
            raise self.error(f"the convolutions of {name} are not those of NatureCNN")
        return Layers(tuple(convolutions), tuple(layers[len(convolutions) :]))

    def check_all_read(self) -> None:
        """Raise CheckpointError where something was not read."""
        if left := [name for name in self._arrays if name not in self._read]:
            raise self.error(f"it has {listed(left, SHOWN)}, which are not known here")
