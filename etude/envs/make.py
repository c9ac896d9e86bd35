"""Environments from what a user names."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from etude.base import trees
from etude.base.errors import ConfigError, EnvironmentFault, SpaceError
from etude.base.forks import when_dropped
from etude.base.seeding import RunSeed
from etude.base.spaces import ACTION_MASK, Box, Discrete, Hybrid, MultiBinary, Space, Spaces, leaves, tree_of
from etude.base.trees import Tree
from etude.envs.actions import MultiAgentRewards
from etude.envs.adapter import AdaptedEnvironment, Translation
from etude.envs.configured import ConfiguredEnvironment, MasksInInfo, counted_from, make_wrapped, with_masks
from etude.envs.faults import RAISED, FaultLocation, LateMask, cause_of, check_reset, close_all, explain_error
from etude.envs.functional import FunctionalEnvironment, as_gymnasium
from etude.envs.multi_agent import MultiAgentEnvironment, ParallelEnvironment, takes_turns
from etude.envs.native import NativeEnvironments, restart_of
from etude.envs.observations import flat_mask, maskable
from etude.envs.registry import EnvironmentSource, EnvironmentSpec, construct, resolve, takes
from etude.envs.vector import LoopEnvironments
from etude.language import TokenEnvironment
from etude.multi_agent import joint
from etude.protocols import Environments

MANY_STEPS = 10_000  # of an episode, after which one without a time limit counts as one that does not end


def declared_limit(env: Any) -> int | None:
    """Steps after which the environment, or vectorised simulator, truncates an episode; None where it declares none."""
    spec = getattr(env, "spec", None)
    if spec is not None and spec.max_episode_steps is not None:
        return int(spec.max_episode_steps)
    while isinstance(env, gym.Wrapper):
        if isinstance(env, TimeLimit):
            return int(env._max_episode_steps)
        env = env.env
    return None


def cut_at(env: Any, asked: int | None) -> int | None:
    """Steps after which an episode is to be cut off: as asked, and otherwise only where no limit is declared."""
    limit = declared_limit(env)
    if asked is None:
        return MANY_STEPS if limit is None else None
    return asked if limit is None or asked < limit else None


def limited(env: gym.Env[Any, Any], steps: int | None) -> gym.Env[Any, Any]:
    """The environment, truncated after so many steps; as it is where None."""
    return env if steps is None else _Limit(env, steps)


class _Limit(TimeLimit):
    """A time limit that passes on no more than `reset` was given: environments without `options` train as they are."""

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        self._elapsed_steps = 0  # type: ignore[assignment]  # Gymnasium declares None
        return self.env.reset(**given)


Vectorization = Literal["auto", "loop", "native", "compiled"]

STEPS, STEPS_OF_SEVERAL = 10, 100  # of random play that looks for action masks: agents may join late, or take turns
SECONDS = 1.0  # that these steps may take, each counted as the quickest of them
SPACES = ("observation_space", "action_space")
MANY = 64  # environments from which a simulator beats the loop by far


def make_environment(env: EnvironmentSpec, **kwargs: Any) -> AdaptedEnvironment:
    """One environment in normalised spaces. Keywords, such as `render_mode="rgb_array"`, go to what makes it."""
    source = resolve(env)
    raw = make_rendering(source, **kwargs) if "render_mode" in kwargs else make_any(source, kwargs)
    made = _as_one(raw, source)
    if isinstance(made, MultiAgentEnvironment):
        return AdaptedEnvironment(made, source.name, rewards=MultiAgentRewards(made.names), spaces=made.spaces)
    return AdaptedEnvironment(made, source.name, masks=source.masks, origins=source.origins)


def make_environments(
    env: EnvironmentSpec,
    columns: np.ndarray,
    run_seed: RunSeed,
    vectorization: Vectorization = "auto",
    keep_info: Sequence[str] = (),
    **kwargs: Any,
) -> LoopEnvironments | NativeEnvironments:
    """len(columns) environments that are stepped together; `columns` are their numbers in the run.

    vectorization: see `choose_vectorization`. keep_info: names of numbers of `info` that travel with the steps. Other
    keywords go to what makes the environment.
    """
    source = resolve(env)
    if choose_vectorization(env, len(columns), vectorization) == "native":
        simulator = make_simulator(source, len(columns), kwargs)
        return NativeEnvironments(
            simulator, columns, run_seed, source.name, None, keep_info, source.masks, source.origins
        )
    made = [make_single(source, kwargs) for _ in columns]
    return _loop(source, made, columns, run_seed, None, {"keep_info": keep_info})


def make_for_evaluation(
    env: EnvironmentSpec, columns: np.ndarray, run_seed: RunSeed, max_steps: int | None = None
) -> tuple[Environments, int | None]:
    """Environments that are only played on, and the steps after which their episodes are cut off (None: never).

    max_steps: of an episode; None: 10,000 where the environment declares no time limit. What was done is not kept, so
    that no episode takes memory. A simulator that resets itself (SAME_STEP) cannot be cut off.
    """
    source = resolve(env)
    if choose_vectorization(env, len(columns)) == "loop":
        made = [make_single(source, {}) for _ in columns]
        steps = cut_at(made[0], max_steps)
        return _loop(source, made, columns, run_seed, steps, {"replayable": False}), steps
    simulator = make_simulator(source, len(columns), {})
    steps = cut_at(simulator, max_steps)
    return NativeEnvironments(simulator, columns, run_seed, source.name, steps, (), source.masks, source.origins), steps


def _loop(
    source: EnvironmentSource,
    made: list[gym.Env[Any, Any]],
    columns: np.ndarray,
    run_seed: RunSeed,
    steps: int | None,
    more: dict[str, Any],
) -> LoopEnvironments:
    """A loop over these environments. steps: after which an episode is truncated, None: never. more: arguments."""
    first, factory, masks = made[0], map(partial(limited, steps=steps), made).__next__, source.masks
    if lost := [each for each in SPACES if not isinstance(getattr(first, each, None), gym.spaces.Space)]:
        raise SpaceError(
            f"{source.name} has no {' and no '.join(lost)} of gymnasium.spaces. Set self.{lost[0]} in __init__."
        )
    if isinstance(first, MultiAgentEnvironment):
        more = more | {"rewards": MultiAgentRewards(first.names), "spaces": first.spaces}
        masks = first.masks
    return LoopEnvironments(factory, columns, run_seed, source.name, masks=masks, origins=source.origins, **more)


def choose_vectorization(
    env: EnvironmentSpec, environments: int, vectorization: Vectorization = "auto"
) -> Literal["loop", "native"]:
    """What `vectorization` comes to for so many environments.

    "loop": a Python loop over single environments, with a seed for every episode: the same transitions for any number
    of workers, and open episodes replayed on resume. "native": one vectorised simulator, where there is one. "auto":
    the loop; native where there is nothing else, and from 64 environments on where it fits the contract: there it takes
    seven times as many steps in a second on CartPole (1.3 times for 8 environments, fifteen times for 128).
    """
    source = resolve(env)
    if vectorization == "compiled":  # where something steps its environments one by one, as an evaluation does
        return "loop"
    if vectorization == "native" and source.vector is None:
        raise ConfigError(f"{source.name} has no vectorised form; use vectorization='loop' (or 'auto').")
    if vectorization != "auto":
        return vectorization
    if source.vector is None or (source.single is not None and (environments < MANY or not _fits(source))):
        return "loop"
    return "native"


def _fits(source: EnvironmentSource) -> bool:
    try:
        simulator = make_simulator(source, 2, {})
        try:
            restart_of(simulator, source.name)
        finally:
            close_all([simulator], source.name)
    except (ConfigError, ImportError):  # it resets in its own way, or needs what is not installed
        return False
    return True


def make_simulator(source: EnvironmentSource, environments: int, kwargs: dict[str, Any]) -> VectorEnv[Any, Any, Any]:
    """One vectorised simulator of so many environments."""
    assert source.vector is not None
    simulator = construct(source.vector, source.name, {"num_envs": environments, **kwargs})
    if isinstance(simulator, VectorEnv):
        return simulator
    raise ConfigError(f"{source.name} takes num_envs and made a {type(simulator).__name__}; expected a VectorEnv.")


def functional_of(env: EnvironmentSpec) -> FunctionalEnvironment | None:
    """The pure functions of an environment; None where it is something else, or is wrapped."""
    make: Any = resolve(env).single
    inner = make.args[1] if isinstance(make, partial) and make.func is make_wrapped and not make.args[3] else make
    return make().functional if isinstance(inner, partial) and inner.func is as_gymnasium else None


def make_single(source: EnvironmentSource, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    """One Gymnasium environment, as the user's code or Gymnasium made it; or several agents of PettingZoo as one."""
    return _as_one(make_any(source, kwargs), source)


