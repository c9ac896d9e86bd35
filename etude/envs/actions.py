"""Actions of an agent, turned into those that n environments expect; and the rewards for them, as one array, with what
they count for in the return of an episode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.base import trees
from etude.base.errors import NumericalError, SpaceError
from etude.base.spaces import (
    ActionLayout,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    describe,
    from_zero,
    leaves,
    parts,
    scale,
)
from etude.base.trees import Tree
from etude.envs.observations import Finite


class NormalisedActions:
    """The agent chooses from the canonical space; see `base.spaces.scale`."""

    def __init__(self, space: Box):
        self._raw = RawActions(space)
        self.space: Box
        self._middle, self._half, self.space = scale(space)

    def convert(self, action: np.ndarray) -> np.ndarray:
        """Legal actions [n, ...] in the dtype of the environment. Raises NumericalError for NaN."""
        self._raw.check(action)
        return self.converted(action)

    def converted(self, action: Any) -> Any:
        """The same of finite ones, over `ops`."""
        return self._raw.converted(self._middle + self._half * ops.clip(action, self.space.low, self.space.high))


class RawActions:
    """The agent chooses in the units of the environment: actions are clipped to its bounds and cast to its dtype."""

    def __init__(self, space: Box):
        self._low, self._high, self._dtype = space.low, space.high, space.dtype
        self._cast_to = space.dtype.name  # which takes NumPy microseconds to find
        self._finite = Finite()
        with np.errstate(over="ignore"):  # a bound beyond float32 is no bound
            self.space: Box = Box(space.low.astype(np.float32), space.high.astype(np.float32), space.shape, np.float32)

    def convert(self, action: np.ndarray) -> np.ndarray:
        """See `NormalisedActions`."""
        self.check(action)
        return self.converted(action)

    def check(self, action: np.ndarray) -> None:
        """Raise NumericalError for what is not finite."""
        if not self._finite(action):
            position = int(np.flatnonzero(~np.isfinite(action.reshape(len(action), -1)).all(1))[0])
            raise NumericalError(
                f"The agent chose the action {action[position]} for environment {position}: not finite."
            )

    def converted(self, action: Any) -> Any:
        """See `NormalisedActions`. Whole numbers are rounded to the nearest."""
        if self._dtype.kind != "f":
            action = ops.rint(ops.clip(action, self._low, self._high))  # a cast of what does not fit would wrap around
        # Rounding must not leave the bounds.
        return ops.clip(ops.cast(action, self._cast_to), self._low, self._high)


ActionScaling = Callable[[Box], NormalisedActions | RawActions]  # from the environment's space


class _IntegerActions:
    """Discrete, MultiDiscrete and MultiBinary actions: counted from `start`, in the dtype of the space."""

    def __init__(self, space: Discrete | MultiDiscrete | MultiBinary):
        self._start = None if isinstance(space, MultiBinary) or np.all(space.start == 0) else space.start
        self._cast_to = np.dtype(space.dtype).name
        self.space = from_zero(space)

    def convert(self, action: np.ndarray) -> np.ndarray:
        return np.array(action if self._start is None else action + self._start, self._cast_to)

    def converted(self, action: Any) -> Any:
        return ops.cast(action if self._start is None else action + self._start, self._cast_to)


class Actions:
    """Turns the actions of an agent into those of n environments. `scaling`: those of Box actions."""

    def __init__(self, space: Space, scaling: ActionScaling = NormalisedActions):
        self.source: Space = space  # as the environment has it
        self._kinds = [_kind(leaf, space, scaling) for _, leaf in leaves(space)]
        self._layout = ActionLayout(space, [kind.space for kind in self._kinds])
        # A row of a Box without axes is to be an array, too, and of a Discrete space a number.
        self._bare = [isinstance(leaf, Box) and leaf.shape == () for _, leaf in leaves(space)]
        self.space: Any = self._layout.space
        self._shape = tuple(self.space.shape or ())
        self.rows: bool = not parts(space) and not self._bare[0]  # whether rows of what `convert` returns are actions
        self._plain = self._kinds[0] if self.rows and self._kinds[0].space.shape == self._shape else None

    def convert(self, action: np.ndarray) -> Tree:
        """Legal actions [n, ...] in new arrays, in the shapes of the environment's space. Raises SpaceError for a wrong
        shape, NumericalError for NaN."""
        if action.shape[1:] != self._shape:
            raise SpaceError(f"An action for {describe(self.space)} has shape {self._shape}; got {action.shape[1:]}.")
        if self._plain is not None:  # there is nothing to lay out
            return self._plain.convert(action)
        each = zip(self._kinds, self._layout.split(action), strict=True)
        return self._layout.tree([kind.convert(own) for kind, own in each])

    def converted(self, action: Any) -> list[Any]:
        """The leaves of what `convert` returns for legal actions, over `ops`."""
        return [kind.converted(own) for kind, own in zip(self._kinds, self._layout.split(action), strict=True)]

    def each(self, action: np.ndarray) -> Any:
        """The same as `convert`, one by one: a sequence of n actions of the environment."""
        if self.rows:
            return self.convert(action)
        found = list(zip(trees.leaves(self.convert(action)), self._bare, strict=True))
        rows = [[own[i, ...] if bare else own[i] for own, bare in found] for i in range(len(action))]
        return [self._layout.tree(row) for row in rows]


def _kind(leaf: Space, space: Space, scaling: ActionScaling) -> NormalisedActions | RawActions | _IntegerActions:
    empty = 0 in (leaf.shape or ())
    if isinstance(leaf, Box) and not empty:
        return scaling(leaf)
    if isinstance(leaf, Discrete | MultiDiscrete | MultiBinary) and not empty:
        return _IntegerActions(leaf)
    raise SpaceError(
        f"etude cannot use the action space {describe(space)}; expected Box, Discrete, MultiDiscrete, MultiBinary, or "
        "Dict and Tuple of these. Flatten it into one of these with a gymnasium.ActionWrapper."
    )


_NOTHING: np.ndarray = np.empty(0)  # for what cannot be put in one array; it has no right shape
TEXTS = frozenset((str, bytes, np.str_, np.bytes_))  # NumPy makes numbers of them


class WrongValue(Exception):
    """One environment returned what is no reward, or no number in an `info` that is kept. position: of the environment
    among those that were stepped."""

    def __init__(self, position: int, message: str):
        super().__init__(message)
        self.position = position


class Rewards:
    """What the rewards of one kind of environment look like: by default one number from each, which is also what it
    counts for."""

    shape: tuple[int, ...] = ()  # of those of one environment: () or (agents,)

    def __init__(self) -> None:
        self._finite = Finite()

    def gather(self, rewards: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """(rewards [n] or [n, agents], what they count for in the returns of episodes [n]), both float32; of single
        numbers, one array twice. Raises WrongValue."""
        try:
            numbers = np.array(rewards, np.float32) if TEXTS.isdisjoint(map(type, rewards)) else _NOTHING
        except (TypeError, ValueError):
            numbers = _NOTHING
        if numbers.shape != (len(rewards),) or not self._finite(numbers):
            self._raise_first(rewards)
        return numbers, numbers

    def explain(self, reward: Any) -> str | None:
        """Why this is no reward; None where it is one."""
        if isinstance(reward, float) and abs(reward) < 1e38:
            return None
        try:
            number = np.array(reward, np.float32)
        except (TypeError, ValueError):
            number = _NOTHING
        if number.shape != () or reward is None or type(reward) in TEXTS:
            kind = f"shape {number.shape}" if isinstance(reward, np.ndarray) else type(reward).__name__
            fix = "float(reward)"
            if number.size > 1:
                weighed = f"lambda reward: float(reward @ {[1.0] * len(number)})"
                fix = f"weigh them, gymnasium.wrappers.TransformReward(env, {weighed})"
            return f"the reward is {str(reward)[:80]} ({kind}); expected one number: {fix}"
        if not np.isfinite(number):
            return f"the reward is {reward}; expected a finite float32 number"
        return None

    def _raise_first(self, rewards: list[Any]) -> None:
        for position, reward in enumerate(rewards):
            message = self.explain(reward)
            if message is not None:
                raise WrongValue(position, message)


class MultiAgentReward(NamedTuple):
    """What several agents earned in one step."""

    each: np.ndarray  # [agents] float32
    score: float  # what it counts for in the return of the episode


class MultiAgentRewards(Rewards):
    """A MultiAgentReward from each environment."""

    def __init__(self, names: tuple[str, ...]):
        self._names = names
        self.shape = (len(names),)

    def gather(self, rewards: list[MultiAgentReward]) -> tuple[np.ndarray, np.ndarray]:
        """See `Rewards`."""
        each = np.array([reward.each for reward in rewards], np.float32)
        scores = np.array([reward.score for reward in rewards], np.float32)
        if not (np.isfinite(each).all() and np.isfinite(scores).all()):
            self._raise_first(rewards)
        return each, scores

    def explain(self, reward: MultiAgentReward) -> str | None:
        """See `Rewards`."""
        for name, number in zip(self._names, reward.each, strict=True):
            if not np.isfinite(number):
                return f"the reward of agent {name!r} is {number}; expected a finite float32 number"
        if not np.isfinite(np.float32(reward.score)):
            return f"the reward of all agents together is {reward.score}; expected a finite float32 number"
        return None
