"""The first signs that an episode does not follow from its seed and its actions alone: it could not be replayed, and
would differ with another number of workers."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

CALLS = 4  # of `reset` and of `step` that are watched

_IN_PLACE_OF = {
    gym.wrappers.NormalizeObservation: "normalize_observation=True",
    gym.wrappers.NormalizeReward: "normalize_reward=True",
}
_CONSEQUENCE = (
    "A resumed run, or one with another number of workers, gets other episodes from the same seeds without noticing"
)


def statistics_in(env: Any) -> list[str]:
    """A note for every wrapper whose running statistics go on from episode to episode."""
    found = []
    while isinstance(env, gym.Wrapper):
        for kind, setting in _IN_PLACE_OF.items():
            if isinstance(env, kind) and env.update_running_mean:  # type: ignore[attr-defined]
                found.append(
                    f"The wrapper {kind.__name__} keeps running statistics from episode to episode, which are in no "
                    f"checkpoint. {_CONSEQUENCE}. Leave it out and set {setting} in the algorithm's config."
                )
        env = env.env
    return found


class Generators:
    """Where the global generators of Python and NumPy are, to be compared with later."""

    def __init__(self) -> None:
        self._before = _states()

    def note(self) -> str | None:
        """What to tell where they are elsewhere than when this was made."""
        moved = [name for name, state in _states().items() if state != self._before[name]]
        if not moved:
            return None
        return (
            f"It draws from or seeds a global generator ({', '.join(moved)}), which all environments of a process "
            f"share. {_CONSEQUENCE}. Draw from self.np_random, which super().reset(seed=seed) seeds."
        )


class FirstCalls:
    """A function of an environment, with an eye on the global generators at its first calls.

    note: told of what is seen. Where the function stands in `functions`, at `place`, it stands alone again afterwards.
    """

    def __init__(self, functions: list[Callable[..., Any]], place: int, note: Callable[[str], None]):
        self._functions, self._place, self._note = functions, place, note
        self._function, self._left = functions[place], CALLS
        functions[place] = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        self._left -= 1
        if not self._left:
            self._functions[self._place] = self._function
        generators = Generators()
        result = self._function(*arguments, **keywords)
        seen = generators.note()
        if seen is not None:
            self._note(seen)
        return result


def _states() -> dict[str, Any]:
    # Only looked at, never drawn from.
    return {"random": random.getstate(), "numpy.random": pickle.dumps(np.random.get_state(legacy=False))}  # noqa: NPY002
