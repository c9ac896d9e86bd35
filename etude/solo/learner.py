"""The learner of an agent of one's own: stores episodes in the replay, then learns minibatches from it, whose kind
says which old transitions are sampled and dropped. What is sampled becomes the arguments of the agent's
`action(s)` and `__call__(s, a, next_s, r, d)`.

r is the reward, over several steps the discounted sum. d is the share of gamma that the next value loses: for one
step, 1 where the episode terminated, else 0, also where it was truncated; for m steps, 1 - gamma**(m - 1) where the
episode continues. So `r + gamma * (1 - d) * next_value` is right for any number of steps.

With IRL the rewards are those of a learned model. Its inputs are stored beside each step; the reward is computed
whenever the step is sampled, by the model as it is then. The environment's own reward is only logged. An agent with
such rewards writes

- `action(s)`, which returns `[inputs, a]`: the inputs of the reward model besides the transition [N, ...], and what
  the policy or the noise turns into actions;
- `reward_model(inputs, a, next_s, d)`, which returns the rewards [B] of B steps, each from its own row: the stored
  inputs, the action that was taken, and `next_s` and `d` as `__call__` gets them.

`__call__` gets these rewards as r, and returns the loss of the reward model beside those of the policy.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np

from etude.base.checks import Stored
from etude.base.data import Batch, Choice, CollectRequest, PolicyVersion, Steps, Update
from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Learned
from etude.base.seeding import check_generator, generator_state, restore_generator
from etude.base.spaces import Box, Dict, Space, describe
from etude.base.trees import Tree
from etude.explore import EpsGreedyQPolicy, MaxBoltzmannQPolicy
from etude.explore.explorer import Around
from etude.networks.dense import DenseActor
from etude.protocols import Weights
from etude.replay import Buffer
from etude.rollout import FollowingActor
from etude.solo.callbacks import Callbacks
from etude.solo.settings import Options, ReplayKind, Settings, Window, cut_if_due
from etude.training.learner import add_to_means
from etude.training.schedule import RunProgress, check_progress

Conversion = Callable[[Tree], Any]  # observations [..., ...] as the agent's methods take them
RewardModel = Callable[[np.ndarray, np.ndarray, Any, np.ndarray], np.ndarray]  # (inputs, a, next_s, d) to rewards

REWARD_INPUTS = "reward_inputs"  # the extra that holds the inputs of a learned reward
GOAL_KEYS = ("observation", "achieved_goal", "desired_goal")


def unchanged(observation: Tree) -> Any:
    """The observation itself."""
    return observation


def with_goal(observation: Tree) -> np.ndarray:
    """Observation and desired goal in one vector [..., d + g]."""
    return np.concatenate([observation["observation"], observation["desired_goal"]], axis=-1)


def by_agent(observation: Tree) -> tuple[Any, ...]:
    """A tuple of what each agent observes."""
    return observation["agents"]


def _is_joint(observation: Tree) -> bool:
    """Whether an observation, or a space, is that of several agents (see `multi_agent.joint`)."""
    parts = observation.spaces if isinstance(observation, Dict) else observation
    return isinstance(parts, dict) and set(parts) == {"agents", "terminated", "truncated"}


def conversion_for(space: Space) -> Conversion:
    """The conversion of a space's observations: goal observations become one vector, those of several agents a tuple,
    all others stay as they are."""
    if _is_joint(space):
        return by_agent
    if not is_goal_space(space):
        return unchanged
    vectors = [space[name] for name in ("observation", "desired_goal")]  # type: ignore[index]
    if all(isinstance(part, Box) and len(part.shape) == 1 for part in vectors):
        return with_goal
    raise ConfigError(
        f"An agent gets observation and desired_goal of a goal environment as one vector; expected two flat Box "
        f"spaces, got {describe(space)}. Flatten them with a gymnasium.ObservationWrapper."
    )


def is_goal_space(space: Space) -> bool:
    """Whether observations are those of a goal environment."""
    return isinstance(space, Dict) and set(space.spaces) == set(GOAL_KEYS)


def loss_arguments(
    batch: Batch, convert: Conversion, gamma: float, rewards: RewardModel | None = None
) -> tuple[Any, Any, Any, Any, Any]:
    """(s, a, next_s, r, d) of `__call__` for stacked batches: trees of arrays [k, B, ...]. rewards: a learned model
    that replaces the environment's."""
    left = batch.discount if gamma == 0 else batch.discount / np.float32(gamma)
    if _is_joint(batch.next_observation):
        left = left[..., None] * (1.0 - batch.next_observation["terminated"])
    done = (1.0 - left).astype(np.float32)
    next_s, reward = convert(batch.next_observation), batch.reward
    if rewards is not None:
        reward = rewards(batch.extras[REWARD_INPUTS], batch.action, next_s, done)
    return convert(batch.observation), batch.action, next_s, reward, done