def _as_one(env: Any, source: EnvironmentSource) -> gym.Env[Any, Any]:
    """A Gymnasium environment itself, with the masks of its `action_masks()` in infos; one of texts with tokens as
    actions; several agents of PettingZoo as one."""
    if isinstance(env, gym.Env) and all(isinstance(getattr(env, each, None), gym.spaces.Text) for each in SPACES):
        return TokenEnvironment(env)
    if isinstance(env, gym.Env):
        return MasksInInfo(env) if env.has_wrapper_attr("action_masks") else env
    if takes_turns(env) or isinstance(env, ParallelEnvironment):
        return MultiAgentEnvironment(env, source.global_state, source.masks, source.origins)
    raise ConfigError(f"{source.name} made a {_kind(env)}")


def make_rendering(source: EnvironmentSource, render_mode: str, **kwargs: Any) -> Any:
    """What the user's code or Gymnasium makes, to be rendered in this mode. ConfigError where it cannot be."""
    make: Any = source.single
    if isinstance(make, partial) and make.func is make_wrapped:
        make = make.args[1]  # it takes whatever this takes
    if make is not None and takes(make, "render_mode"):
        return make_any(source, {"render_mode": render_mode, **kwargs})
    return rendering(make_any(source, kwargs), source.name, render_mode)


