"""What is wrong with an environment, each mistake with its fix in one line. For `etude check-env`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space

from etude import trees
from etude.envs.actions import Actions
from etude.envs.adapter import explain_reset, explain_step
from etude.envs.make import make_simulator, make_single
from etude.envs.native import restart_of
from etude.envs.observations import Observations
from etude.envs.registry import EnvironmentSpec, Source, resolve
from etude.envs.rewards import TeamReward
from etude.envs.several import SeveralEnvironment
from etude.envs.values import Found, check_copied, check_flag, check_observation, check_reward
from etude.errors import EtudeError
from etude.spaces import parts

STEPS = 10_000  # after which an episode counts as one that does not end
EPISODES = 3
SECONDS = 10.0


@dataclass(frozen=True)
class Finding:
    """A mistake, or a note on what works and could surprise. `message` says what was found and how to mend it."""

    name: str
    message: str
    kind: Literal["mistake", "note"] = "mistake"


class _Findings:
    """The first finding of each name: the same mistake shows at every step."""

    def __init__(self) -> None:
        self.by_name: dict[str, Finding] = {}

    def add(self, found: Found | None, kind: Literal["mistake", "note"] = "mistake") -> None:
        if found is not None:
            self.by_name.setdefault(found.name, Finding(found.name, found.message, kind))


def check_environment(env: EnvironmentSpec) -> list[Finding]:
    """The mistakes in an environment: [] where nothing was found. Raises nothing for a bad one, and always ends.

    It makes the environment, reads its spaces, resets it twice with one seed and takes random steps: three episodes, at
    most 10,000 steps or 10 seconds.
    """
    findings = _Findings()
    try:
        source = resolve(env)
        if source.single is None:
            _check_simulator(source, findings)
        else:
            _check_single(source, findings)
    except EtudeError as problem:
        findings.add(Found("making", str(problem)))
    except Exception as problem:  # the environment's own, from wherever it was called
        findings.add(_raised(problem))
    return list(findings.by_name.values())


def _raised(problem: Exception) -> Found:
    frame = problem.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    at = f" ({frame.tb_frame.f_code.co_filename}:{frame.tb_lineno})" if frame is not None else ""
    return Found("exception", f"The environment raised {type(problem).__name__}: {problem}{at}. Mend it there.")


def _check_simulator(source: Source, findings: _Findings) -> None:
    simulator = make_simulator(source, 2, {})
    try:
        restart_of(simulator, source.name)
        Observations(simulator.single_observation_space, {})
        Actions(simulator.single_action_space)
    except EtudeError as problem:
        findings.add(Found("autoreset", str(problem)))
    finally:
        simulator.close()


def _check_single(source: Source, findings: _Findings) -> None:
    env = make_single(source, {})
    try:
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(env, name, None), Space):
                fix = f"Set self.{name} in __init__ to a gymnasium.spaces.Space"
                findings.add(Found(name, f"{name} is {getattr(env, name, None)!r}. {fix}."))
                return
        _check_spaces(env, findings)
        _check_rendering(source, env, findings)
        _check_wrappers(env, findings)
        if _check_resets(env, findings):
            _check_episodes(env, findings)
    finally:
        env.close()


def _check_spaces(env: gym.Env, findings: _Findings) -> None:
    for check in (lambda: Observations(env.observation_space, {}), lambda: Actions(env.action_space)):
        try:
            check()
        except EtudeError as problem:
            findings.add(Found("space", str(problem)))
    _check_action_space(env.action_space, findings)
    for path, space in _leaf_spaces(env.observation_space):
        if isinstance(space, Box) and space.dtype.kind == "f" and len(space.shape) == 3 and min(space.shape[:2]) >= 8:
            text = (
                f"The observation{path} is an image of {space.dtype}. Return uint8 from 0 to 255: Box(0, 255, shape, "
            )
            findings.add(Found("float image", text + "np.uint8) takes a quarter of the memory; the network scales it."))


def _check_action_space(space: Space, findings: _Findings) -> None:
    if isinstance(space, Box) and not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
        text = f"The action space {space} is not bounded. Agents choose from [-1, 1]: give it finite bounds."
        findings.add(Found("action bounds", text))
    elif isinstance(space, Box) and not np.allclose(space.low, -space.high):
        text = (
            f"The action space {space} is not symmetric. etude scales [-1, 1] to it; other libraries may not: declare "
        )
        findings.add(Found("action bounds", text + "Box(-1, 1) and scale in step."), "note")
    if isinstance(space, Discrete | MultiDiscrete) and np.any(space.start != 0):
        text = (
            f"The actions of {space} start at {space.start}. etude counts from 0 and adds it; other libraries may not: "
        )
        findings.add(Found("action start", text + "declare Discrete(n) and add the start in step."), "note")


def _leaf_spaces(space: Space) -> list[tuple[str, Space]]:
    inner = [(f" {key!r}{path}", leaf) for key, part in parts(space) for path, leaf in _leaf_spaces(part)]
    return inner or [("", space)]


def _check_rendering(source: Source, env: gym.Env, findings: _Findings) -> None:
    modes = env.metadata.get("render_modes") or []
    own_render = type(env.unwrapped).render not in (gym.Env.render, SeveralEnvironment.render)
    if not modes and own_render:
        text = 'It has render() and no metadata: add metadata = {"render_modes": ["rgb_array"], "render_fps": 30}.'
        findings.add(Found("render_mode", text))
    offscreen = [mode for mode in modes if mode in ("rgb_array", "ansi")]
    if not offscreen:
        return
    fix = "def __init__(self, render_mode=None): self.render_mode = render_mode"
    try:
        seen = make_single(source, {"render_mode": offscreen[0]})
    except TypeError as problem:
        if "render_mode" not in str(problem):
            raise
        findings.add(Found("render_mode", f"It declares the render modes {modes} and takes no render_mode: {fix}."))
        return
    if seen.render_mode != offscreen[0]:
        text = f"Made with render_mode={offscreen[0]!r}, its render_mode is {seen.render_mode!r}: {fix}."
        findings.add(Found("render_mode", text))
    seen.close()


def _check_wrappers(env: gym.Env, findings: _Findings) -> None:
    while isinstance(env, gym.Wrapper):
        if isinstance(env, gym.wrappers.Autoreset):
            text = "It resets itself (the wrapper Autoreset), which hides last observations. Remove it: etude resets."
            findings.add(Found("autoreset", text))
        env = env.env


def _reset(env: gym.Env, seed: int, findings: _Findings) -> Any:
    """The observation of a reset."""
    result = env.reset(seed=seed)
    wrong = explain_reset(result)
    if wrong is None:
        return result[0]
    findings.add(Found("reset", f"{wrong}."))
    return result[0] if isinstance(result, tuple) and result else result


def _check_resets(env: gym.Env, findings: _Findings) -> bool:
    """Whether it can be reset with a seed, which should repeat an episode."""
    try:
        first, again = _trace(env, findings), _trace(env, findings)
    except TypeError as problem:
        if "unexpected keyword" not in str(problem):
            raise
        findings.add(Found("seed", f"{problem}. Expected: def reset(self, *, seed=None, options=None)."))
        return False
    same = len(first) == len(again) and all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    finite = all(leaf.dtype.kind != "f" or np.isfinite(leaf).all() for leaf in first)  # NaN differs from itself
    if finite and not same:
        text = "Two resets with one seed and the same actions gave different observations. Begin reset with "
        findings.add(Found("seed", text + "super().reset(seed=seed) and draw from self.np_random only."))
    return True


def _trace(env: gym.Env, findings: _Findings, steps: int = 20) -> list[np.ndarray]:
    """The leaves of the observations after a reset with one seed and a few actions, as copies."""
    env.action_space.seed(1)
    seen = _copies(_reset(env, 1, findings))
    for _ in range(steps):
        result = env.step(env.action_space.sample())
        if not isinstance(result, tuple) or len(result) != 5:
            break
        seen += _copies(result[0])
        if np.any(result[2]) or np.any(result[3]):
            break
    return seen


def _copies(observation: Any) -> list[np.ndarray]:
    return [np.array(leaf) for leaf in trees.leaves(observation)]


def _check_episodes(env: gym.Env, findings: _Findings) -> None:
    """Random steps, each checked, over a few episodes."""
    until, ended = time.monotonic() + SECONDS, 0
    kept = _reset(env, 2, findings)
    findings.add(check_observation(kept, env.observation_space))
    for _ in range(STEPS):
        copied = _copies(kept)
        result = env.step(env.action_space.sample())
        if not isinstance(result, tuple) or len(result) != 5:
            findings.add(Found("step", f"{explain_step(result)}."))
            return
        for leaf, copy in zip(trees.leaves(kept), copied, strict=False):
            findings.add(check_copied(leaf, copy))
        kept = result[0]
        _check_step(result, env, findings)
        if np.any(result[2]) or np.any(result[3]):
            ended += 1
            if ended == EPISODES:
                return
            kept = _reset(env, 2 + ended, findings)
            findings.add(check_observation(kept, env.observation_space))
        if time.monotonic() > until:
            break
    if not ended:
        text = f"No episode ended in {STEPS} random steps or {SECONDS:.0f} seconds. If none ever does, limit its time: "
        findings.add(Found("endless", text + "gymnasium.wrappers.TimeLimit(env, 1000), which truncates."), "note")


def _check_step(result: tuple, env: gym.Env, findings: _Findings) -> None:
    observation, reward, terminated, truncated, info = result
    findings.add(check_observation(observation, env.observation_space))
    for number in reward.each.tolist() if isinstance(reward, TeamReward) else [reward]:
        findings.add(check_reward(number))
    findings.add(check_flag("terminated", terminated))
    findings.add(check_flag("truncated", truncated))
    if not isinstance(info, dict):
        findings.add(
            Found("info", f"info is a {type(info).__name__}. Return a dict, {{}} where there is nothing to say.")
        )
    elif "final_obs" in info or "final_observation" in info:
        text = "info holds a final observation: it resets itself, which hides last observations. Leave resets to etude."
        findings.add(Found("autoreset", text))
