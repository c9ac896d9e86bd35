"""Weights that a run starts from: of another run, of a file of arrays, or given as they are."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError, NetworkError
from etude.checkpoint import tensors
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import read_run
from etude.engines.parameter_layout import ParameterLayout, some_of
from etude.protocols import Engine, Weights
from etude.training.learner import Learner
from etude.training.loop import RunLearning

# Components that hold no weights of the agent.
SKIPPED = ("replay", "rollout", "recorded", "rewriters", "adapting", "scale", "layer_noise", "evaluation", "waiting")


class _SourceWeights(NamedTuple):
    """Weights by name, and what normalises observations, where a run had it."""

    name: str
    weights: Weights
    moments: Any = None


class StartedFrom(NamedTuple):
    """What a run started from: names of its own weights that were taken and that stayed as they were drawn, and names
    of the source that nothing has taken."""

    source: str
    taken: tuple[str, ...]
    drawn: tuple[str, ...]
    unused: tuple[str, ...]

    @property
    def note(self) -> str:
        """In a sentence, what was not taken; empty where everything was."""
        if not (self.drawn or self.unused):
            return ""
        of = f"{len(self.taken)} of {len(self.taken) + len(self.drawn)} weights were taken from {self.source}."
        rest = f" Not in it: {some_of(self.drawn)}." if self.drawn else ""
        return of + rest + (f" Not used of it: {some_of(self.unused)}." if self.unused else "")

    @staticmethod
    def left_random(engine: Engine) -> list[str]:
        """What to say of networks that no loss trains, and that are as they were drawn."""
        layout: Any = engine.layout
        drawn, now = layout.initial, engine.weights() if layout.agent.given else {}
        return [
            f"{layout.agent} trains no weight of its {part}, and they are as drawn, at random. "
            f"Take those of a run of {source}: Run(..., start_from=RUN), or --start-from RUN."
            for part, source in layout.agent.given.items()
            if all((now[name] == drawn[name]).all() for name in drawn if name.startswith(f"{part}."))
        ]


def start_from(given: Any, learner: RunLearning) -> StartedFrom:
    """Take over the weights that agree by name: a run directory, a checkpoint, a safetensors file, or a dict of arrays.

    A weight takes the one of its own name; or, within a dict of networks, the only one that agrees beyond the names of
    the dicts: `model.policy.dense0.weight` of PPO takes `actor.policy.dense0.weight` of BC. What normalises
    observations is taken from runs alone, as it goes on to be averaged. Raises ConfigError where nothing agrees,
    NetworkError where a shape differs, and CheckpointError for a file that cannot be read; nothing is taken then.
    """
    if not isinstance(learner, Learner):
        raise ConfigError("start_from= is for runs of one algorithm; of a dict of policies, load each one's weights.")
    source, layout = _read(given), learner.engine.layout
    assert isinstance(layout, ParameterLayout)
    names = {name: found for name in layout.initial if (found := _matching(name, layout, source.weights))}
    of_normaliser = {name for name in names if layout.normaliser and name.startswith(f"{layout.normaliser}.")}
    if of_normaliser and (source.moments is None or learner.moments is None):
        names = {name: found for name, found in names.items() if name not in of_normaliser}
    if not names:
        raise ConfigError(
            f"start_from: no weight of {source.name} agrees in name with the agent's. It has "
            f"{some_of(source.weights)}; {layout.agent} has {some_of(layout.initial)}. Rename the "
            "arrays, and give them as a dict."
        )
    taken = {name: _fitting(name, layout, source, found) for name, found in names.items()}
    if of_normaliser & names.keys():
        assert learner.moments is not None
        learner.moments.check_state(Stored(source.moments, "moments"))
        learner.moments.restore(source.moments)
    learner.engine.load(taken)
    drawn = tuple(name for name in layout.initial if name not in taken)
    unused = tuple(name for name in source.weights if name not in set(names.values()))
    return StartedFrom(source.name, tuple(taken), drawn, unused)


def _read(given: Any) -> _SourceWeights:
    if isinstance(given, Mapping):
        weights = {str(name): np.asarray(array) for name, array in given.items()}
        return _SourceWeights("the given arrays", weights)
    if not isinstance(given, str | PathLike):
        raise ConfigError(
            f"start_from is a {type(given).__name__}; expected a run directory, a checkpoint (.etude), a file of "
            "safetensors, or a dict of arrays by name."
        )
    path = Path(given)
    if path.suffix == ".safetensors":
        try:
            with path.open("rb") as file:
                return _SourceWeights(str(path), tensors.decode(file, path.stat().st_size))  # type: ignore[arg-type]
        except OSError as problem:
            raise CheckpointError(f"{path} cannot be read: {problem.strerror}.") from problem
        except ValueError as problem:
            raise CheckpointError(f"{path} is no file of safetensors: {problem}.") from problem
    if path.is_file() and path.suffix != ".etude":
        raise ConfigError(
            f"start_from = {str(path)!r}; expected a run directory, a checkpoint (.etude), a file of safetensors, or a "
            "dict of arrays by name. Other files may run code when they are read: read it yourself, and give a dict."
        )
    state = present_state(read_run(path, ("engine", "moments"), SKIPPED).state)
    values = Stored(state, "").table()["engine"].table()["values"].table()
    return _SourceWeights(
        str(path), {name: np.asarray(array.value) for name, array in values.items()}, state["moments"]
    )


def _matching(name: str, layout: ParameterLayout, weights: Weights) -> str | None:
    """The name in the source that agrees with that of a weight."""
    if name in weights:
        return name
    part = next(part for part in layout.parts if name.startswith(f"{part}."))
    if "." not in part:
        return None
    inner = _inner(name)
    found = [other for other in weights if inner in (other, _inner(other))]
    return found[0] if len(found) == 1 else None


def _inner(name: str) -> str:
    """The name within a dict of networks."""
    return name.partition(".")[2]


def _fitting(name: str, layout: ParameterLayout, source: _SourceWeights, found: str) -> np.ndarray:
    array, own = source.weights[found], layout.initial[name]
    if array.shape != own.shape or array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise NetworkError(
            f"start_from: {found} of {source.name} has shape {array.shape}, {array.dtype}; the agent's {name} has "
            f"{own.shape}, {own.dtype}, of finite numbers. Give the run the same network, or leave this weight out of "
            "a dict of arrays."
        )
    return array.astype(own.dtype)
