"""What is wrong with an environment, each mistake with its fix in one line. For `etude check-env`."""

from __future__ import annotations

import importlib.util
import time
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

from etude.base import trees
from etude.base.errors import EnvironmentFault, EtudeError
from etude.base.spaces import Space, bounded, describe, is_float_image, parts
from etude.envs.actions import Actions, MultiAgentReward
from etude.envs.faults import RAISED, RESET, close_all, explain_closing, explain_error, explain_reset, explain_step
from etude.envs.functional import AsGymnasium, check_functional
from etude.envs.make import Finding, RandomActions, RandomActionsOfSeveral, make_simulator, make_single
from etude.envs.multi_agent import MultiAgentEnvironment
from etude.envs.native import restart_of
from etude.envs.observations import Observations, Precision, is_text
from etude.envs.registry import EnvironmentSource, EnvironmentSpec, resolve
from etude.envs.vector import Generators, statistics_in

STEPS = 10_000  # after which an episode counts as one that does not end
EPISODES = 3
SECONDS = 10.0


class _Findings(dict[str, Finding]):
    """The first finding of each name: the same mistake shows at every step."""

    def add(self, name: str, message: str | None, kind: Literal["mistake", "note"] = "mistake") -> None:
        """Nothing where there is no message."""
        if message is not None:
            self.setdefault(name, Finding(name, message, kind))

    def look(self, observation: Any, space: Space) -> None:
        """Add the first thing that is wrong with an observation."""
        if (wrong := _wrong_observation(observation, space)) is not None:
            self.add(*wrong)


def check_environment(env: EnvironmentSpec) -> list[Finding]:
    """The mistakes in an environment: [] where nothing was found. Raises nothing for a bad one, and always ends.

    It makes the environment, reads its spaces, resets it twice with one seed and takes random steps: three episodes, at
    most 10,000 steps or 10 seconds.
    """
    findings = _Findings()
    try:
        source = resolve(env)
        if source.single is None:
            simulator = make_simulator(source, 2, {})
            try:
                restart_of(simulator, source.name)
                Observations(simulator.single_observation_space)
                Actions(simulator.single_action_space)
            except EtudeError as problem:
                findings.add("autoreset", problem.with_options)
            finally:
                close_all([simulator], source.name)
        else:
            _check_single(source, findings)
    except EtudeError as problem:
        findings.add("making", problem.with_options)
    except RAISED as problem:  # the environment's own, from wherever it was called
        findings.add("exception", f"The environment raised {explain_error(problem)}. Mend it there.")
    return list(findings.values())


def _check_single(source: EnvironmentSource, findings: _Findings) -> None:
    env = make_single(source, {})
    try:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), gym.Space):
                fix = f"Set self.{name} in __init__ to a gymnasium.spaces.Space"
                findings.add(name, f"{name} is {getattr(env, name, None)!r}. {fix}.")
                return
        _check_spaces(env, findings)
        if isinstance(env.unwrapped, AsGymnasium) and importlib.util.find_spec("jax") is not None:
            check_functional(env.unwrapped.functional)
        _check_rendering(source, env, findings)
        wrapped = env
        while isinstance(wrapped, gym.Wrapper):
            if isinstance(wrapped, gym.wrappers.Autoreset):
                fix = "which hides last observations. Remove it: etude resets."
                findings.add("autoreset", f"It resets itself (the wrapper Autoreset), {fix}")
            wrapped = wrapped.env
        generators = Generators()
        first = _check_resets(env, findings)
        if first is not None:
            _check_episodes(env, findings)
            _check_history(env, first, generators, findings)
    finally:
        findings.add("close", explain_closing(env))


