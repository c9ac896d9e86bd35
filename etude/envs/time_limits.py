"""Time limits of environments: those that they declare, and one for those that may never end an episode."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

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
