"""One environment that the user made, of any supported kind, behind Gymnasium's interface."""

from __future__ import annotations

import copy
from typing import Any

import cloudpickle
import gymnasium as gym
from gymnasium.vector import VectorEnv

from etude.base.errors import ConfigError
from etude.envs.actions import ActionScaling
from etude.envs.pettingzoo import ParallelEnvironment, takes_turns
from etude.envs.rewards import MultiAgentRewards, Rewards, ScalarRewards
from etude.solo.environments.multi_agent import MultiAgentSpaces, ParallelAgentsEnvironment, RewardDone
from etude.solo.environments.old_gym import OldGymEnvironment, Steppable, note, reasons

Environment = Steppable | ParallelEnvironment
EXPECTED = (
    "a Gymnasium id, 'module:callable', an environment, a callable that makes one, or a list of these with one for "
    "each process"
)


class EnvironmentInstance:
    """One environment that the user made. Sent to workers by cloudpickle."""

    def __init__(self, env: Any):
        self.env: Any = env
        self.name: str = _name(env)

    def copied(self) -> Any:
        """Another one like it. Raises ConfigError where it can be neither copied nor pickled."""
        try:
            return copy.deepcopy(self.env)
        except Exception:  # whatever its parts raise; perhaps it pickles
            return cloudpickle.loads(self._pickled())

    def _pickled(self) -> bytes:
        try:
            return cloudpickle.dumps(self.env)
        except Exception as problem:
            raise ConfigError(
                f"{self.name} can be neither copied nor sent to another process ({problem}). Give what makes it: a "
                "Gymnasium id, or a callable such as lambda: MyEnvironment()."
            ) from problem

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "env": self._pickled()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.name, self.env = state["name"], cloudpickle.loads(state["env"])


class WrappedEnvironment:
    """One environment behind Gymnasium's interface, its agents if it has several, and the layout of its rewards."""

    def __init__(self, env: Any, name: str, reward_done: RewardDone | None, scaling: ActionScaling):
        self.agents: MultiAgentSpaces | None = None
        self.rewards: Rewards = ScalarRewards()
        self.notes: tuple[str, ...] = ()
        check_kind(env, name)
        if isinstance(env, ParallelEnvironment):
            joint = ParallelAgentsEnvironment(env, reward_done, scaling)
            self.env: gym.Env[Any, Any] = joint
            self.agents, self.rewards = joint.agents, MultiAgentRewards(joint.agents.names)
            return
        if reward_done is not None:
            raise ConfigError(
                f"A function for the rewards and dones of several agents was given, and {name} has one agent; expected "
                "a PettingZoo parallel environment."
            )
        found = reasons(env)
        self.env = env
        if found:
            old = OldGymEnvironment(env, name)
            self.env, self.notes = old, (note(_name(env), found, old.seeded),)


class KeptOpen(gym.Env[Any, Any]):
    """An environment that the user closes. Costs no call at a step."""

    def __init__(self, env: gym.Env[Any, Any]):
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.reset, self.step, self.render = env.reset, env.step, env.render  # type: ignore[method-assign]

    def close(self) -> None:
        """Leave it open."""


def check_kind(env: Any, name: str) -> None:
    """Raise ConfigError for what is no single environment whose agents act at once."""
    kind = type(env).__qualname__
    if takes_turns(env):
        raise ConfigError(
            f"{name} lets its agents act in turns; expected a parallel environment: its parallel_env(), or "
            "pettingzoo.utils.conversions.aec_to_parallel(env)."
        )
    if isinstance(env, VectorEnv):
        raise ConfigError(
            f"{name} is a {kind} of {env.num_envs} environments; expected a single one: etude steps as many of them as "
            "it is asked for."
        )
    if not isinstance(env, Environment):
        missing = [part for part in ("reset", "step", "observation_space", "action_space") if part not in dir(env)]
        without = f" without {', '.join(missing)}" if missing else ""
        raise ConfigError(f"{name} is a {kind}{without}; expected {EXPECTED}.")


def _name(env: Any) -> str:
    if isinstance(env, gym.Env) and env.spec is not None:
        return env.spec.id
    metadata = getattr(env, "metadata", None) or {}
    return str(metadata.get("name", type(getattr(env, "unwrapped", env)).__name__))