def learns_rewards(agent: Any, settings: Settings) -> bool:
    """Whether rewards are those of the agent's `reward_model`; ConfigError where it has none."""
    if settings.IRL and not callable(getattr(agent, "reward_model", None)):
        raise ConfigError(
            f"IRL=True takes rewards from a learned model, and {type(agent).__name__} has none. Write "
            "reward_model(self, inputs, a, next_s, d), which returns the rewards [B]; `inputs` is what action(s) "
            "returns in [inputs, a]."
        )
    return settings.IRL


@dataclass(frozen=True)
class RewardInputsExplorer(Around):
    """Applies `inner` to the second part of `[inputs, a]`, and stores the first as an extra of the step."""

    def __call__(self, output: Any, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        """See `protocols.Explorer`; raises ConfigError where the output is no such pair."""
        inputs, policy = split_output(output, len(noise))
        choice = self.inner(policy, noise, step, state)
        return Choice(choice.action, {**choice.extras, REWARD_INPUTS: inputs})


def split_output(output: Any, n: int) -> tuple[np.ndarray, Any]:
    """What `action` returned for n observations, as (inputs [n, ...], what the policy gets); ConfigError for others."""
    pair = isinstance(output, list | tuple) and len(output) == 2
    if pair and isinstance(output[0], np.ndarray) and output[0].shape[:1] == (n,):
        return output[0], output[1]
    parts = list(output) if isinstance(output, list | tuple) else [output]
    got = ", ".join(f"an array {part.shape}" if isinstance(part, np.ndarray) else type(part).__name__ for part in parts)
    raise ConfigError(
        f"With IRL=True, action(s) returns [inputs, a]: arrays with one row for each of {n} observations, the first of "
        f"what the reward is computed from, the second for the policy; it returned {got}."
    )


EPSILON_GREEDY = EpsGreedyQPolicy | MaxBoltzmannQPolicy


def epsilons(policies: Sequence[Any]) -> dict[str, float]:
    """The present `eps` of the policies that have it, by position."""
    return {str(i): policy.eps for i, policy in enumerate(policies) if isinstance(policy, EPSILON_GREEDY)}


def acting_in_worker(actor: DenseActor, policies: Sequence[Any]) -> FollowingActor:
    """Acts as a copy of `actor`. policies: those that explore in the same process, and get the `epsilons` that come
    with the weights."""

    def follow(version: PolicyVersion) -> None:
        for place, epsilon in version.hyper.items():
            policies[int(place)].eps = epsilon

    return FollowingActor(copy.deepcopy(actor), follow)


MOST_MINIBATCHES = 64  # in one call of the engine


@dataclass(eq=False)
class EpisodeLearner:
    """Learns after every collection: `num_updates` minibatches, or as many as make one pass over the replay.

    replay_kind: what is sampled and what is dropped. count: environments. hyper: what views read (gamma). rng: picks
        columns of the ring, with `random`.
    """

    explores_anew: ClassVar[bool] = False  # layers are the user's, and so is their noise

    settings: Settings
    replay_kind: ReplayKind
    engine: Any
    buffer: Buffer
    count: int
    hyper: Callable[[], dict[str, float]]
    rng: np.random.Generator

    def __post_init__(self) -> None:
        self.progress: RunProgress = RunProgress()
        self._counts: dict[str, tuple[int, int]] = {}  # by name: as it was given, and as it was adjusted
        self.policies: Sequence[Any] = ()  # what explores, in the order in which the user gave it
        self.before_phase: Callable[[], object] = lambda: None  # may adjust hyperparameters
        self.adjusted: list[Adjusted] = []  # since the last learning phase
        self.configure(Options(), Callbacks([], None))
        self.loss: float | None = None  # the mean over the last learning phase
        self.follow_calls: int = 0  # of update_param, after a minibatch of the phase: before, it may change nothing
        self.batches: int = 0  # minibatches learned since the agent was made
        self._followed = (0, 0)  # environment steps and minibatches up to which calls of update_param were due
        self._collections = 0
        self._received = np.zeros(self.count, np.int64)  # rows that each column of the ring ever got

    def configure(self, options: Options, callbacks: Callbacks) -> None:
        """Train with these options from now on."""
        self.callbacks: Callbacks = callbacks
        self.options: Options = options
        self.window: Window = self.replay_kind.window(options)

    def count_of(self, name: str) -> Any:
        """The present value of batch, num_updates, num_store, update_steps or update_batches; None where it was not
        given."""
        given, adjusted = self._given(name), self._counts.get(name)
        return given if adjusted is None or adjusted[0] != given else adjusted[1]

    def set_count(self, name: str, value: float) -> None:
        """Adjust one of these until another value is given. Target networks follow from here on as often as it says."""
        given = self._given(name)
        assert given is not None
        self._counts[name] = given, int(value)
        if name in ("update_steps", "update_batches"):
            self._followed = self.progress.step, self.batches

    def _given(self, name: str) -> int | None:
        return self.options.num_store if name == "num_store" else getattr(self.settings, name)

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """Whole episodes, one of every environment."""
        return CollectRequest(None)

    def take(self, *parts: Any) -> None:
        """Store collected steps and count them."""
        for steps in parts:
            self.progress.count(steps)
            self.buffer.add(placed := self._placed(steps))
            self._received[placed.columns] += placed.shape[0]
            before = len(self.buffer)
            cut_if_due(self.buffer, self.window, self.options.clearing_freq, len(steps), self.progress.step)
            self._note_window(before)

    def _placed(self, steps: Steps) -> Steps:
        """A whole episode may go into any column of the ring: the one that got the fewest rows, or a random one, so
        that workers with short and with long episodes share the ring, and all overwrite the oldest rows."""
        ended = (steps.terminated | steps.truncated)[-1]
        if steps.shape[1] != 1 or not ended[0] or self.count == 1:
            return steps
        column = self.rng.integers(self.count) if self.options.random else int(np.argmin(self._received))
        return replace(steps, columns=np.array([column]), restarted=np.zeros(1, bool))

    def learn_if_due(self) -> Learned | None:
        """A learning phase, after every `num_store` collections; nothing is learned before the replay holds one batch.
        Calls of `update_param` are spread evenly over its minibatches."""
        began = time.perf_counter()
        self._collections += 1
        if self._collections % self.count_of("num_store"):
            return None
        if len(self.buffer) >= self.count_of("batch"):
            self.before_phase()
        size = self.count_of("batch")
        wanted = self.count_of("num_updates") or len(self.buffer) // size
        minibatches = wanted if len(self.buffer) >= size else 0
        due = self._due_target_updates(minibatches)
        losses: dict[str, float] = {}
        done = 0
        for call in range(1, due + 1):
            done = self._learn_until(done, minibatches * call // due, minibatches, losses)
            self.engine.update_param()
            self.follow_calls += done > 0
            before = len(self.buffer)
            if self.replay_kind.drop is not None:
                self.replay_kind.drop(self.buffer, self.options)
            self._note_window(before)
        self._learn_until(done, minibatches, minibatches, losses)
        if not minibatches:
            return None
        self.loss = losses["loss"]
        self.progress.gradient_steps += minibatches
        adjusted, self.adjusted = tuple(self.adjusted), []
        seconds = time.perf_counter() - began
        return Learned(self.progress.step, self.progress.gradient_steps, losses, {}, seconds, adjusted)

    def why_untrained(self, collections: int) -> str:
        """What a call of `train` that took no gradient step in so many collections tells."""
        held, size, cut = len(self.buffer), self.count_of("batch"), self.window is not None
        reason = f"a learning phase follows every num_store = {self.count_of('num_store')} collections. Lower num_store"
        if held < size:
            reason = f"the pool holds {held} transitions at the end, and a batch is {size}. Lower batch"
            reason += cut * ", let window_size keep more"
        return f"No gradient step was taken in {collections} episodes: {reason}, or play more episodes."

    def _note_window(self, before: int) -> None:
        """Report that `window_size_func` has left fewer than `before` transitions."""
        after = len(self.buffer)
        if self.options.window_size_func is not None and after < before:
            self.adjusted.append(Adjusted(self.progress.step, "window", before, after, "window_size_func"))

    def _due_target_updates(self, minibatches: int) -> int:
        """How many calls of `update_param` belong to this phase. From transitions of the old policy, one at most, and
        none before there is a minibatch: what the pool holds would be dropped unlearned. Then it stays due."""
        before, now = self._followed, (self.progress.step, self.batches + minibatches)
        each = self.count_of("update_steps"), self.count_of("update_batches")
        due = sum(b // every - a // every for every, a, b in zip(each, before, now, strict=True) if every is not None)
        # Of neither, every minibatch makes one
        made = due if self.replay_kind.drop is None else min(due, minibatches, 1)
        if made or not due:
            self._followed = now
        return made

    def _learn_until(self, done: int, end: int, total: int, means: dict[str, float]) -> int:
        """Learn minibatches from number `done` up to `end` of `total`; returns `end`."""
        each_batch, drawn_for = self.callbacks.want_batches, None
        drawn: list[Batch] = []
        while done < end:
            if each_batch:
                self.callbacks.call("on_batch_begin", done)
            if not drawn or (self.hyper(), self.count_of("batch")) != drawn_for:
                drawn_for = self.hyper(), self.count_of("batch")
                self.buffer.view.adjust(self.hyper())
                # Those that depend on the errors of the ones before are drawn one by one
                together = 1 if self.replay_kind.reports else min(MOST_MINIBATCHES, end - done)
                batches = self.buffer.sample(together, self.count_of("batch"))
                drawn = [batches]
                if together > 1 and each_batch:
                    drawn = [batches.map(lambda leaf, i=i: leaf[i : i + 1]) for i in range(together)]
            batches = drawn.pop(0)
            k = len(batches.weight)
            update = self.engine.learn(batches, {})
            self._update_priorities(batches, update)
            add_to_means(means, update.losses, k, total)
            means["loss"] = float(np.mean([means[name] for name in update.losses]))
            if each_batch:
                self.callbacks.call("on_batch_end", done, loss=float(np.mean(list(update.losses.values()))))
            done += k
            self.batches += k
        return end

    def _update_priorities(self, batches: Batch, update: Update) -> None:
        """Set the priorities of batches to what their loss reported."""
        names = self.replay_kind.reports
        found = {"TD": update.td_error, "ratio": update.ratio}
        errors = [error for name in names if (error := found[name]) is not None]
        if len(errors) < len(names):
            raise ConfigError(
                f"PR=True draws transitions by what the loss reports, and it did not report {', '.join(names)}. Call "
                f"self.prioritized_replay.update({', '.join(names)}) in __call__, with one number per example each."
            )
        if errors:
            self.buffer.update(batches, *errors)

    def follow_moments(self) -> bool:
        """There is no normaliser."""
        return False

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """The weights that workers act with, none where this process acts for them; and the epsilons of policies."""
        actor = self.engine.actor()
        weights = {} if actor is None else self.engine.weights(actor.names)
        return weights, PolicyVersion(0, epsilons(self.policies))

    def trained_weights(self) -> Weights:
        """What `param` holds, by name."""
        return self.engine.parameters()

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data from which `restore` continues. replay: whether the replay is part of it."""
        counted: dict[str, Any] = {"batches": self.batches, "followed": list(self._followed)}
        counted |= {"collections": self._collections, "loss": self.loss}
        counted |= {"received": self._received.tolist(), "generator": generator_state(self.rng)}
        kept = {"replay": self.buffer.state()} if replay else {}
        return {"engine": self.engine.state(), "progress": {**asdict(self.progress), **counted}, **kept}

    def check_state(self, stored: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        self.engine.check_state(stored["engine"])
        counted = ("batches", "followed", "collections", "loss", "received", "generator")
        progress = check_progress(stored["progress"], counted)
        for number in (progress["batches"], progress["collections"], *progress["followed"].items(2)):
            number.whole()
        if progress["loss"].value is not None:
            progress["loss"].number()
        for number in progress["received"].items(self.count):
            number.whole()
        check_generator(progress["generator"])
        if "replay" in stored:
            self.buffer.check_state(stored["replay"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; without its replay, with an empty one."""
        self.engine.restore(state["engine"])
        counted = dict(state["progress"])
        self.batches, self._followed = counted.pop("batches"), tuple(counted.pop("followed"))
        self._collections, self.loss = counted.pop("collections"), counted.pop("loss")
        self._received[:] = counted.pop("received")
        restore_generator(self.rng, counted.pop("generator"))
        self.progress = RunProgress(**counted)
        if "replay" in state:
            self.buffer.restore(state["replay"])
