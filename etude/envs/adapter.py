"""One environment as agents see it: normalised spaces, copied observations, and faults that say where they happened."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from etude.base import trees
from etude.base.checks import Stored
from etude.base.errors import ConfigError, SpaceError
from etude.base.spaces import Discrete, Origins, Space, Spaces, with_origins
from etude.base.trees import Tree
from etude.envs.actions import Actions, ActionScaling, NormalisedActions, Rewards, WrongValue
from etude.envs.configured import Frames, FrameStack, follow, is_plain, stacked
from etude.envs.faults import RAISED, FaultLocation, cause_of, check_reset, close_all, explain_flag, explain_step
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.observations import Mismatch, Observations, mask_size
from etude.envs.registry import takes


@dataclass(frozen=True)
class SpaceConversion:
    """How the observations and actions of one kind of environment are translated."""

    observations: Observations
    actions: Actions

    @classmethod
    def of(
        cls,
        observation: Space,
        action: Space,
        flags: int = 0,
        scaling: ActionScaling = NormalisedActions,
        origins: Origins = (),
    ) -> SpaceConversion:
        """flags: see `Observations`. origins: see `with_origins`."""
        return cls(Observations(with_origins(observation, origins), flags), Actions(action, scaling))

    @property
    def spaces(self) -> Spaces:
        return Spaces(self.observations.space, self.actions.space)


class AdaptedEnvironment:
    """One environment that does not reset itself, for rendering.

    scaling, rewards, spaces, masks, origins: see `LoopEnvironments`.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        name: str,
        scaling: ActionScaling = NormalisedActions,
        rewards: Rewards | None = None,
        spaces: Spaces | None = None,
        masks: bool = False,
        origins: Origins = (),
    ):
        self.env: gym.Env[Any, Any] = env
        self.name: str = name
        self._rewards = rewards or Rewards()
        self._where = FaultLocation(name, 0, -1, 0)
        self._task: Any = None
        self._give: GiveTask = lambda task: {}
        _, info = self._raw_reset(None)
        flags = mask_size(env.action_space, info, masks)
        self._layout = SpaceConversion.of(env.observation_space, env.action_space, flags, scaling, origins)
        self.spaces: Spaces = spaces or self._layout.spaces

    def set_task(self, task: Any) -> None:
        """Give this task, from `task_data`, to the episodes that begin from now on. ConfigError where it takes none."""
        self._give, self._task = task_giver(self.env, self.name), task

    def reset(self, seed: int | None = None) -> Tree:
        """Start an episode; returns its first observation, without a batch axis."""
        self._where = FaultLocation(self.name, 0, self._where.episode + 1, 0, seed, self._task)
        observation, info = self._raw_reset(seed)
        try:
            return trees.rows(self._layout.observations.gather([observation], [info]), 0)
        except Mismatch as problem:
            raise self._where.mismatch(problem) from None

    def step(self, action: np.ndarray | int) -> tuple[Tree, float, bool, bool, dict[str, Any]]:
        """One step with an action of `spaces.action`, without a batch axis. The reward is what the episode is scored
        by."""
        where = self._where = replace(self._where, step=self._where.step + 1)
        try:
            result = self.env.step(self._layout.actions.each(np.asarray(action)[None])[0])
        except RAISED as problem:
            raise where.raised(problem) from cause_of(problem)
        if not isinstance(result, tuple) or len(result) != 5:
            raise where.fault(explain_step(result))
        observation, reward, terminated, truncated, info = result
        wrong = explain_flag("terminated", terminated) or explain_flag("truncated", truncated)
        if wrong is not None:
            raise where.fault(wrong)
        layout = self._layout.observations
        try:
            if terminated or truncated:
                seen = layout.gather_final(observation, info)
            else:
                seen = trees.rows(layout.gather([observation], [info]), 0)
            return seen, float(self._rewards.gather([reward])[1][0]), bool(terminated), bool(truncated), info
        except Mismatch as problem:
            raise where.mismatch(problem) from None
        except WrongValue as problem:
            raise where.fault(str(problem)) from None

    def render(self) -> Any:
        """What the environment renders, in the `render_mode` that it was made with."""
        try:
            return self.env.render()
        except NotImplementedError as error:
            raise ConfigError(
                f"{type(self.env.unwrapped).__name__} declares render modes in its metadata and has no render(): write "
                "one, which returns an RGB array [height, width, 3] of uint8 for 'rgb_array'."
            ) from error

    @property
    def render_fps(self) -> float:
        """Frames per second of a film; 30 where the environment declares none."""
        return self.env.metadata.get("render_fps") or 30

    def close(self) -> None:
        """Close it, with a warning where that fails."""
        close_all([self.env], self.name)

    def _raw_reset(self, seed: int | None) -> tuple[Any, dict[str, Any]]:
        try:
            result = self.env.reset(seed=seed, **self._give(self._task))
        except RAISED as problem:
            raise self._where.raised(problem) from cause_of(problem)
        return check_reset(result, self._where)


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
        return _StackedTranslation(env, layout)
    return _JointTranslation(env, layout) if isinstance(env, MultiAgentEnvironment) else AgentTranslation(layout)


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


class _StackedTranslation(AgentTranslation):
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


class _JointTranslation:
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


GiveTask = Callable[[Any], dict[str, Any]]  # gives a task to one environment; returns further arguments of its `reset`
_PLAIN = "numbers, texts, booleans, and lists and dicts by text of these"


def task_data(task: Any) -> Any:
    """A copy of a task, which environments are given when an episode begins (such as the level of a curriculum), with
    lists in the place of tuples, as a checkpoint gives it back. ConfigError for what is no plain data, and for None."""
    if task is None or not is_plain(task):
        raise ConfigError(
            f"task = {task!r}; expected plain data, which is sent to workers and saved with the run: {_PLAIN}. Turn "
            "arrays into lists (array.tolist()), and pass the name or the parameters of an object."
        )
    return _with_lists(task)


def check_stored_task(saved: Stored) -> None:
    """Raise CheckpointError unless this is what `task_data` returns."""
    if saved.value is None or not is_plain(saved.value) or _with_lists(saved.value) != saved.value:
        saved.refuse(f"a task: {_PLAIN}")


def task_giver(env: gym.Env[Any, Any], name: str) -> GiveTask:
    """How one environment takes a task: by the method `set_task(task)` of its outermost wrapper that has one, or of
    itself; else by `reset(options={"task": task})`. ConfigError where its `reset` takes no options.

    It is given a copy, which it may keep and change.
    """
    if env.has_wrapper_attr("set_task"):
        found = env.get_wrapper_attr("set_task")
    else:  # PettingZoo's wrappers hand on what they do not have
        inner = env.unwrapped
        found = getattr(inner.env, "set_task", None) if isinstance(inner, MultiAgentEnvironment) else None
    method = found if callable(found) else None
    if method is not None:

        def call(task: Any) -> dict[str, Any]:
            method(copy.deepcopy(task))
            return {}

        return call
    layers: list[Any] = [env]  # and what its wrappers are around, down to PettingZoo's
    while isinstance(layers[-1], gym.Wrapper | MultiAgentEnvironment):
        layers.append(layers[-1].env)
    for layer in layers:
        if not takes(layer.reset, "options"):
            raise ConfigError(
                f"{name} takes no task: it has no method set_task(task), and the reset of "
                f"{type(layer).__qualname__} has no parameter `options`. Write one of the two."
            )
    return lambda task: {"options": {"task": copy.deepcopy(task)}}


def _with_lists(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_with_lists(item) for item in value]
    return {key: _with_lists(item) for key, item in value.items()} if isinstance(value, dict) else value
