"""The learning half of a run: what happens to steps once they are collected, and what the rules of a config (`adapt`)
do at the end of each learning phase."""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from etude.adapt.rules import Adaptation, LearningPhase, UnusableSignal
from etude.agent import Agent
from etude.base import trees
from etude.base.checks import Stored
from etude.base.data import Batch, CollectedSteps, CollectRequest, PolicyVersion, Steps, Update, WorkerGradients
from etude.base.errors import ConfigError, NetworkError
from etude.base.events import Adjusted, Learned
from etude.base.schedules import Linear, all_at
from etude.base.seeding import check_generator, generator, generator_state, restore_generator
from etude.base.trees import Tree
from etude.config import OffPolicyConfig, RolloutConfig
from etude.engines.numpy import NumpyEngine
from etude.multi_agent import MultiAgent
from etude.multi_agent.joint import ACTIVE, acting_rows, turns
from etude.networks import RunningMoments, RunningScale, RunningScales
from etude.protocols import Engine, Replay, Weights
from etude.replay import Buffer, Prioritised, RecordedTerms
from etude.rewrite import Rewriters
from etude.rollout.collector import joined
from etude.rollout.state import check_steps, plain_steps, steps_of
from etude.training.schedule import RunProgress, UpdateSchedule, UpdatesDue, check_progress

GradientSource = Callable[[Any, dict[str, float], int], Update]
"""Takes one gradient step on each of the batches that the replay sampled, from (batches, values of hyperparameters,
gradient steps before them)."""


class FromRollouts:
    """Gradient steps with what was differentiated elsewhere, by weights that may be older. See `GradientSource`."""

    def __init__(self, engine: Engine):
        self._engine = engine

    def __call__(self, found: WorkerGradients, hyper: dict[str, float], gradient_steps: int) -> Update:
        """One gradient step. The metric `gradient_age` is the number of gradient steps since the weights were read that
        the gradient was computed with."""
        update = self._engine.apply(found.gradients, hyper)
        age = float(gradient_steps - found.gradient_steps)
        return Update(found.losses, {**found.metrics, **update.metrics, "gradient_age": age}, None, 1)


class Adapting:
    """What a learner asks for the present values of hyperparameters, and tells how it learned.

    schedule_for: the schedule of updates that a config describes. sizes: see `Adaptation`.
    """

    def __init__(
        self,
        config: Any,
        engine: Engine,
        schedule_for: Callable[[Any], UpdateSchedule],
        replay: Replay,
        sizes: tuple[str, ...] = (),
    ):
        self.rules: Adaptation = Adaptation(config.adapt, config, engine.layout.hyper, sizes)
        self._config, self._engine = config, engine
        self._schedule_for, self._replay = schedule_for, replay

    def floats(self, given: Mapping[str, float]) -> dict[str, float]:
        """The present values of floats that schedules have at `given`."""
        return self.rules.floats(given)

    def trim(self) -> None:
        """Forget the rows beyond the present `buffer_size`, where a rule changes it."""
        if (keep := self.rules.counts().get("buffer_size")) is not None:
            self._replay.trim(keep)

    def _priorities(self) -> np.ndarray | None:
        """Those of all stored rows; None where rows are drawn without."""
        if isinstance(self._replay, Buffer) and isinstance(self._replay.selector, Prioritised):
            return self._replay.selector.all_priorities(self._replay.ring)
        return None

    def update_schedule(self) -> UpdateSchedule:
        """With the present whole numbers. ConfigError where the config refuses them."""
        return self._schedule_for(replace(self._config, **self.rules.counts()))

    def observe(
        self, step: int, batches: Batch, update: Update, metrics: Mapping[str, float], given: Mapping[str, float]
    ) -> tuple[Adjusted, ...]:
        """The changes after a learning phase. batches: the last [k, n, ...] that were learned from, and their update.
        given: the floats, as schedules have them."""
        errors = batches.extras.get("advantage") if update.td_error is None else update.td_error
        phase = LearningPhase(
            step, metrics, self._priorities, errors, update.ratio,
            lambda parts: self._gradients(batches, parts, self.floats(given)),
        )  # fmt: skip
        return self.rules.observe(phase, given)

    def _gradients(self, batches: Batch, parts: int, hyper: dict[str, float]) -> tuple[list[Weights], int]:
        """The gradients of parts of the first of the batches, and how large a part is, in the units of the
        config's field."""
        size = batches.weight.shape[1] // parts
        if not size:
            raise UnusableSignal(f"a batch of {batches.weight.shape[1]} has no {parts} parts")
        found = []
        for i in range(parts):
            part = batches.map(lambda leaf, i=i: leaf[0, i * size : (i + 1) * size])  # of the first batch
            found.append(self._engine.gradients(part, hyper)[0])
        # `minibatch_size` counts steps, also where examples are sequences or whole rollouts.
        return found, size * (self._config.example_length if isinstance(self._config, RolloutConfig) else 1)


