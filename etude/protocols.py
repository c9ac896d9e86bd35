"""The contracts between the parts of a run. Parts on either side of a contract know it and not each other.

`rollout.collect() -> buffer.add(steps) -> buffer.sample(k, n) -> engine.learn(batches, hyper) -> rollout.load(weights)`
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from etude.base.checks import Stored
from etude.base.data import INITIAL_VERSION, Batch, Choice, PolicyVersion, Steps, Update, WorkerGradients
from etude.base.spaces import Space, Spaces
from etude.base.trees import Tree

Weights = dict[str, np.ndarray]


class Layout(Protocol):
    """The weights of a built agent by name: `attribute.variable`, or `attribute.key.variable` for a dict of parts."""

    agent: Any  # the agent, with its networks
    initial: Weights  # all weights, with their first values
    trainable: tuple[str, ...]  # the weights that losses train
    hyper: tuple[str, ...]  # the config fields that `Engine.learn` takes as scalars
    normaliser: str | None  # the part that normalises observations
    noisy: tuple[str, ...]  # the weights that hold the noise of layers

    @property
    def untrained(self) -> tuple[str, ...]:
        """The weights of online networks that no loss trains, such as running statistics."""

    def draw_layer_noise(self, rng: np.random.Generator) -> Weights:
        """Standard normal numbers for the weights in `noisy`, by name."""

    def as_vector(self, weights: Mapping[str, np.ndarray]) -> np.ndarray:
        """The trained ones of these weights, one after the other: [P]."""

    def from_vector(self, vectors: np.ndarray) -> Weights:
        """Trained weights by name, [..., *shape], from vectors [..., P]."""


class Engine(Protocol):
    """Evaluates and trains one agent in one framework."""

    name: str  # jax, torch, tensorflow
    device: str
    spaces: Spaces
    exportable: bool  # whether the NumPy engine can act with these weights
    state_size: int  # of the recurrent state of one environment; 0 for most agents
    acted: Any  # `Agent.acted`
    rewarded: Any  # `Agent.rewarded`

    @property
    def layout(self) -> Layout:
        """The agent's weights by name."""

    @property
    def compile_seconds(self) -> float:
        """How long the calls took, so far, in which something was compiled."""

    def act(self, observation: Tree, state: np.ndarray | None = None) -> Any:
        """What `agent.act` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""

    def value(self, observation: Tree, *state: np.ndarray) -> Any:
        """What `agent.value` returns for observations [N, ...], and states [N, M] if it is recurrent, in NumPy."""

    def reward(self, observation: Tree, action: np.ndarray, following: Tree, discount: np.ndarray) -> np.ndarray:
        """What `agent.reward` returns for M steps: [M] float32."""

    def learn(self, batches: Batch, hyper: dict[str, float]) -> Update:
        """k gradient steps in one call; `batches` has leading axes [k, B]."""

    def gradients(self, batch: Batch, hyper: dict[str, float]) -> tuple[Weights, Update]:
        """Gradients of all trained weights at one batch [B], by name and unclipped, and what the losses reported;
        nothing is changed."""

    def apply(self, gradients: Weights, hyper: dict[str, float]) -> Update:
        """One gradient step with these gradients of all trained weights, by name, wherever they come from."""

    def weights(self, names: Iterable[str] | None = None) -> Weights:
        """These weights by name, or all of them."""

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Take over weights by name; raises NetworkError where a name or a shape does not fit. version: see `Rollout`;
        engines act alike in every version."""

    def state(self) -> dict[str, Any]:
        """Everything that learning continues from: weights, target copies, optimizer moments, counters, generator."""

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed."""


class Explorer(Protocol):
    """Turns what an agent's `act` returns into actions. Randomness comes in as an argument."""

    @property
    def state_size(self) -> int:
        """The size m of its state of one environment, which it keeps from step to step of an episode; 0 for most."""

    def of(self, columns: np.ndarray) -> Explorer:
        """The explorer for the environments with these numbers in the run; itself where all are treated alike."""

    def draw(self, rng: np.random.Generator, steps: int, action_space: Space) -> np.ndarray:
        """The random numbers for `steps` actions of one environment: [steps, k] float32. Drawing 3 and then 5 gives the
        same numbers as drawing 8, so that chunks of any length give the same actions."""

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """Actions for N environments: `output` of `act` for N observations, `noise` [N, k], `step` the environment
        steps of the whole run so far (schedules read it), `state` [N, m] float64: what it wrote there at the step
        before, and NaN at the first step of an episode; to be written in place."""