def _check_spaces(env: gym.Env[Any, Any], findings: _Findings) -> None:
    for check in (lambda: Observations(env.observation_space), lambda: Actions(env.action_space)):
        try:
            check()
        except EtudeError as problem:
            findings.add("space", problem.with_options)
    space = env.action_space
    if not bounded(space):
        text = f"The action space {space} is not bounded. Agents choose from [-1, 1]: give it finite bounds."
        findings.add("action bounds", text)
    elif isinstance(space, Box) and not np.allclose(space.low, -space.high):
        text = (
            f"The action space {space} is not symmetric. etude scales [-1, 1] to it; other libraries may not: declare "
        )
        findings.add("action bounds", text + "Box(-1, 1) and scale in step.", "note")
    if isinstance(space, Discrete | MultiDiscrete) and np.any(space.start != 0):
        text = (
            f"The actions of {space} start at {space.start}. etude counts from 0 and adds it; other libraries may not: "
        )
        findings.add("action start", text + "declare Discrete(n) and add the start in step.", "note")
    for path, space in _leaf_spaces(env.observation_space):
        if is_float_image(space):
            text = (
                f"The observation{path} is an image of {space.dtype}. Return uint8 from 0 to 255: Box(0, 255, shape, "
            )
            findings.add("float image", text + "np.uint8) takes a quarter of the memory; the network scales it.")


def _leaf_spaces(space: Space) -> list[tuple[str, Space]]:
    inner = [(f" {key!r}{path}", leaf) for key, part in parts(space) for path, leaf in _leaf_spaces(part)]
    return inner or [("", space)]


def _check_rendering(source: EnvironmentSource, env: gym.Env[Any, Any], findings: _Findings) -> None:
    modes = env.metadata.get("render_modes") or []
    own_render = type(env.unwrapped).render not in (gym.Env.render, MultiAgentEnvironment.render)
    if not modes and own_render:
        text = 'It has render() and no metadata: add metadata = {"render_modes": ["rgb_array"], "render_fps": 30}.'
        findings.add("render_mode", text)
    if modes and type(env.unwrapped).render is gym.Env.render:
        text = f"It declares the render modes {modes} and has no render(): write it, or leave them out of its metadata."
        findings.add("render", text)
    offscreen = [mode for mode in modes if mode in ("rgb_array", "ansi")]
    if not offscreen:
        return
    fix = "def __init__(self, render_mode=None): self.render_mode = render_mode"
    try:
        seen = make_single(source, {"render_mode": offscreen[0]})
    except EnvironmentFault as problem:
        if not isinstance(problem.__cause__, TypeError) or "render_mode" not in str(problem):
            raise
        findings.add("render_mode", f"It declares the render modes {modes} and takes no render_mode: {fix}.")
        return
    if seen.render_mode != offscreen[0]:
        text = f"Made with render_mode={offscreen[0]!r}, its render_mode is {seen.render_mode!r}: {fix}."
        findings.add("render_mode", text)
    findings.add("close", explain_closing(seen))


def _reset(env: gym.Env[Any, Any], seed: int, findings: _Findings) -> tuple[Any, Any]:
    """The observation and the info of a reset."""
    result = env.reset(seed=seed)
    wrong = explain_reset(result)
    if wrong is None:
        return result
    findings.add("reset", f"{wrong}.")
    return (result[0] if isinstance(result, tuple) and result else result), {}


def _check_resets(env: gym.Env[Any, Any], findings: _Findings) -> list[np.ndarray] | None:
    """An episode with a seed, which should repeat itself; None where there can be none."""
    try:
        first, again = _trace(env, findings), _trace(env, findings)
    except TypeError as problem:
        if "unexpected keyword" not in str(problem):
            raise
        findings.add("seed", f"{problem}. {RESET}.")
        return None
    if not statistics_in(env) and not _same(first, again):
        text = "Two resets with one seed and the same actions gave different observations. Begin reset with "
        findings.add("seed", text + "super().reset(seed=seed) and draw from self.np_random only.")
    return first


