"""Between one environment's own observations and actions and those of agents: for acting outside of a rollout."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from etude.base.errors import SpaceError
from etude.base.spaces import Discrete
from etude.base.trees import Tree
from etude.envs.adapter import SpaceConversion
from etude.envs.frame_stack import Frames, FrameStack, follow, stacked
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.observations import Mismatch, Observations

_NO_INFO = "act: this environment gives its action mask in the info; pass that, too: run.act(observation, info)."


class Translation(Protocol):
    """Translates for one environment, also after that was closed."""

    def observe(self, observation: Any, info: dict[str, Any] | None, first: bool) -> Tree:
        """What an agent sees [1, ...] of an observation of the environment. first: of an episode. Raises SpaceError,
        also without an info (None) where that may hold an action mask."""

    def action(self, action: np.ndarray) -> Any:
        """An action of the environment from one of the agent's [1, ...], for what was observed last."""


def translation_of(env: Any, layout: SpaceConversion) -> Translation:
    """What translates for an environment with this layout."""
    if isinstance(env, FrameStack):
        return StackedTranslation(env, layout)
    return JointTranslation(env, layout) if isinstance(env, MultiAgentEnvironment) else AgentTranslation(layout)


class AgentTranslation:
    """Of one agent: observations and actions of the environment's spaces, whole numbers of Discrete ones as `int`.

    conversions: the same of arrays, for each of several agents by name; "": of one. frames: how many are stacked, whose
    space is `frame`.
    """

    frames, frame = 1, None

    def __init__(self, layout: SpaceConversion):
        self.conversions: dict[str, SpaceConversion] = {"": layout}
        self._observations, self._each = layout.observations, layout.actions.each
        self._discrete = isinstance(layout.actions.space, Discrete)

    def observe(self, observation: Any, info: dict[str, Any] | None, first: bool) -> Tree:
        """See `Translation`."""
        if info is None and self._observations.reads_infos:
            raise SpaceError(_NO_INFO)
        try:
            return self._observations.gather([observation], [info or {}])
        except Mismatch as problem:
            raise _refused(problem) from None

    def action(self, action: np.ndarray) -> Any:
        """See `Translation`."""
        own = self._each(action)[0]
        return int(own) if self._discrete else own


class StackedTranslation(AgentTranslation):
    """Of one agent whose observations are stacked frames: takes single frames, and keeps the last ones."""

    def __init__(self, env: FrameStack, layout: SpaceConversion):
        super().__init__(layout)
        self._single, self.frames = Observations(env.env.observation_space), env.count
        self.frame: Any = self._single.source
        self._frames: Frames = ()

    def observe(self, observation: Any, info: dict[str, Any] | None, first: bool) -> Tree:
        """See `Translation`. Without earlier frames, too, an episode begins."""
        try:
            self._single.gather([observation], [{}])
        except Mismatch as problem:
            raise _refused(problem) from None
        frames = follow(() if first else self._frames, observation, self.frames)
        seen = super().observe(stacked(frames), info, first)
        self._frames = frames
        return seen


class JointTranslation:
    """Of several agents: dicts by agent, of those that act now."""

    frames, frame = 1, None

    def __init__(self, env: MultiAgentEnvironment, layout: SpaceConversion):
        self.conversions: dict[str, SpaceConversion] = {
            name: SpaceConversion(*own) for name, own in env.conversions.items()
        }
        self._env, self._observations = env, layout.observations
        self._acting: dict[str, Any] = {}  # the name in etude -> the environment's own

    def observe(self, observation: Any, info: dict[str, Any] | None, first: bool) -> Tree:
        """See `Translation`."""
        if not isinstance(observation, dict) or not {str(name) for name in observation} <= set(self._env.names):
            given = f"those of {sorted(map(str, observation))}" if isinstance(observation, dict) else f"{observation!r}"
            raise SpaceError(
                f"act takes a dict of observations by agent, of {', '.join(self._env.names)} or some of them; got "
                f"{given[:80]}."
            )
        self._acting = {str(name): name for name in observation}
        if info is None and not self._env.in_infos.isdisjoint(self._acting):
            raise SpaceError(_NO_INFO)
        infos = {str(name): own for name, own in (info or {}).items()}
        try:
            joined = self._env.joined({str(name): seen for name, seen in observation.items()}, infos, first)
            return self._observations.gather([joined], [{}])
        except Mismatch as problem:
            raise _refused(problem) from None

    def action(self, action: np.ndarray) -> dict[Any, Any]:
        """See `Translation`."""
        each = self._env.split(action[0], tuple(self._acting))
        return {self._acting[name]: own for name, own in each.items()}


def _refused(problem: Mismatch) -> SpaceError:
    key = f" {problem.key!r}" if problem.key else ""
    what = problem.message.removesuffix(". Make what you return and observation_space agree")
    return SpaceError(
        f"act takes one observation, as the environment returns it: the observation{key} {what}. For a batch of "
        "normalised observations there is run.actor().act."
    )