def refuse_rules(config: Any) -> None:
    """Raise ConfigError where a config has rules, for kinds of learning that cannot follow them."""
    if config.adapt:
        raise ConfigError(
            f"{type(config).__name__}: adapt has {len(config.adapt)} rules, and the gradients of this algorithm do not "
            "come from losses on batches. Leave adapt out, or use an algorithm whose learner computes the losses."
        )


BATCH_BYTES = 256 * 2**20  # the most that one learn call takes at once; more is learned in several calls


class Learner:
    """Replay, engine and normalisers of one agent, and its schedule of updates.

    acting_weights: the names of the weights that rollouts need, asked for once they do. example_bytes: of one example
    in a batch. count: environments that are collected from in one call. seed: of the noise in layers. terms: recorded
    transitions for terms of the losses. adapting: what changes hyperparameters after learning phases. whole_rollouts:
    see `LearningKind`. explores: whether anything acts with the noise in layers. rewriters: what changes collected
    steps before they are stored.
    """

    def __init__(
        self,
        agent: Agent,
        engine: Engine,
        replay: Replay,
        update_schedule: UpdateSchedule,
        gradients: GradientSource,
        acting_weights: Callable[[], tuple[str, ...]],
        example_bytes: int,
        count: int,
        seed: int,
        terms: RecordedTerms,
        adapting: Adapting | None,
        whole_rollouts: bool,
        explores: bool,
        rewriters: Rewriters | None,
    ):
        self.agent: Agent = agent
        self.engine: Engine = engine
        self.replay: Replay = replay
        self.count: int = count
        self.gradients: GradientSource = gradients
        self.update_schedule: UpdateSchedule = update_schedule
        self.terms: RecordedTerms = terms
        self.rewriters: Rewriters | None = rewriters
        self.progress: RunProgress = RunProgress()
        self.adapting: Adapting | None = adapting
        self.moments: RunningMoments | None = (
            RunningMoments(engine.spaces.observation) if engine.layout.normaliser else None
        )
        self.scale: RunningScale | RunningScales | None = (
            _running_scale(agent, engine, self.count) if agent.config.normalize_reward else None
        )
        self._waiting: list[Steps] = []  # collected steps of a rollout that is not complete
        self._unseen: tuple[CollectedSteps, ...] = ()  # stored steps that the normaliser has not taken in
        self._whole_rollouts, self._draws_noise = whole_rollouts, bool(engine.layout.noisy) and explores
        self._read_by_acting, self._example_bytes = functools.cache(acting_weights), example_bytes
        self._generator = generator(seed, "noisy layers")
        self._layer_noise: Weights = engine.layout.draw_layer_noise(self._generator)
        # Called after learning phases, with the last batches and the number of gradient steps; they return metrics
        self.measured_by: list[Callable[[Learner, Any, int], Mapping[str, float]]] = []
        self.scheduled: set[str] = {name for name, value in vars(agent.config).items() if isinstance(value, Linear)}
        own = agent.config.reset_every if isinstance(agent.config, OffPolicyConfig) else None
        self._reset_every, self._seed, self._compile_seconds = own, seed, float(engine.compile_seconds)
        if own is not None:
            self._first_weights(0)
        # What a phase came to, from its hyperparameters, where the rollout has carried it out
        self.ahead: Callable[[dict[str, float]], Update] | None = None
        self.explores_anew: bool = False  # whether the last phase without gradient steps has drawn noise in layers

    def collect_request(self, left: int, after: int = 0) -> CollectRequest:
        """What to collect next: up to the next learning phase, and never more than `left` environment steps, but for
        whole episodes. A time step that only the first environments have taken is completed by the others.

        after: time steps that are collected before.
        """
        ahead, begun = after * self.count, self.progress.begun(self.count)
        collected = len(self.replay) + sum(map(len, self._waiting))  # in the replay, and to be stored
        wanted = self.update_schedule.steps_until_update(self.progress.step + ahead, collected + ahead)
        if wanted is None:
            return CollectRequest(None)
        if begun or left < self.count:
            return CollectRequest(1, range(begun, min(begun + left, self.count)))
        return CollectRequest(min(wanted, left // self.count))

    def take(self, *parts: CollectedSteps) -> None:
        """Rewrite collected steps, store them and count them; those of a part of a rollout once all of it is there, so
        that a rollout in parts is rewritten, normalised and learned from as one in a piece. Raises CallbackError where
        a rewriter fails, and has then stored and counted nothing."""
        whole, waiting = parts, sum(map(len, self._waiting))
        if self._whole_rollouts:
            own = [part for part in parts if isinstance(part, Steps)]
            collected = len(self.replay) + waiting
            missing = self.update_schedule.steps_until_update(self.progress.step, collected) or 0
            if sum(map(len, own)) < missing * self.count - collected % self.count:
                self._waiting += [part.copied() for part in own]  # workers may share their memory
                whole = ()
            else:
                whole = _continuous([*self._waiting, *own])
        stored = whole
        if whole and self.rewriters is not None:
            own = [part for part in whole if isinstance(part, Steps)]  # runs of gradients from workers refuse rewriters
            stored = self.rewriters(own, self.progress.step - waiting, self.progress.total)
        for steps in parts:
            self.progress.count(steps)
        for steps in stored:
            self.store(steps)
        if whole:
            self._waiting, self._unseen = [], () if self.moments is None else whole

    def skip(self, steps: CollectedSteps) -> None:
        """Count steps that are not learned from; the next stored ones do not continue those before."""
        self._waiting, self._unseen = [], ()
        self.progress.count(steps)
        due = self.update_schedule.updates_due(self.progress, self.replay)  # a phase that would be due
        if self._draws_noise:
            self._draw_noise(due)
        if self.update_schedule.forgets:
            self.replay.clear()

    def store(self, steps: CollectedSteps, buffer: Replay | None = None) -> None:
        """Add steps to the replay, or to this buffer of it."""
        if self.agent.config.clip_reward:
            assert isinstance(steps, Steps)  # configs of gradients from workers refuse it
            steps = replace(steps, reward=np.sign(steps.reward))
        if self.scale is not None:
            assert isinstance(steps, Steps)  # configs of gradients from workers refuse it
            self.scale.restart(steps.columns[steps.restarted])
            gamma = self.hyper()["gamma"]
            if isinstance(self.scale, RunningScales):
                self.scale.update(steps.reward, turns(steps), steps.columns, gamma)
            else:
                self.scale.update(steps.reward, steps.terminated | steps.truncated, steps.columns, gamma)
        (self.replay if buffer is None else buffer).add(steps)

    def learn_if_due(self) -> Learned | None:
        """A learning phase, if one is due."""
        due = self.update_schedule.updates_due(self.progress, self.replay)
        if not due.gradient_steps:
            if self._draws_noise:
                self._draw_noise(due)
            return None
        began, progress, hyper = time.perf_counter(), self.progress, self.hyper(due.steps)
        self.replay.adjust(hyper if self.scale is None else hyper | {"reward_scale": self.scale.factor})
        if self.adapting is not None:
            self.adapting.trim()
        losses: dict[str, float] = {}
        metrics: dict[str, float] = {}
        adjusted: tuple[Adjusted, ...] = ()
        batches: Any = None
        ahead, self.ahead = self.ahead, None
        for k in self.portions(due) if ahead is None else [due.gradient_steps]:
            if ahead is not None:
                update = ahead(hyper)
            else:
                batches = self.replay.sample(k, due.size)
                if self.terms.buffers:
                    batches = self.terms.added_to(batches, k, hyper)
                update = self.gradients(batches, hyper, progress.gradient_steps)
            if update.td_error is not None:
                self.replay.update(batches, update.td_error, update.ratio)
            for means, values in ((losses, update.losses), (metrics, update.metrics)):
                add_to_means(means, values, k, due.gradient_steps)
        if self.adapting is not None:
            given = all_at(self.agent.config, self.engine.layout.hyper, progress.step, progress.total, due.steps)
            adjusted = self.adapting.observe(progress.step, batches, update, metrics, given)
            if adjusted:
                self._follow_schedule(self.adapting.update_schedule())
        if moved := self.engine.layout.agent.after_phase(self.engine.weights, metrics):
            if ahead is not None:
                raise ConfigError(f"fused = True, but {self.agent}.after_phase moves {', '.join(moved)}.")
            self.engine.load(moved)
        if self.rewriters is not None:
            metrics |= self.rewriters.metrics()
        for measure in self.measured_by:
            metrics |= measure(self, batches, due.gradient_steps)
        metrics |= {name: value for name, value in hyper.items() if name in self.scheduled}
        before, progress.gradient_steps = progress.gradient_steps, progress.gradient_steps + due.gradient_steps
        if self._reset_every is not None:
            count = progress.gradient_steps // self._reset_every
            if count > before // self._reset_every:
                self._reset(count)
        seconds = time.perf_counter() - began
        if self.update_schedule.forgets:
            self.replay.clear()
        if self._draws_noise:
            self._draw_noise(due)
        compiled = self.engine.compile_seconds - self._compile_seconds
        self._compile_seconds += compiled
        return Learned(progress.step, progress.gradient_steps, losses, metrics, seconds, adjusted, compiled)

    def portions(self, due: UpdatesDue) -> list[int]:
        """Of how many of the gradient steps batches are drawn at once: of few different numbers, which are compiled."""
        most = max(1, BATCH_BYTES // (due.size * self._example_bytes))
        return [min(most, due.gradient_steps - done) for done in range(0, due.gradient_steps, most)]

    def _reset(self, count: int) -> None:
        """Start again from other weights, and from an optimizer that has seen nothing. Nikishin et al. 2022, The
        primacy bias in deep reinforcement learning, arXiv:2205.07802. Moments of observations stay."""
        state, layout = self.engine.state(), self.engine.layout
        values = self._first_weights(count)
        values |= {name: state["values"][name] for name in values if name.startswith(f"{layout.normaliser}.")}
        kept = {"values": values, "noise": state["noise"]}  # beside moments and counters of the optimizer
        self.engine.restore({name: trees.map(np.zeros_like, held) for name, held in state.items()} | kept)

    def _first_weights(self, count: int) -> Weights:
        try:
            return NumpyEngine(self.agent, self.engine.spaces, generator(self._seed, "reset", count)).weights()
        except NetworkError:
            raise ConfigError(
                f"reset_every = {self._reset_every}, and a network is a module of your own, which alone knows its "
                "first weights. Give specs such as Mlp((64, 64)), or leave reset_every at None."
            ) from None

    def _draw_noise(self, due: UpdatesDue) -> None:
        self.explores_anew = bool(due.gradient_steps or due.steps)
        if self.explores_anew:
            self._layer_noise = self.engine.layout.draw_layer_noise(self._generator)

    def _follow_schedule(self, schedule: UpdateSchedule) -> None:
        """Count phases by this schedule from here on: it owes none for the steps before, by which another may have
        counted."""
        self.update_schedule = schedule
        schedule.updates_due(self.progress, self.replay)

    def hyper(self, over: int = 0) -> dict[str, float]:
        """The values of the hyperparameters that may change while the run goes on: now, or their means over so many
        steps before."""
        progress = self.progress
        given = all_at(self.agent.config, self.engine.layout.hyper, progress.step, progress.total, over)
        return given if self.adapting is None else self.adapting.floats(given)

    def follow_moments(self, *parts: CollectedSteps) -> bool:
        """Take the observations of these steps, or else of those that were stored last, into the normaliser; whether
        there are any, and a normaliser.

        To be called after learning, so that steps are learned from with the moments that they were acted on with.
        """
        parts, self._unseen = parts or self._unseen, ()
        if self.moments is None or not parts:
            return False
        agents = self.engine.spaces.agents
        for steps in parts:
            assert isinstance(steps, Steps)  # configs of gradients from workers refuse it
            acting = None if agents is None else acting_rows(agents, steps.observation)
            self.moments.update(steps.observation, acting)
        name = self.engine.layout.normaliser
        self.engine.load({f"{name}.{key}": value for key, value in self.moments.values().items()})
        return True

    def acting_weights(self) -> Weights:
        """What acting needs; nothing where the engine itself acts."""
        return self.engine.weights(self._read_by_acting())

    def exploring_policy(self) -> tuple[Weights, PolicyVersion]:
        """What rollouts act with: weights, with layer noise that is the same until the next learning phase, and their
        version."""
        factors = {} if self.adapting is None else self.adapting.rules.exploration()
        version = PolicyVersion(self.progress.gradient_steps, self.hyper(), factors)
        return self.engine.weights(self._read_by_acting()) | self._layer_noise, version

    def trained_weights(self) -> Weights:
        """What losses train, by name."""
        return self.engine.weights(self.engine.layout.trainable)

    def state(self) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` goes on."""
        return {
            **self.policy_state(),
            "replay": self.replay.state(),
            **({"recorded": self.terms.state()} if self.terms.buffers else {}),
            **({"rewriters": self.rewriters.state()} if self.rewriters is not None else {}),
            **({"adapting": self.adapting.rules.state()} if self.adapting is not None else {}),
            **({"waiting": plain_steps(self._waiting)} if self._waiting else {}),
        }

    def policy_state(self) -> dict[str, Any]:
        """The part of `state` that `restore` needs to act only."""
        return {
            "engine": self.engine.state(),
            "progress": asdict(self.progress),
            "layer_noise": {"noise": self._layer_noise, "generator": generator_state(self._generator)},
            "moments": None if self.moments is None else self.moments.state(),
            "scale": None if self.scale is None else self.scale.state(),
        }

    def check_state(self, held: dict[str, Stored]) -> None:
        """Raise CheckpointError where `restore` cannot continue from these components; nothing is changed."""
        self.engine.check_state(held["engine"])
        if "replay" in held:
            self.replay.check_state(held["replay"])
            self.terms.check_state(held.get("recorded", Stored({}, "recorded")))
        if "waiting" in held:
            check_steps(held["waiting"], self.count, self.engine.spaces)
        check_progress(held["progress"])
        if "layer_noise" in held:
            layer_noise = held["layer_noise"].fields(("noise", "generator"))
            layer_noise["noise"].like(self._layer_noise)
            check_generator(layer_noise["generator"])
        if self.rewriters is not None:
            self.rewriters.check_state(held.get("rewriters", Stored({}, "rewriters")))
        if self.adapting is not None and "adapting" in held:  # rules that are new begin anew
            self.adapting.rules.check_state(held["adapting"])
        if self.moments is None:
            held["moments"].like(None)
        else:
            self.moments.check_state(held["moments"])
        if self.scale is not None and held["scale"].value is not None:
            self.scale.check_state(held["scale"])

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`, which `check_state` has passed; without its replay, to act only."""
        self.engine.restore(state["engine"])
        if "replay" in state:
            self.replay.restore(state["replay"])
            self.terms.restore(state.get("recorded", {}))
        self._waiting, self._unseen = list(steps_of(state.get("waiting", []), self.engine.spaces)), ()
        self.progress = RunProgress(**state["progress"])
        if self.rewriters is not None:
            self.rewriters.restore(state.get("rewriters", {}))
        if self.adapting is not None and "adapting" in state:
            self.adapting.rules.restore(state["adapting"])
            self.update_schedule = self.adapting.update_schedule()
        self._follow_schedule(self.update_schedule)
        length = self.update_schedule.steps_until_update(self.progress.step, 0)
        if self._waiting and sum(map(len, self._waiting)) >= (length or 0) * self.count:
            self._waiting = []
            warnings.warn(
                "The checkpoint holds steps of a rollout that is not complete, and as many as a whole one has now: "
                "they are not learned from.",
                stacklevel=2,
            )
        if "layer_noise" in state:
            self._layer_noise = state["layer_noise"]["noise"]
            restore_generator(self._generator, state["layer_noise"]["generator"])
        if self.moments is not None:
            self.moments.restore(state["moments"])
        if self.scale is not None and state["scale"] is not None:
            self.scale.restore(state["scale"])


def _running_scale(agent: Agent, engine: Engine, environments: int) -> RunningScale | RunningScales:
    """The scale of rewards, or of those of each policy."""
    if not isinstance(agent, MultiAgent) or engine.spaces.agents is None:
        return RunningScale(environments, agent.config.largest_return)
    order, driven = list(engine.spaces.agents), agent.policies.driven(engine.spaces.agents)
    places = {policy: [order.index(a) for a in own] for policy, own in driven.items()}
    return RunningScales(environments, places, agent.config.largest_return)


def _continuous(parts: Sequence[Steps]) -> tuple[Steps, ...]:
    """Steps that follow each other as one; in their parts where one of them does not continue the one before, or some
    environments have more."""
    taken: dict[int, int] = {}  # time steps by environment
    for part in parts:
        if taken.keys() & part.columns[part.restarted].tolist():
            return tuple(parts)
        taken.update({column: taken.get(column, 0) + part.shape[0] for column in part.columns.tolist()})
    return (joined(parts),) if len(set(taken.values())) == 1 else tuple(parts)


def explained_variance(extras: Mapping[str, Tree]) -> dict[str, float]:
    """The metric `explained_variance`: 1 - var(return - value) / var(return) over the batches of a phase, with the
    values before the phase; 1 is a perfect critic, 0 one that is no better than a constant. Left out where the extras
    `value` and `return` are missing or all returns are equal."""
    value, target = extras.get("value"), extras.get("return")
    if value is None or target is None:
        return {}
    if ACTIVE in extras:  # of several agents, those that acted
        value, target = value[extras[ACTIVE] > 0], target[extras[ACTIVE] > 0]
    variance = float(np.var(target, dtype=np.float64)) if target.size else 0.0
    unexplained = float(np.var(target - value, dtype=np.float64))
    return {"explained_variance": 1.0 - unexplained / variance} if variance > 0 else {}


def add_to_means(means: dict[str, float], values: Mapping[str, float], gradient_steps: int, total: int) -> None:
    """Add the means over some of the `total` gradient steps of a learning phase to those over all of them."""
    for name, value in values.items():
        means[name] = means.get(name, 0.0) + value * gradient_steps / total