def rendering(env: Any, name: str, render_mode: str) -> Any:
    """An environment that renders in this mode: itself, or one that Gymnasium makes like it. ConfigError where there is
    none."""
    made_with = getattr(env, "render_mode", None)
    if made_with == render_mode or takes(env.render, "mode"):
        return env
    if isinstance(env, gym.Env) and env.spec is not None:
        env.close()
        return gym.make(env.spec, render_mode=render_mode)
    raise ConfigError(
        f"{name} was made with render_mode={made_with!r}, and {render_mode!r} is needed here. Make it with "
        f"render_mode={render_mode!r}, or let its callable take render_mode and pass it on."
    )


def make_any(source: EnvironmentSource, kwargs: dict[str, Any]) -> Any:
    """What the user's code or Gymnasium makes, of whatever kind."""
    if source.single is None:
        raise ConfigError(
            f"{source.name} makes a vectorised simulator only (it takes num_envs), and a single environment is needed "
            "here. Train on it with vectorization='native'; to watch an agent, name a single environment that has the "
            "same spaces: etude watch RUN --env ID, or etude.load(RUN, env=ID).watch()."
        )
    return construct(source.single, source.name, kwargs)


def _kind(env: Any) -> str:
    if isinstance(env, VectorEnv):
        return "gymnasium VectorEnv; give its callable a parameter num_envs, so that etude can say how many it wants."
    kind = f"{type(env).__module__}.{type(env).__qualname__}"
    if any(base.__module__.split(".")[0] == "gym" for base in type(env).__mro__):
        return f"{kind} of the old gym package; subclass gymnasium.Env instead (import gymnasium as gym)."
    return f"{kind}; expected a gymnasium.Env, or one of PettingZoo. Subclass gymnasium.Env and return an instance."


@dataclass(frozen=True)
class Finding:
    """A mistake, or a note on what works and could surprise. `message` says what was found and how to mend it."""

    name: str
    message: str
    kind: Literal["mistake", "note"] = "mistake"


