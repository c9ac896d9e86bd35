"""Runs that go on with collected steps where they learned from recorded data alone."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

from etude.algorithms import ALGORITHMS
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.offline.loading import CheckpointedData
from etude.replay import MixedReplay
from etude.training.assembly.agents import environment_arguments, learning_arguments
from etude.training.kinds import TrainingContext, kind_of
from etude.training.learner import Learner
from etude.training.sources import Sources

AS_BEFORE = (  # of the setup
    "seed", "engine", "device", "compiled", "vectorization", "keep_info", "devices", "strategy",
)  # fmt: skip


def arguments(context: TrainingContext, algorithm: str, share: float, changed: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `Run` for a run that goes on online; see `Run.go_online`."""
    if kind_of(context.agent).steps_environments or context.data is None:
        raise ConfigError(
            "go_online is for runs that learned from recorded data alone; this one steps its environment already. Go "
            "on with train."
        )
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ConfigError(f"go_online: share = {share!r}; expected from 0 to below 1, such as 0.5.")
    agent = copy.copy(context.agent)
    vars(agent).pop("learns_from", None)
    fields = [field.name for field in dataclasses.fields(agent.config) if field.init]
    config = dataclasses.replace(agent.config, **{name: changed.pop(name) for name in fields if name in changed})
    given = learning_arguments(algorithm if algorithm in ALGORITHMS else agent, config)
    given |= environment_arguments(context.environment)
    given |= {name: getattr(context.setup, name) for name in AS_BEFORE}
    return {**given, "data": _with_share(context.data, share), **changed}


def _with_share(data: Sources, share: float) -> Sources:
    """The sources with this share for all recorded data together."""
    recorded = {name: CheckpointedData(own.summary()) for name, own in data.recorded.items() if share}
    return Sources(recorded, {name: share * data.shares[name] for name in recorded}, 1.0 - share)


def take_over(old: Learner, new: Learner) -> None:
    """Put the weights, the optimizer and the normalisers of one learner, and its recorded transitions, into another.
    CheckpointError where the networks differ, and nothing is changed."""
    state = old.engine.state()
    new.engine.check_state(Stored(state, "engine"))
    new.engine.restore(state)
    if old.moments is not None and new.moments is not None:
        new.moments.restore(old.moments.state())
    if old.scale is not None and new.scale is not None:
        new.scale.moments = old.scale.moments
    new.progress.gradient_steps = old.progress.gradient_steps
    if isinstance(new.replay, MixedReplay):
        for name, buffer in _recorded(old, new.replay).items():
            new.replay.buffers[name].restore(buffer.state())


def _recorded(old: Learner, mixture: MixedReplay) -> dict[str, Any]:
    """The buffers of recorded transitions of a learner, by their names in a mixture that has them, too."""
    if isinstance(old.replay, MixedReplay):
        return old.replay.buffers
    return {next(iter(mixture.buffers)): old.replay}