def _check_history(
    env: gym.Env[Any, Any], first: list[np.ndarray], generators: Generators, findings: _Findings
) -> None:
    """Whether the episode repeats itself after others, and draws from nothing but its own generator."""
    for text in statistics_in(env):
        findings.add("history", text, "note")
    if "seed" in findings:
        return
    if not _same(first, _trace(env, findings)):
        text = "After other episodes, one with the same seed and actions gave different observations: something is "
        fix = (
            "kept from episode to episode, such as a curriculum, and is in no checkpoint. Let it follow from the seed."
        )
        findings.add("history", text + fix, "note")
    findings.add("global generator", generators.note(), "note")


def _same(first: list[np.ndarray], again: list[np.ndarray]) -> bool:
    """Whether two traces are equal. NaN, which differs from itself, is found elsewhere."""
    finite = all(leaf.dtype.kind != "f" or np.isfinite(leaf).all() for leaf in first)
    return not finite or len(first) == len(again) and all(map(np.array_equal, first, again))


def _trace(env: gym.Env[Any, Any], findings: _Findings, steps: int = 20) -> list[np.ndarray]:
    """The leaves of the observations after a reset with one seed and a few actions, as copies."""
    choose = random_actions(env, 1)
    observation, info = _reset(env, 1, findings)
    seen = _copies(observation)
    for _ in range(steps):
        result = env.step(choose(observation, info))
        if not isinstance(result, tuple) or len(result) != 5:
            break
        observation, info = result[0], result[4]
        seen += _copies(observation)
        if np.any(result[2]) or np.any(result[3]):
            break
    return seen


def _copies(observation: Any) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in trees.leaves(observation)]


def _check_episodes(env: gym.Env[Any, Any], findings: _Findings) -> None:
    """Random steps, each checked, over a few episodes."""
    until, ended, choose = time.monotonic() + SECONDS, 0, random_actions(env, 2)
    precision = [(path, space, Precision(space)) for path, space in _leaf_spaces(env.observation_space)]
    kept, info = _reset(env, 2, findings)
    findings.look(kept, env.observation_space)
    for _ in range(STEPS):
        copied, action = _copies(kept), choose(kept, info)
        findings.add("mask", choose.wrong)
        result = env.step(action)
        if not isinstance(result, tuple) or len(result) != 5:
            findings.add("step", f"{explain_step(result)}.")
            return
        for leaf, copy in zip(trees.leaves(kept), copied, strict=False):
            if isinstance(leaf, np.ndarray) and not np.array_equal(leaf, copy, equal_nan=leaf.dtype.kind == "f"):
                text = "An observation changed after it was returned. Return a copy of what step changes: "
                findings.add("copy", f"{text}self.state.copy().")
        kept, info = result[0], result[4]
        observation, reward, terminated, truncated, info = result
        findings.look(observation, env.observation_space)
        for number in reward.each.tolist() if isinstance(reward, MultiAgentReward) else [reward]:
            findings.add("reward", _wrong_reward(number))
        for name, value in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(value, bool | np.bool_):
                kind = type(value).__name__
                findings.add("done", f"{name} is {value!r}, a {kind}. Return a bool: bool({name}).")
        if not isinstance(info, dict):
            findings.add("info", f"info is a {type(info).__name__}. Return a dict, {{}} where there is nothing to say.")
        elif "final_obs" in info or "final_observation" in info:
            text = "info holds a final observation: it resets itself, which hides last observations. Leave resets to "
            findings.add("autoreset", text + "etude.")
        for (path, space, own), leaf in zip(precision, _copies(kept), strict=False):
            if own.looks and leaf.shape == space.shape and leaf.dtype.kind in "fiu":
                findings.add("precision", own.look(leaf[None], f"The observation{path}"))
        if np.any(result[2]) or np.any(result[3]):
            ended += 1
            if ended == EPISODES:
                return
            kept, info = _reset(env, 2 + ended, findings)
            findings.look(kept, env.observation_space)
        if time.monotonic() > until:
            break
    if not ended:
        text = f"No episode ended in {STEPS} random steps or {SECONDS:.0f} seconds. If none ever does, limit its time: "
        findings.add("endless", text + "gymnasium.wrappers.TimeLimit(env, 1000), which truncates.", "note")