class RandomActions:
    """Draws actions of one space, always the same ones from a seed, also where the environment makes its space anew.

    wrong: what was wrong with the last mask.
    """

    def __init__(self, space: Space, seed: int):
        self._space = copy.deepcopy(space)
        self._space.seed(seed)
        self._rng = np.random.default_rng(seed)
        self.wrong: str | None = None

    def __call__(self, observation: Any, info: Any) -> Any:
        """An action for what a reset or a step returned."""
        self.wrong = None
        held = (part for part in (observation, info) if isinstance(part, dict))
        mask = next((part[ACTION_MASK] for part in held if ACTION_MASK in part), None)
        counts = maskable(self._space)
        if mask is None or not counts:
            return self._space.sample()
        flat = flat_mask(mask)
        legal = [np.flatnonzero(part) for part in np.split(flat, np.cumsum(counts)[:-1])]
        if flat.shape != (sum(counts),):
            self.wrong = f"The action mask has shape {flat.shape}; {self._space} needs ({sum(counts)},)."
            return self._space.sample()
        if not all(map(len, legal)):
            self.wrong = (
                "The action mask allows no action at all. End the episode with terminated=True when none is left."
            )
            return self._space.sample()
        chosen = iter([int(self._rng.choice(part)) for part in legal])
        return tree_of(self._space, (self._put_together(leaf, chosen) for _, leaf in leaves(self._space)))

    def _put_together(self, space: Any, chosen: Iterator[int]) -> Any:
        """A leaf of an action with the next of these choices, or any numbers."""
        if isinstance(space, Hybrid):
            return np.append(space.numbers.sample(), list(chosen)).astype(space.dtype)
        if isinstance(space, Box):
            return space.sample()
        if isinstance(space, Discrete):
            return space.start + space.dtype.type(next(chosen))
        own = np.reshape(list(islice(chosen, math.prod(space.shape))), space.shape).astype(space.dtype)
        return own if isinstance(space, MultiBinary) else own + space.start


class RandomActionsOfSeveral:
    """The same for several agents as one, whose masks their environment checks."""

    wrong = None

    def __init__(self, agents: dict[str, Spaces], seed: int):
        self._spaces = [own.action for own in agents.values()]
        self._each = {name: RandomActions(own.action, seed + i) for i, (name, own) in enumerate(agents.items())}

    def __call__(self, observation: Any, info: Any) -> np.ndarray:
        """The joined actions of all agents."""
        chosen = [draw(observation[joint.AGENTS][name], {}) for name, draw in self._each.items()]
        return joint.join_actions([np.asarray(action)[None] for action in chosen], self._spaces)[0]


class Examined(NamedTuple):
    """What an environment is to agents. translation: for one of its kind. environment: with masks where infos hold
    any."""

    spaces: Spaces
    translation: Translation
    environment: Any


def with_origins_of(env: EnvironmentSpec) -> EnvironmentSpec:
    """The environment, whose large numbers of 64 bits are counted from those of a first observation; itself where there
    are none, or they are counted so already."""
    if isinstance(env, ConfiguredEnvironment) and env.origins is not None:
        return env
    environments = make_environments(env, np.arange(1), run_seed=0)
    try:
        origins = environments.origins()
    finally:
        environments.close()
    return counted_from(env, origins) if origins else env


def examine(env: EnvironmentSpec, play: bool = True) -> Examined:
    """Make an environment, to see what it is. Whether its infos hold action masks shows in its first reset, or in
    random steps: at most 10, of several agents 100, and fewer where steps are so slow that these would take seconds.

    play: whether to take them.
    """
    environments = make_environments(env, np.arange(1), run_seed=0)
    try:
        if environments.masks:
            return Examined(environments.spaces, environments.translation(), with_masks(env))
        if not play or not _shows_mask(environments):
            return Examined(environments.spaces, environments.translation(), env)
    finally:
        environments.close()
    return examine(with_masks(env))


