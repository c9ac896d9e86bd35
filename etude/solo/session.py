"""The session of an agent: its replay, engine and environments, kept from one call of `train` to the next."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from etude.base.checks import Stored
from etude.base.cores import Busy
from etude.base.errors import CheckpointError, ConfigError, EtudeError, NumericalError
from etude.protocols import Explorer, ProcessGroup, Rollout
from etude.rollout import BroadcastRollout, InProcess, Pool, PoolOptions, acting_in_process, buffer_size
from etude.rollout.state import check_rollout
from etude.solo.adjusting import Adjuster
from etude.solo.callbacks import EndTraining
from etude.solo.engines import numbers, take_numbers
from etude.solo.learner import EpisodeLearner
from etude.solo.options import Options
from etude.solo.policies import acting_in_worker
from etude.solo.settings import Settings
from etude.training.rollout_lifecycle import RolloutLifecycle

EXAMPLES = {"keras": "keras.optimizers.Adam()", "torch": "torch.optim.Adam(agent.param)"}


@dataclass(frozen=True, eq=False)
class SessionKey:
    """What a session is built from; where nothing of it changes, training continues with the same session."""

    settings: Settings
    environments: Any  # the agent's `env`
    count: int
    optimizers: tuple[Any, ...]
    jit_compile: bool
    strategy: Any = None  # of tf.distribute

    @classmethod
    def of(cls, agent: Any, settings: Settings, options: Options, strategy: Any) -> SessionKey:
        """The key for `train` with these options; ConfigError where the agent lacks what training needs."""
        _check_agent(agent)
        environments = agent.env if isinstance(agent.env, list | tuple) else [agent.env]
        count = options.workers or len(environments)
        optimizer = agent.optimizer
        optimizers = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
        return cls(settings, agent.env, count, optimizers, options.jit_compile, strategy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionKey):
            return NotImplemented
        same_objects = self.environments is other.environments and self.strategy is other.strategy
        same_objects = same_objects and self.trains_with(other)
        mine, others = ((key.settings, key.count, key.jit_compile) for key in (self, other))
        return same_objects and mine == others

    def trains_with(self, other: SessionKey) -> bool:
        """Whether the optimizers are the same objects."""
        return [id(one) for one in self.optimizers] == [id(one) for one in other.optimizers]


def _check_agent(agent: Any) -> None:
    name, given = type(agent).__name__, agent.optimizer
    for attribute, what in (("env", "an environment, a Gymnasium id or a callable"), ("param", "what is trained")):
        if getattr(agent, attribute) is None:
            raise ConfigError(f"{attribute} of {name} is not set; give it {what}, in __init__.")
    if given is None or (isinstance(given, list | tuple) and any(one is None for one in given)):
        raise ConfigError(
            f"train needs an optimizer the first time it is called, or one for each list in param; got {given!r}. Give "
            f"it one, such as {EXAMPLES[agent.framework]}."
        )


class Session:
    """The parts of one agent's training.

    make_environments: from their numbers in the run to environments. explorer: of all of them. adjuster: moves
    hyperparameters of the learner. group: the processes that train the agent, where they are several. chief: whether
    this process, of all that train the agent, steps the environments, reports and saves.
    """

    def __init__(
        self,
        make_environments: Any,
        explorer: Explorer,
        learner: EpisodeLearner,
        adjuster: Adjuster,
        seed: int,
        group: ProcessGroup | None = None,
    ):
        self.learner: EpisodeLearner = learner
        self.adjuster: Adjuster = adjuster
        self._group = group
        self.told = False  # of networks that stay as they are
        self.chief: bool = group is None or group.rank == 0
        self._make_environments, self._explorer, self._seed = make_environments, explorer, seed
        self._lifecycle: RolloutLifecycle | None = None
        self._rollout_state: dict[str, Any] | None = None

    def open(self, options: Options) -> RolloutLifecycle:
        """The rollout lifecycle for these options; continues where the last one ended."""
        spaces, count = self.learner.engine.spaces, self.learner.count
        make_rollout = functools.partial(self._rollout, options)
        self.learner.engine.share(self._busy(options))
        self._lifecycle = RolloutLifecycle(lambda total: self._explorer, make_rollout, spaces, count, self._seed)
        self._lifecycle.restore(self._rollout_state)
        return self._lifecycle

    @property
    def several(self) -> bool:
        """Whether several processes train the agent."""
        return self._group is not None

    def agreed(self, reason: str | None) -> str | None:
        """A reason to stop that any of the processes has that train the agent."""
        if self._group is None:
            return reason
        return next((found for found in self._group.gather("reasons to stop", reason) if found is not None), None)

    def check_alike(self, **given: Any) -> None:
        """Raise ConfigError where the processes that train the agent do not begin with the same."""
        if self._group is None:
            return
        plain = {k: v for k, v in vars(self.learner.settings).items() if isinstance(v, int | float | str | None)}
        own = {"agent": type(self.learner.engine.agent).__name__, "seed": self._seed, **plain, **given}
        own |= {"environments": self.learner.count, "episodes so far": self.learner.progress.episodes}
        chief, *others = self._group.gather("settings", own)
        for rank, other in enumerate(others, 1):
            for name in own:
                if other[name] != chief[name]:
                    raise ConfigError(
                        f"The workers of a cluster train one agent; {name} is {chief[name]!r} in worker 0 and "
                        f"{other[name]!r} in worker {rank}. Start the same program everywhere, and restore the same "
                        "file."
                    )

    def leave(self, problem: BaseException) -> None:
        """Let the other processes that train the agent end, too, unless they all raise the same."""
        alike = NumericalError | EndTraining  # computed from what all have
        known = isinstance(problem, alike) or (isinstance(problem, EtudeError) and problem.in_all_processes)
        if self._group is not None and not known:
            self._group.leave(f"{type(problem).__name__}: {problem}")

    def abort(self) -> None:
        """Stop collecting without waiting for workers: their open episodes are lost."""
        if self._lifecycle is not None:
            self._lifecycle.give_up()

    def close(self) -> None:
        """Stop collecting, and keep the state of the environments."""
        if self._lifecycle is not None:
            try:
                self._lifecycle.close()
            finally:
                self._rollout_state, self._lifecycle = self._lifecycle.state(), None

    def overlaps(self, options: Options) -> bool:
        """Whether workers collect while this process learns: they can act, and may do so with old weights."""
        can = options.workers > 0 and self.learner.engine.exportable
        return can and options.parallel_store_and_training and self.learner.regime.may_overlap

    def _busy(self, options: Options) -> Busy:
        """Workers step right after this process acts, where it acts; or act by themselves while it learns."""
        acting = 0 if self.learner.engine.exportable else options.workers
        return Busy(acting, options.workers if self.overlaps(options) else 0)

    def _rollout(self, options: Options, explorer: Explorer) -> Rollout:
        own = self._collecting(options, explorer) if self.chief else None
        if self._group is None:
            assert own is not None
            return own
        return BroadcastRollout(own, self._group, self.learner.engine.spaces, self.learner.count)

    def _collecting(self, options: Options, explorer: Explorer) -> Rollout:
        engine, count = self.learner.engine, self.learner.count
        make, seed = self._make_environments, self._seed
        actor = engine.actor()
        if not options.workers:
            return InProcess(make(range(count)), engine if actor is None else actor, explorer, seed)
        buffer = buffer_size(engine.spaces, count, options.workers)
        pool = PoolOptions(overlap=self.overlaps(options), buffer=buffer)
        if actor is None:
            return acting_in_process(make, engine, explorer, seed, count, options.workers, pool)
        make_actor = functools.partial(acting_in_worker, actor, self.learner.policies)
        return Pool(make, make_actor, explorer, seed, count, options.workers, pool)

    def state(self, replay: bool) -> dict[str, Any]:
        """Arrays and plain data, by component, from which `restore` continues. replay: whether to include it."""
        rollout = self._rollout_state if self._lifecycle is None else self._lifecycle.state()
        adjusted = self.adjuster.state()
        kept = {"adjusted": adjusted} if adjusted else {}
        policies = {str(i): numbers(policy) for i, policy in enumerate(self.learner.policies)}
        return {**self.learner.state(replay), "rollout": rollout, "policies": policies, **kept}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`; CheckpointError, and nothing changed, where it does not fit."""
        stored = Stored(state, "training").fields(("engine", "progress", "rollout"), ("replay", "adjusted", "policies"))
        self.learner.check_state(stored)
        if "adjusted" in stored:
            self.adjuster.check_state(stored["adjusted"])
        for policy in stored["policies"].table().values() if "policies" in stored else ():
            for number in policy.table().values():
                number.number()
        if state["rollout"] is not None:
            check_rollout(stored["rollout"], self.learner.count, self.learner.engine.spaces, {})
        self.learner.restore(state)
        if "adjusted" in state:
            self.adjuster.restore(state["adjusted"])
        for i, policy in enumerate(self.learner.policies):
            take_numbers(policy, state.get("policies", {}).get(str(i), {}))
        self._rollout_state = state["rollout"]

    def go_on_from_file(self, state: dict[str, Any], warn: Callable[[str], None]) -> None:
        """Continue from what a file held, and warn where a learning rate is not the one that was given."""
        given = self._learning_rates()
        self.restore(state)
        saved = self._learning_rates()
        if given != saved:
            warn(
                f"The optimizer was given with learning rate {given} and goes on with {saved}, which it was saved "
                "with. To learn with another, set it on the optimizer after this call of train."
            )

    def _learning_rates(self) -> str:
        return ", ".join(f"{one.read():g}" for one in self.learner.engine.optimizer_settings("learning_rate"))

    def go_on(self, state: dict[str, Any], alike: SessionKey, key: SessionKey) -> str:
        """Continue from the state of the session before, of the key `alike`, with what was given anew; returns why
        there is nothing to continue from, "" where there is."""
        before, now = alike.settings, key.settings
        if alike.environments is not key.environments or alike.count != key.count:
            return "it is of other environments, or of another number of processes"
        if before.pool_folder is not None:
            return "its folder goes to a new one"
        if not alike.trains_with(key):
            state["engine"] |= {"optimizers": self.learner.engine.state()["optimizers"]}
        if before.explorer is not now.explorer or before.epsilon != now.epsilon:
            del state["policies"]
        if before.alpha != now.alpha and "alpha" in state["replay"]["selector"]:
            state["replay"]["selector"]["alpha"] = now.alpha
        try:
            self.restore({name: part for name, part in state.items() if name != "adjusted"})
        except CheckpointError as error:
            return str(error)
        return ""