def _wrong_observation(value: Any, space: Space, key: str = "") -> tuple[str, str] | None:
    """The first thing that is wrong with an observation: the name of the mistake, and the message."""
    what = f"The observation {key!r}" if key else "The observation"
    if isinstance(space, Dict):
        if not isinstance(value, dict) or set(value) != set(space.spaces):
            got = f"the keys {sorted(value)}" if isinstance(value, dict) else type(value).__name__
            return "structure", f"{what} is {got}. Return a dict with the keys {sorted(space.spaces)}."
    elif isinstance(space, Tuple):
        if not isinstance(value, tuple) or len(value) != len(space.spaces):
            return "structure", f"{what} is {type(value).__name__}. Return a tuple of {len(space.spaces)}."
    else:
        return _wrong_leaf(value, space, what)
    checks = (
        _wrong_observation(value[name], part, f"{key}.{name}" if key else str(name)) for name, part in parts(space)
    )
    return next((found for found in checks if found is not None), None)


def _wrong_leaf(value: Any, space: Space, what: str) -> tuple[str, str] | None:
    if is_text(space):
        if not isinstance(value, str):
            return "dtype", f"{what} is a {type(value).__name__}, its space {space}. Return a text."
        text = f"{what} is {value[:80]!r}, outside of {space}. Widen the space, or return another text."
        return None if space.contains(value) else ("bounds", text)
    if not isinstance(value, np.ndarray | np.generic | int):
        return "dtype", f"{what} is a {type(value).__name__}. Return np.array(..., dtype=np.{space.dtype})."
    array = np.asarray(value)
    if array.shape != space.shape:
        fix = "Make what you return and observation_space agree"
        return "shape", f"{what} has shape {array.shape}, its space {describe(space)}. {fix}."
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        return "finite", f"{what} holds {_first(array, ~np.isfinite(array))}. Every value must be finite."
    if array.dtype != space.dtype and not isinstance(value, int):
        return "dtype", f"{what} is {array.dtype}, its space {space.dtype}. Return it with .astype(np.{space.dtype})."
    if isinstance(space, Box) and not space.contains(array):
        outside = (array < space.low) | (array > space.high)
        bounds = f"{_first(space.low, outside)} to {_first(space.high, outside)}"
        fix = "Widen observation_space, or clip what you return"
        return "bounds", f"{what} holds {_first(array, outside)} where its space has {bounds}. {fix}."
    if not isinstance(space, Box) and not space.contains(value):
        return "bounds", f"{what} is {value}, outside {describe(space)}. Make the space larger."
    return None


def _first(array: np.ndarray, where: np.ndarray) -> Any:
    return array[where].flat[0]


def _wrong_reward(reward: Any) -> str | None:
    """What is wrong with a reward, which is one finite number."""
    if isinstance(reward, np.ndarray) or not isinstance(reward, int | float | np.number | np.bool_):
        kind = f"an array of shape {reward.shape}" if isinstance(reward, np.ndarray) else f"a {type(reward).__name__}"
        return f"The reward is {kind}. Return one number: float(reward)."
    if not np.isfinite(reward):
        return f"The reward is {reward}. It must be finite: guard what can divide by zero or overflow."
    return None


def random_actions(env: gym.Env[Any, Any], seed: int) -> RandomActions | RandomActionsOfSeveral:
    """What draws actions for an environment, from what it returned last."""
    if isinstance(env, MultiAgentEnvironment):
        assert env.spaces.agents is not None
        return RandomActionsOfSeveral(env.spaces.agents, seed)
    return RandomActions(env.action_space, seed)
