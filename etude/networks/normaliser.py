"""Normalisation of observations by running moments: part of the agent, so that it is saved and shipped with the
weights and frozen where the agent is only evaluated."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from etude import ops
from etude.base.checks import LARGEST_SUM, Stored
from etude.base.spaces import Box, Space
from etude.base.trees import Tree
from etude.networks.encoding import Path, at, leaves, replaced

CLIP = 10.0  # standard deviations, as in Stable-Baselines3 and the original OpenAI baselines


class NormalisedPart(NamedTuple):
    """A part of the observations that is normalised."""

    name: str
    path: Path
    shape: tuple[int, ...]


def normalised_parts(space: Space) -> list[NormalisedPart]:
    """The parts that are Boxes of floats. Images, choices and masks stay as they are."""
    return [
        NormalisedPart(".".join(str(key) for key in path) or "all", path, part.shape)
        for path, part in leaves(space)
        if isinstance(part, Box) and np.issubdtype(part.dtype, np.floating)
    ]


class Moments(NamedTuple):
    """Number, mean and variance of what was seen so far, in float64."""

    seen: float  # how many
    mean: Any
    variance: Any

    def merged(self, x: np.ndarray) -> Moments:
        """With [T, N, ...] more values. Chan, Golub & LeVeque 1983, doi:10.1080/00031305.1983.10483115."""
        n = float(x.shape[0] * x.shape[1])
        if not n:
            return self
        total, delta = self.seen + n, x.mean((0, 1), dtype=np.float64) - self.mean
        squares = self.variance * self.seen + x.var((0, 1), dtype=np.float64) * n
        variance = (squares + delta**2 * self.seen * n / total) / total
        return Moments(total, self.mean + delta * n / total, variance)

    @property
    def scale(self) -> Any:
        """The reciprocal standard deviation."""
        return 1.0 / np.sqrt(self.variance + 1e-8)


def _check_moments(saved: Stored, shape: tuple[int, ...]) -> None:
    """Raise CheckpointError where this is not what `Moments` of this shape were saved as."""
    held = saved.fields(Moments._fields)
    held["seen"].number(0)
    for name, low in (("mean", None), ("variance", 0)):
        if shape:
            held[name].array(np.float64, shape, low)
        else:
            held[name].number(-LARGEST_SUM if low is None else low)


class RunningMoments:
    """The moments of every normalised part of the observations."""

    def __init__(self, space: Space):
        self.parts: list[NormalisedPart] = normalised_parts(space)
        self.moments: dict[str, Moments] = {
            name: Moments(0.0, np.zeros(shape), np.ones(shape)) for name, _, shape in self.parts
        }

    def update(self, observation: Tree, rows: Mapping[Path, np.ndarray] | None = None) -> None:
        """Take in observations [T, N, ...]. rows: where those at these places count, [T, N] bool; elsewhere all do."""
        for name, path, _ in self.parts:
            x, own = at(observation, path), None if rows is None else rows.get(path[:2])
            self.moments[name] = self.moments[name].merged(x if own is None or own.all() else x[own][None])

    def values(self) -> dict[str, np.ndarray]:
        """What the network part of the normaliser takes, float32."""
        means = {f"{name}.mean": moments.mean.astype(np.float32) for name, moments in self.moments.items()}
        return means | {f"{name}.scale": moments.scale.astype(np.float32) for name, moments in self.moments.items()}

    def state(self) -> dict[str, Any]:
        return {name: moments._asdict() for name, moments in self.moments.items()}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        held = saved.fields(self.moments)
        for name, _, shape in self.parts:
            _check_moments(held[name], shape)

    def restore(self, state: dict[str, Any]) -> None:
        self.moments = {name: Moments(**state[name]) for name, _, _ in self.parts}


def normalise(values: Mapping[str, Any], parts: list[NormalisedPart], observation: Tree) -> Tree:
    """`(x - mean) * scale`, clipped, for the normalised parts; the others unchanged."""
    for name, path, _ in parts:
        x = (at(observation, path) - values[f"{name}.mean"]) * values[f"{name}.scale"]
        observation = replaced(observation, path, ops.clip(x, -CLIP, CLIP))
    return observation


def _scale(moments: Moments, bound: float, largest: float) -> float:
    return float(min(moments.scale, bound / largest if largest else math.inf))


class RunningScale:
    """The standard deviation of the running discounted return, by which rewards are divided.

    As in OpenAI baselines' VecNormalize. [N] returns, one per environment column. bound: divide by more where the
    largest return so far would be larger than this; Lee et al. 2025, arXiv:2502.15280, section 4.2.
    """

    def __init__(self, environments: int, bound: float = math.inf):
        self.returns: np.ndarray = np.zeros(environments)
        self.moments: Moments = Moments(0.0, 0.0, 1.0)
        self.bound: float = bound
        self.largest: float = 0.0  # of the absolute returns so far

    def update(self, reward: np.ndarray, ended: np.ndarray, columns: np.ndarray, gamma: float) -> None:
        """Take in rewards [T, N] and episode ends [T, N] of some columns."""
        history = np.empty(reward.shape)
        running = self.returns[columns]
        for t in range(len(reward)):
            running = running * gamma + reward[t]
            history[t] = running
            running = np.where(ended[t], 0.0, running)
        self.returns[columns] = running
        self.moments = self.moments.merged(history)
        self.largest = max(self.largest, float(np.abs(history).max(initial=0.0)))

    def restart(self, columns: np.ndarray) -> None:
        """What comes next of these columns does not continue what came before."""
        self.returns[columns] = 0.0

    @property
    def factor(self) -> float:
        """What rewards are multiplied by."""
        return _scale(self.moments, self.bound, self.largest)

    def state(self) -> dict[str, Any]:
        return {"returns": self.returns, "moments": self.moments._asdict(), "largest": self.largest}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        held = saved.fields(("returns", "moments"), ("largest",))
        held["returns"].array(np.float64, self.returns.shape)
        _check_moments(held["moments"], ())
        if "largest" in held:
            held["largest"].number(0)

    def restore(self, state: dict[str, Any]) -> None:
        self.returns, self.moments = np.array(state["returns"]), Moments(**state["moments"])
        self.largest = state.get("largest", 0.0)


class RunningScales:
    """A `RunningScale` for each policy of several agents: of the discounted returns of its agents, over the turns of
    each. What comes between two turns of an agent is earned by the first of them; where it is absent, nothing counts.

    driven: policy -> the positions of its agents among all. bound: see `RunningScale`.
    """

    def __init__(self, environments: int, driven: Mapping[str, Sequence[int]], bound: float = math.inf):
        self.driven: dict[str, list[int]] = {policy: list(places) for policy, places in driven.items()}
        shape = environments, sum(map(len, self.driven.values()))
        self.returns: np.ndarray = np.zeros(shape)
        self.waiting: np.ndarray = np.zeros(shape, bool)
        self.moments: dict[str, Moments] = {policy: Moments(0.0, 0.0, 1.0) for policy in self.driven}
        self.bound: float = bound
        self.largest: dict[str, float] = dict.fromkeys(self.driven, 0.0)

    def update(self, reward: np.ndarray, turns: Any, columns: np.ndarray, gamma: float) -> None:
        """Take in rewards [T, N, agents] and turns (`multi_agent.joint.Turns`) of some columns."""
        acting, complete, over = turns
        history, counts = np.empty(reward.shape), np.empty(reward.shape, bool)
        running, waiting = self.returns[columns], self.waiting[columns]
        for t in range(len(reward)):
            waiting = waiting | acting[t]
            running = np.where(acting[t], running * gamma, running) + np.where(waiting, reward[t], 0.0)
            history[t], counts[t] = running, waiting & complete[t]
            running, waiting = np.where(over[t], 0.0, running), waiting & ~complete[t]
        self.returns[columns], self.waiting[columns] = running, waiting
        for policy, places in self.driven.items():
            found = history[..., places][counts[..., places]]
            self.moments[policy] = self.moments[policy].merged(found[None])
            self.largest[policy] = max(self.largest[policy], float(np.abs(found).max(initial=0.0)))

    def restart(self, columns: np.ndarray) -> None:
        """What comes next of these columns does not continue what came before."""
        self.returns[columns], self.waiting[columns] = 0.0, False

    @property
    def factor(self) -> tuple[float, ...]:
        """What the rewards of each agent are multiplied by."""
        scales = {policy: _scale(self.moments[policy], self.bound, self.largest[policy]) for policy in self.driven}
        factors = {place: scales[policy] for policy, places in self.driven.items() for place in places}
        return tuple(factors[place] for place in sorted(factors))

    def state(self) -> dict[str, Any]:
        moments = {policy: moments._asdict() for policy, moments in self.moments.items()}
        return {"returns": self.returns, "waiting": self.waiting, "moments": moments, "largest": self.largest}

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this."""
        if "waiting" not in saved.table():
            RunningScale(len(self.returns)).check_state(saved)
            return
        held = saved.fields(("returns", "waiting", "moments"), ("largest",))
        held["returns"].array(np.float64, self.returns.shape)
        held["waiting"].array(np.bool_, self.waiting.shape)
        for largest in held["largest"].fields(self.largest).values() if "largest" in held else ():
            largest.number(0)
        for moments in held["moments"].fields(self.moments).values():
            _check_moments(moments, ())

    def restore(self, state: dict[str, Any]) -> None:
        if "waiting" not in state:
            warnings.warn(
                "An earlier version normalised the rewards of all agents by the deviation of their mean. They are now "
                "divided by that of each policy's own returns, which is estimated from here on.",
                stacklevel=2,
            )
            return
        self.returns, self.waiting = np.array(state["returns"]), np.array(state["waiting"])
        self.moments = {policy: Moments(**moments) for policy, moments in state["moments"].items()}
        self.largest |= state.get("largest", {})
