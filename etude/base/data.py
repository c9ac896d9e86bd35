"""What crosses between parts: plain NumPy arrays in frozen dataclasses. T is time steps, N parallel environments, B a
batch.

An observation is a tree (see `trees`): an array, or dicts and tuples of arrays. Actions are those of the agent: for a
Box space they are in [-1, 1] (the environment's adapter scales them), for Discrete they start at 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from etude.base import text, trees
from etude.base.trees import Tree

INFO = "info."  # the extras that hold numbers of `info` begin with it
LOG_PROB = "log_prob"  # the extra with the natural log of the probability, or density, of an action: [T, N] float32
SAMPLED_ACTION = "sampled_action"  # the extra with what `log_prob` is of, before it was clipped: [T, N, ...]
CLIPPED = "action_clipped"  # 1 where an action was: `log_prob` is of all actions that are clipped to the same one
RECURRENT_STATE = "recurrent_state"  # the extra with the state that an agent chose an action in: [T, N, M] float32
RECORDED = "recorded"  # the extra that holds, for each term of a loss on recorded data, the fields of a batch of it


def info_extra(name: str) -> str:
    """The extra of steps that holds a number of `info`: [T, N] float32, NaN where the environment did not return it."""
    return INFO + name


def return_text(value: float) -> str:
    """A return as text: with one decimal, or three significant digits where it is small or very large."""
    return f"{value + 0.0:.1f}" if not value or 1 <= abs(value) < 1e9 else f"{value:.3g}"


def listed(parts: Iterable[str], most: int = 12) -> str:
    """The first of many as text, and how many more there are, so that a thousand agents fit into a line."""
    parts = list(parts)
    return ", ".join(parts[:most]) + (f" and {len(parts) - most} more" if len(parts) > most else "")


class EpisodeEnd(NamedTuple):
    """One finished episode, in the environment's own rewards."""

    environment: int
    episode: int  # counts the episodes of this environment, from 0
    length: int
    total: float  # the undiscounted sum of rewards: the return; of several agents, of all their rewards
    truncated: bool
    total_by_agent: dict[str, float] | None = None  # the return of each of several agents, by name


@dataclass(frozen=True, slots=True)
class Steps:
    """T time steps of N environments. Row t + 1 of a column follows row t; where row t ends an episode, row t + 1
    starts the next one. There are no reset steps: every row is a real transition."""

    observation: Tree  # [T, N, ...] what the action was chosen for
    action: np.ndarray  # [T, N, ...] as it was executed: within the bounds of its space
    reward: np.ndarray  # [T, N] float32; [T, N, agents] where each of several agents has its own
    terminated: np.ndarray  # [T, N] bool: the world ended; nothing to bootstrap from
    truncated: np.ndarray  # [T, N] bool: the clock ended; the value of the final observation counts
    next_observation: Tree  # [N, ...] what the next collected row will start from
    final_observation: Tree  # [E, ...] the true last observation of each of the E episodes that ended in these rows
    final_index: np.ndarray  # [E, 2] int64: (t, n) of the rows that ended, sorted by t, then n
    columns: np.ndarray  # [N] int64: the number of the environment in each column
    restarted: np.ndarray  # [N] bool: row 0 does not continue what was collected before (a replaced worker, a resume)
    extras: dict[str, np.ndarray] = field(default_factory=dict)  # [T, N, ...]: log_prob, ...
    episodes: tuple[EpisodeEnd, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """(T, N)."""
        return self.terminated.shape  # type: ignore[return-value]

    def __len__(self) -> int:
        """The number of environment steps, T * N."""
        return self.terminated.size

    def next_observations(self) -> Tree:
        """The true observation that followed each step, [T, N, ...]: the last one of the episode where it ended."""
        at = tuple(self.final_index.T)

        def following(own: np.ndarray, newest: np.ndarray, final: np.ndarray) -> np.ndarray:
            found = np.concatenate([own[1:], newest[None]])
            found[at] = final
            return found

        return trees.map(following, self.observation, self.next_observation, self.final_observation)

    def summary(self) -> str:
        """Names, shapes, dtypes, minimum, maximum and mean of all arrays, as a table of text."""
        return text.table(self)

    def read_only(self) -> Steps:
        """The same steps in arrays that cannot be written to; nothing is copied."""
        return replace(self, **trees.map(_read_only, self._arrays()))

    def copied(self) -> Steps:
        """The same steps in arrays of their own."""
        return replace(self, **trees.map(np.copy, self._arrays()))

    def _arrays(self) -> dict[str, Tree]:
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "episodes"}


@dataclass(frozen=True, slots=True)
class WorkerGradients:
    """What one environment's rollout adds to learning, computed where it was collected: gradients in the place of
    `Steps`."""

    steps: int  # environment steps that it counts for
    episodes: tuple[EpisodeEnd, ...] = ()
    gradients: dict[str, np.ndarray] = field(default_factory=dict)  # by name; none where the rollout is not yet counted
    losses: dict[str, float] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    gradient_steps: int = 0  # gradient steps that its weights had seen

    def __len__(self) -> int:
        """The number of environment steps."""
        return self.steps