def _shows_mask(environments: LoopEnvironments | NativeEnvironments) -> bool:
    """Whether an info holds an action mask within the first random steps."""
    spaces, quickest = environments.spaces, math.inf
    choosing = [own for own in (spaces.agents or {"": spaces}).values() if maskable(own.action)]
    if all(own.masked for own in choosing):
        return False
    draw: Any = RandomActions(spaces.action, 0) if spaces.agents is None else RandomActionsOfSeveral(spaces.agents, 0)
    try:
        observation = environments.reset()
        for number in range(1, 1 + (STEPS if spaces.agents is None else STEPS_OF_SEVERAL)):
            begun = time.perf_counter()
            observation = environments.step(np.asarray(draw(trees.rows(observation, 0), {}))[None])[0]
            quickest = min(quickest, time.perf_counter() - begun)  # others wait for what else the machine does
            if (number - 1) * quickest > SECONDS:  # the first one may compile
                break
    except LateMask:
        return True
    except EnvironmentFault:  # reported where the run comes to it
        pass
    return False


def action_space_of(env: EnvironmentSpec) -> Space:
    """The action space of an environment as it is, not as agents see it."""
    source = resolve(env)
    if source.single is None:
        simulator = make_simulator(source, 1, {})
        try:
            return simulator.single_action_space
        finally:
            close_all([simulator], source.name)
    made = make_single(source, {})
    try:
        return made.action_space
    finally:
        close_all([made], source.name)


class GoalOutcome:
    """The reward of a step that led to an achieved goal, and whether it ends the episode, under any desired goal.

    Makes one environment, which is reset once, never stepped, and closed with this object. Outer wrappers are asked
    first. Where there is no `compute_terminated`, no goal ends an episode. `info` is always empty.
    Raises ConfigError where the environment has no `compute_reward`, and EnvironmentFault where that raises for the
    goals of the first observation.
    """

    def __init__(self, env: EnvironmentSpec):
        source = resolve(env)
        if source.single is None:
            raise ConfigError(
                f"{source.name} makes a vectorised simulator only; hindsight calls compute_reward of a single "
                "environment. Register one, or leave hindsight off."
            )
        made = make_single(source, {})
        when_dropped(self, close_all, [made], source.name)
        self._reward, self._terminated = _method(made, "compute_reward"), _method(made, "compute_terminated")
        if self._reward is None:
            raise ConfigError(
                f"{source.name} has no compute_reward(achieved_goal, desired_goal, info), which hindsight relabels "
                "transitions with. Give the environment one, as those of Gymnasium-Robotics have, or leave hindsight "
                "off."
            )
        self.name: str = source.name
        self._where = FaultLocation(source.name, 0, -1, 0)
        try:
            result = made.reset(seed=0)
        except RAISED as problem:
            raise self._where.raised(problem) from cause_of(problem)
        first, _ = check_reset(result, self._where)
        if isinstance(first, dict) and {"achieved_goal", "desired_goal"} <= first.keys():
            self(first["achieved_goal"], first["desired_goal"])

    def __call__(self, achieved: Tree, desired: Tree) -> tuple[Any, Any]:
        """(reward, terminated) of one pair of goals; or [M] of each, where `compute_reward` takes goals [M, ...].
        Raises EnvironmentFault where the environment raises."""
        try:
            reward = self._reward(achieved, desired, {})
            outcome = reward, self._ends(achieved, desired, np.shape(reward))
            if not np.isfinite(np.asarray(reward, np.float32)).all():
                raise ValueError(f"compute_reward returned {reward!r:.100}; expected finite numbers")
            return outcome
        except RAISED as problem:
            raise EnvironmentFault(
                f"{self._where.name}: the reward of a goal raised {explain_error(problem)}. Hindsight asks for rewards "
                "of stored goals in an environment of its own, which was reset once, with an empty info: compute them "
                "from the two goals alone."
            ) from cause_of(problem)

    def _ends(self, achieved: Tree, desired: Tree, shape: tuple[int, ...]) -> Any:
        if self._terminated is None:
            return np.zeros(shape, bool)
        ends = self._terminated(achieved, desired, {})
        if not shape or np.shape(ends) == shape:
            return ends
        # One answer for all pairs (a constant, or `bool(norm(...) < 0.5)`) is none for each.
        pairs = ((trees.rows(achieved, i), trees.rows(desired, i)) for i in range(shape[0]))
        return np.array([self._terminated(*pair, {}) for pair in pairs], bool)


def _method(env: gym.Env[Any, Any], name: str) -> Any:
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None