class Environments(Protocol):
    """N environments that are stepped together and reset themselves. See `envs`.

    Each episode of environment number c (over the whole run, not within this object) starts with
    `reset(seed=episode_seed(run_seed, c, episode))`, where `native` is False.
    """

    spaces: Spaces
    columns: np.ndarray  # [N] int64: the numbers of these environments in the run
    native: bool  # one vectorised simulator with its own generator: cannot replay episodes or step a part
    reward_shape: tuple[int, ...]  # of the rewards of one environment: (), or (agents,)
    info_names: tuple[str, ...]  # of the numbers of `info` that are kept
    info: np.ndarray  # [n, K] float32: those of the last step, NaN where missing; not set where there are no names
    scores: np.ndarray  # [n] float32: what the rewards of the last step count for in the returns of episodes

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""

    def set_task(self, task: Any) -> None:
        """Give this task, plain data, to every environment whose episode begins from now on: by `env.set_task(task)`
        before the reset, or by `reset(options={"task": task})`. ConfigError where they take none."""

    def step(
        self, action: np.ndarray, at: Sequence[int] | None = None
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Tree]]:
        """Step the first len(action) environments, or those at the positions `at` (always all, for a native simulator).

        Returns `observation` [n, ...] to act on next (of the new episode where one ended), `reward` [n, ...] float32,
        `terminated` [n], `truncated` [n] bool, and `final`: the true last observation of each that ended, by its place
        among the n.
        Raises EnvironmentFault with environment, episode, step and key for what breaks the contract.
        """

    def state(self) -> list[dict[str, Any]]:
        """For each environment, plain data from which `restore` replays the open episode: episode, seed, actions, and
        its task where there is one."""

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Replay the open episodes. Returns observations [N, ...] and the positions whose replay differed or that
        cannot be replayed, which were reset to a new episode instead."""

    def warnings(self) -> list[str]:
        """What was seen of these environments since the last call that a user should know."""

    def close(self) -> None: ...


class Rollout(Protocol):
    """Collects steps of N environments with the current weights."""

    spaces: Spaces
    environments: int  # N

    def collect(
        self, steps: int, step: int, environments: range | None = None, upcoming: int = 0
    ) -> Steps | WorkerGradients:
        """`steps` time steps of these environments (all where None), with the generators' and the environments'
        positions kept between calls.

        step: environment steps of the run so far, for schedules of exploration.
        upcoming: how many time steps the next call will ask for; a rollout that overlaps starts on them at once, with
            the weights that it has. 0: nothing is started.
        Returns a `WorkerGradients` where steps are learned from where they are collected: `steps` of one environment.
        """

    def collect_episodes(self, step: int, ahead: bool = False) -> tuple[Steps, ...]:
        """Let every environment go on until it has ended an episode; the parts name their environments in `columns`.

        An environment that waits for others takes no steps where the rollout can step it alone. ahead: start on the
        next call at once, with the weights that there are, if the rollout can overlap.
        """

    def load(self, weights: Weights, version: PolicyVersion = INITIAL_VERSION) -> None:
        """Act with these weights, of this version, from the next collected step on."""

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from the next request on; see `Environments`. What a rollout that
        overlaps has already been asked for keeps the task before."""

    def warnings(self) -> list[str]:
        """What happened since the last call that a user should know: workers replaced, episodes dropped."""

    def state(self) -> dict[str, Any]:
        """Arrays and plain data from which `restore` goes on with the same numbers, for any number of workers."""

    def restore(self, state: dict[str, Any]) -> list[str]:
        """Continue from `state`; returns notes on what could not be replayed."""

    def close(self) -> None:
        """End workers and free shared memory. May be called twice."""


class Replay(Protocol):
    """Ring x selector x view: see `replay.Buffer`; or whole episodes: see `replay.EpisodeBatch`.

    It is given `Steps` and samples a `Batch`; or what the rollout and the gradients of the same kind of learning
    exchange instead, such as `WorkerGradients`.
    """

    def add(self, steps: Any, /) -> None: ...

    def sample(self, k: int, n: int, /) -> Any:
        """k batches of n, stacked: every array is [k, n, ...]. Of gradients from workers, one."""

    def update(self, batches: Any, td_error: np.ndarray, ratio: np.ndarray | None = None, /) -> None:
        """Report errors, and probability ratios, [k, n] for priorities; ignored by selectors without them."""

    def adjust(self, hyper: dict[str, Any]) -> None:
        """Take over the present values of the hyperparameters that sampling depends on, and `reward_scale`, which
        multiplies rewards: a number, or one for each of several agents; 1 where it is not among them."""

    def trim(self, keep: int) -> None:
        """Forget all but the newest `keep` rows, counted over all columns."""

    def clear(self) -> None:
        """Forget all rows."""

    def __len__(self) -> int: ...

    def state(self) -> dict[str, Any]: ...

    def check_state(self, saved: Stored) -> None:
        """Raise CheckpointError where `restore` cannot continue from this; nothing is changed."""

    def restore(self, state: dict[str, Any]) -> None: ...


class ProcessGroup(Protocol):
    """The processes that train one run. All of them call `gather` in the same order."""

    rank: int  # of this process, from 0; 0 is the chief, which evaluates, reports and saves
    size: int

    def gather(self, what: str, value: Any) -> list[Any]:
        """The values of all processes by rank. what: the name of this exchange, the same in all of them. Raises
        ReplicaError where a process ended, has left, or is at another exchange."""

    def in_all(self, what: str, function: Callable[[], Any]) -> list[Any]:
        """What a function of each process returned, by rank. Where it raises an EtudeError in one of them, all raise
        it, with its rank."""

    def leave(self, reason: str) -> None:
        """End the group: whatever the others wait for raises a ReplicaError with this reason. May be called twice, and
        where processes ended."""