CollectedSteps = Steps | WorkerGradients  # what a rollout returns


class WorkerWarning(str):
    """The text of a warning that a worker process was replaced, and what it says as data."""

    worker: int
    environments: tuple[int, ...]  # their numbers in the run
    reason: str

    @classmethod
    def of(cls, text: str, worker: int, environments: tuple[int, ...], reason: str) -> WorkerWarning:
        """The warning `text`."""
        warning = cls(text)
        warning.worker, warning.environments, warning.reason = worker, environments, reason
        return warning


class CollectRequest(NamedTuple):
    """What to collect at a time: time steps of these environments (all where None), or, where `steps` is None, on until
    every environment has ended an episode."""

    steps: int | None
    environments: range | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """What a loss reads: B transitions, or k batches of B stacked along a first axis for `Engine.learn`. Of unrolls,
    each of the B is T time steps in a row: [B, T, ...].

    `discount` replaces gamma, n and done: gamma**n, or 0 where the episode terminated. `next_observation` is the
    observation that the discount applies to; None for views whose losses do not bootstrap (advantages).
    """

    observation: Tree  # [B, ...]
    action: np.ndarray  # [B, ...]
    reward: np.ndarray  # [B] float32; for n-step views the discounted sum of n rewards
    discount: np.ndarray  # [B] float32
    next_observation: Tree  # [B, ...]
    weight: np.ndarray  # [B] float32: importance weights, 1 where all count the same
    index: np.ndarray  # [B] int64: rows of the ring, for priorities
    extras: dict[str, Tree] = field(default_factory=dict)  # log_prob, advantage, ...

    @property
    def sampled_action(self) -> Any:
        """[B, ...] the samples of the policy that `log_prob` is of, which may lie beyond the bounds; the executed ones
        where they were not kept."""
        return self.extras.get(SAMPLED_ACTION, self.action)

    def map(self, function: Callable[..., Any], *others: Batch) -> Batch:
        """What `function` makes of each array, and of those in the same places of others; without those that are
        None."""

        def made(leaf: Any, *leaves: Any) -> Any:
            return None if leaf is None else function(leaf, *leaves)

        own, *rest = ({each.name: getattr(batch, each.name) for each in fields(Batch)} for batch in (self, *others))
        return Batch(**trees.map(made, own, *rest))

    def summary(self) -> str:
        """Names, shapes, dtypes, minimum, maximum and mean of all arrays, as a table of text."""
        return text.table(self)


@dataclass(frozen=True, slots=True)
class Episode:
    """One whole trajectory of L transitions, for files, hindsight and estimators."""

    observation: Tree  # [L + 1, ...] the last one included
    action: np.ndarray  # [L, ...]
    reward: np.ndarray  # [L] float32
    terminated: bool
    truncated: bool
    extras: dict[str, np.ndarray] = field(default_factory=dict)  # [L, ...]

    def summary(self) -> str:
        """Names, shapes, dtypes, minimum, maximum and mean of all arrays, as a table of text."""
        return text.table(self)


class Estimate(NamedTuple):
    """What a policy would earn in an episode, estimated from episodes that another one played: a mean discounted
    return."""

    method: str
    value: float  # NaN where no recorded episode has a weight above 0
    low: float  # the ends of the confidence interval
    high: float
    behaviour: float  # the mean discounted return of the recorded episodes
    gain: float  # value / behaviour; NaN where the behaviour's value is not above 0
    effective_episodes: float  # as many equally weighted episodes would vary as much (Kish's effective sample size)
    largest_weight: float  # of an episode; 1 for every one where the policy is the behaviour

    def __str__(self) -> str:
        return (
            f"{self.method} {self.value:.4g} [{self.low:.4g}, {self.high:.4g}], gain {self.gain:.3g}, "
            f"{self.effective_episodes:.1f} effective episodes"
        )


@dataclass(frozen=True, slots=True)
class Update:
    """The result of a learn call of k gradient steps: means over the k, and errors for priorities."""

    losses: dict[str, float]
    metrics: dict[str, float]
    td_error: np.ndarray | None  # [k, B]
    steps: int  # k
    ratio: np.ndarray | None = None  # [k, B]: how likely the actions are now, over how likely they were when taken


class PolicyVersion(NamedTuple):
    """What belongs to the weights that a rollout loads."""

    gradient_steps: int  # those that led to the weights
    hyper: dict[str, float]  # hyperparameters of the losses, at that step
    factors: Mapping[str, float] = {}  # by which rules multiply hyperparameters of exploration, by name


INITIAL_VERSION = PolicyVersion(0, {})


class Choice(NamedTuple):
    """What an explorer decided for N environments."""

    action: np.ndarray  # [N, ...]
    extras: dict[str, np.ndarray]  # [N, ...]: log_prob where the algorithm needs it


def power_of_two(count: int, least: int = 1) -> int:
    """The next power of two: what is filled up to it has few sizes, and little is compiled."""
    return max(least, 1 << (count - 1).bit_length())


def _read_only(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray):
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view
