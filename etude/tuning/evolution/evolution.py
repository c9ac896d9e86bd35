"""Evolution of the hyperparameters and networks of a population, as a study: its scheduler, mutated copies of runs, and
the members as they were evaluated."""

from __future__ import annotations

import copy
import functools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from etude.agent import Agent
from etude.base import checks, trees
from etude.base.errors import ConfigError
from etude.base.seeding import generator
from etude.checkpoint.config_json import from_json
from etude.engines.activations import ActivationSample, in_numpy
from etude.engines.numpy import NumpyEngine
from etude.engines.parameter_layout import ParameterLayout
from etude.envs import make_environments
from etude.replay import Buffer, MixedReplay
from etude.report.studies import MemberCurve, draw_evolution, draw_lineage, number_text
from etude.rollout import InProcess
from etude.run import Run, from_state, load
from etude.run.shared_rows import copy_checkpoint
from etude.training.assembly.agents import fitted as fitted_agent
from etude.training.assembly.described import agents_for
from etude.training.kinds import kind_of
from etude.training.learner import Learner
from etude.tuning.evolution.mutations import Mutations, value_at_start
from etude.tuning.evolution.structure import (
    HYPERPARAMETER,
    NONE,
    PARAMETERS,
    ArchitectureLimits,
    Mutation,
    hidden_units,
    shape_of,
)
from etude.tuning.evolution.transfer import MEASURED, transfer
from etude.tuning.journal import described_trials, preset_steps
from etude.tuning.segment import TrialTraining, trial_folder
from etude.tuning.study import Study, trained_as
from etude.tuning.trial import Copy, Decision, Genome, Go, New, Stop, StudyPlan, StudyState, Trial, failures, lineage

FAILED = -math.inf  # the fitness of a member that diverged or failed


@dataclass(frozen=True)
class Tournament:
    """Tournament selection: each place of the next generation goes to the best of `size` members that are drawn with
    replacement. Goldberg & Deb 1991, "A comparative analysis of selection schemes used in genetic algorithms".
    """

    size: int = 2
    elitism: bool = True  # the best member goes on unchanged
    over_last: int = 1  # fitness is the mean of so many last evaluations

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "size", "over_last")

    def fitness(self, histories: Sequence[Sequence[float]]) -> list[float]:
        """The fitness of each member, from all of its fitness values so far: the mean of the last ones, minus infinity
        where one of them is NaN, or there is none."""
        last = [list(history)[-self.over_last :] for history in histories]
        return [FAILED if not own or any(map(math.isnan, own)) else statistics.fmean(own) for own in last]

    def best(self, histories: Sequence[Sequence[float]]) -> int:
        """The best member; of equally good ones the first."""
        return int(np.argmax(self.fitness(histories)))

    def __call__(self, histories: Sequence[Sequence[float]], rng: np.random.Generator) -> list[int]:
        """The parent of each member of the next generation, as many as there are. With elitism the first one is the
        best member, which is to go on unchanged. Of equally good ones the first that was drawn wins; a member without
        fitness wins only where no other was drawn."""
        fitness, n = self.fitness(histories), len(histories)
        chosen = [self.best(histories)] if self.elitism else []
        while len(chosen) < n:
            drawn = rng.integers(n, size=self.size)
            chosen.append(int(drawn[np.argmax([fitness[i] for i in drawn])]))
        return chosen


@dataclass(frozen=True)
class Generations:
    """Takes all members of a population `every` steps on, compares them, and replaces members by mutated copies.

    The best member goes on as it is (with elitism), and so does a parent of which a copy without mutation is due, if
    its place is free. Every other place goes to a mutated copy with a seed of its own. Results do not depend on how
    many trials run at a time: a generation is compared when all of it is there, and what it draws is derived from the
    study's seed and its number.
    """

    grows: ClassVar[tuple[str, ...]] = ("steps",)  # members are those of the beginning

    every: int  # environment steps of each member in a generation
    mutations: Mutations = Mutations()
    tournament: Tournament = Tournament()

    def __post_init__(self) -> None:
        checks.declared(self)
        checks.counts(self, "every")

    def check(self, state: StudyState) -> None:
        """Raise ConfigError where the mutations do not suit the config, or a generation ends between evaluations."""
        if state.plan.evaluate_every != self.every or len(state.plan.seeds) < 2:
            raise ConfigError(
                f"Generations: every = {self.every:,}, evaluate_every = {state.plan.evaluate_every:,}, "
                f"{len(state.plan.seeds)} seeds; expected one evaluation in each generation, and two members or more, "
                "one for each seed."
            )
        if state.plan.shared_replay and "buffer_size" in self.mutations.select:
            raise ConfigError(
                "Mutations: select names buffer_size, which members with shared_replay = True have alike."
            )
        self.mutations.check(state.space.base)

    def decide(self, state: StudyState) -> Sequence[Decision]:
        """See `Scheduler`."""
        if state.unproposed:
            return [New(self.every)]
        members = population(state.trials)
        if state.in_flight:
            return []
        if reached := [trial.number for trial in members if trial.status == "finished"]:
            return [Stop(trial.number, f"trial {reached[0]} is finished") for trial in members if trial.rests]
        if all(trial.status == "failed" for trial in members):
            return []
        done = max(trial.until for trial in members)
        rng = generator(state.plan.seed, "evolution", done // self.every)
        histories = [fitness_values(state.trials, trial, self.every) for trial in members]
        best = self.tournament.best(histories)
        fitness = self.tournament.fitness(histories)
        parents = [i if fitness[i] > FAILED else best for i in self.tournament(histories, rng)]
        until, going = min(done + self.every, state.plan.steps), dict[int, Decision]()
        born: list[tuple[Trial, Genome, Mutation]] = []
        for place, i in enumerate(parents):
            genome, mutation = members[i].genome, Mutation()
            if place > 0 or not self.tournament.elitism:
                config, mutation = self.mutations(genome.config, rng)
                genome = replace(genome, config=config, seed=int(rng.integers(2**31)))
            if mutation.kind == NONE and i not in going:
                going[i] = Go(members[i].number, until)
            else:
                born.append((members[i], genome, mutation))
        replaced = [trial for i, trial in enumerate(members) if i not in going]
        copies = [
            Copy(parent.number, genome, old.number, until, asdict(mutation))
            for old, (parent, genome, mutation) in zip(replaced, born, strict=True)
        ]
        return [*copies, *going.values()]  # copies begin where their parents are now


def population(trials: Sequence[Trial]) -> list[Trial]:
    """The members of the present generation."""
    return [trial for trial in trials if trial.status != "stopped"]


def fitness_values(trials: Sequence[Trial], member: Trial, every: int) -> list[float]:
    """The fitness of a member and of its ancestors, generation by generation; nothing where it failed."""
    if member.status == "failed":
        return []
    line = lineage(trials, member.number)
    ends = [each.first for each in line[1:]] + [member.until]
    counts = [(end - each.first) // every for each, end in zip(line, ends, strict=True)]
    return [score.mean for each, count in zip(line, counts, strict=True) for score in each.scores[:count]]


ROWS = 256  # of a sample
ENVIRONMENTS = 8  # that a sample is collected from
SAMPLE = 15_485_863  # added to a run's seed for the episodes of samples


def mutated(run: Run, mutations: Mutations, rng: np.random.Generator, seed: int | None = None) -> tuple[Run, Mutation]:
    """(a copy of a run after one mutation, what changed). The run stays as it is.

    The copy has the run's step, replay, normalisers, target networks and optimizer moments. seed: of the copy; None
    draws one. Raises ConfigError for a run of several policies, and as `Mutations.check`.
    """
    config, mutation = mutations(_check_one_policy(run).agent.config, rng)
    drawn = int(rng.integers(2**31))
    return copied(run, config, mutation, drawn if seed is None else seed), mutation


def copied(run: Run, config: Any, mutation: Mutation, seed: int) -> Run:
    """A copy of a run with the config that a mutation of its own led to; see `mutated`."""
    before = _check_one_policy(run).agent.config
    made = run.described().learning(config, run.agent)
    own = {"agent": made.algorithm} if made.config is None else {"config": config}

    def fit(child: Run, state: dict[str, Any]) -> dict[str, Any]:
        return fitted(child, state, before, mutation)

    return from_state(run.state(), run.environment, trust=True, fit=fit, seed=seed, explorer=run.explorer, **own)


class Descendant(NamedTuple):
    """A member of the next generation. parent: its place in the generation before. mutation: what changed."""

    run: Run
    parent: int
    mutation: Mutation


def next_generation(
    runs: Sequence[Run],
    histories: Sequence[Sequence[float]],
    tournament: Tournament,
    mutations: Mutations,
    rng: np.random.Generator,
) -> list[Descendant]:
    """The runs that take the place of these: with elitism the best one itself, and mutated copies of the parents that
    win tournaments. The other runs are closed.

    histories: the fitness values of each run so far, those of its ancestors included.
    """
    parents = tournament(histories, rng)
    born = []
    for place, parent in enumerate(parents):
        if place == 0 and tournament.elitism:
            born.append(Descendant(runs[parent], parent, Mutation()))
        else:
            child, mutation = mutated(runs[parent], mutations, rng)
            born.append(Descendant(child, parent, mutation))
    for run in runs:
        if all(run is not each.run for each in born):
            run.close()
    return born


def fitted(child: Run, state: dict[str, Any], before: Any, mutation: Mutation) -> dict[str, Any]:
    """The state of the parent's run as one that the child restores. before: the parent's config."""
    learner = _check_one_policy(child)
    engine, replay, layout = learner.engine, learner.replay, learner.engine.layout
    assert isinstance(layout, ParameterLayout)
    ring = state["replay"].get("ring", {})
    if isinstance(replay, Buffer) and "filled" in ring and not ring["filled"].any():
        own = replay.ring.state()  # made for a recurrent state of the child's size
        state = {**state, "replay": {**state["replay"], "ring": own}}
    if not in_numpy(layout):  # modules of the user's own, whose architecture no mutation changes
        return {**state, "engine": transfer(state["engine"], layout, layout, mutation)}
    agent = copy.copy(child.agent)
    agent.config = before
    parent = NumpyEngine(agent, engine.spaces)
    parent.load(state["engine"]["values"])
    if parent.state_size != engine.state_size:  # the rollout begins anew
        state = {name: part for name, part in state.items() if name != "waiting"}
    sample = sample_from(child, state, parent) if mutation.kind in (*MEASURED, PARAMETERS) else None
    return {**state, "engine": transfer(state["engine"], parent.layout, layout, mutation, sample)}


def sample_from(run: Run, state: dict[str, Any], actor: Any) -> ActivationSample:
    """What activations are measured on: a batch of the saved replay. Where that holds few rows that were not recorded,
    as on-policy replays do between two learning phases, observations of steps that the actor takes, on environments of
    their own."""
    replay, length = _check_one_policy(run).replay, run.agent.config.example_length
    if "replay" in state:
        replay.check_state(checks.Stored(state["replay"], "replay"))
        replay.restore(state["replay"])
    if len(replay) >= ROWS or not kind_of(run.agent).steps_environments:
        batches = replay.sample(1, max(1, ROWS // length))
        batch = batches.map(lambda leaf: leaf[0])
        observation = batch.observation
        if "mine" in batch.extras:  # whole games, which losses read; what acts reads windows
            held: Any = next(iter(replay.buffers.values())) if isinstance(replay, MixedReplay) else replay
            observation = held.ring.observation(held.sample(1, ROWS).index[0])
        elif length > 1:
            observation = trees.flat(observation)
        return ActivationSample(observation, batch)
    seed = run.execution.seed + SAMPLE
    environments = make_environments(run.environment, np.arange(ENVIRONMENTS), run_seed=seed)
    rollout = InProcess(environments, actor, run.exploring(ENVIRONMENTS), seed)
    try:
        seen = rollout.collect(ROWS // ENVIRONMENTS, state["progress"]["step"]).observation
        return ActivationSample(trees.flat(seen))
    finally:
        rollout.close()


def _check_one_policy(run: Run) -> Learner:
    """The learner of a run; ConfigError where it has several policies of different algorithms."""
    if not isinstance(run.learner, Learner):
        raise ConfigError(
            "Evolution mutates runs of one algorithm, and this one trains a dict of policies. Evolve an algorithm for "
            "several agents, such as maddpg, matd3 or mappo."
        )
    return run.learner


KNOWN = (Generations, Mutations, Tournament, ArchitectureLimits)
DEFAULT_GENERATIONS = 20  # where neither steps nor a preset say how long it goes on
EPISODES = 5  # of the evaluation of each member in a generation


@dataclass(frozen=True)
class Individual:
    """A member of a population as it was evaluated.

    trial: its number. step: at which it was evaluated; the steps of its ancestors are counted. fitness: the mean return
    of that evaluation. path: of its checkpoint.
    """

    trial: int
    step: int
    fitness: float
    genome: Genome
    path: Path = field(repr=False)

    def save(self, path: str | PathLike[str]) -> None:
        """Copy its checkpoint, which `etude.load` reads; it acts as it did when it was evaluated."""
        copy_checkpoint(self.path, Path(path))

    def load(self, **given: Any) -> Run:
        """Its run; see `etude.load`."""
        return load(self.path, **{"config": self.genome.config, "trust": True, **given})


class Lineage:
    """Which member came from which, and how."""

    def __init__(self, trials: Sequence[Trial]):
        self._trials = trials

    def of(self, trial: int) -> list[tuple[Trial, Mutation]]:
        """A member and its ancestors, the oldest first, each with the mutation that made it of its parent."""
        return [(each, mutation_of(each)) for each in lineage(self._trials, trial)]

    def plot(self, path: str | Path | None = None) -> Any:
        """The tree of all members over environment steps, coloured by fitness. Returns the matplotlib figure, and
        writes it to `path` where one is given."""
        return draw_lineage(curves_of(self._trials), path)


class Evolution(Study):
    """A population whose members learn, and after every generation undergo selection and mutation.

    algorithm, env, folder, jobs, further: as of `Study`.
    population: members. every: environment steps of each member in a generation, after which it is evaluated.
    steps: of each member at most; None: those of the preset, or 20 generations. Rounded down to whole generations.
    target: evolution ends with the generation in which the mean return of an evaluation reaches it.
    mutations, tournament: how members change, and which have children.
    training: how members are trained and evaluated (callbacks, evaluate_episodes, shared_replay); all members play the
        same episodes, on environments of their own. None: 5 episodes in each evaluation.
    seed: of everything that is random: the same seed gives the same lineage and weights, whatever `jobs` is.
    """

    def __init__(
        self,
        algorithm: str | Agent,
        env: Any,
        *,
        population: int = 6,
        every: int = 20_000,
        steps: int | None = None,
        target: float | None = None,
        mutations: Mutations | None = None,
        tournament: Tournament | None = None,
        seed: int = 0,
        training: TrialTraining | None = None,
        **further: Any,
    ):
        checks.whole_number("population", population, 2, " members")
        checks.whole_number("every", every, of=", in environment steps")
        training = training or TrialTraining(evaluate_episodes=EPISODES)
        training, jobs = trained_as("Evolution", training, further.pop("jobs", 1), further)
        folder = further.pop("folder", None)
        made = described_trials(algorithm, env, further)
        if steps is None:
            steps = preset_steps(made) or DEFAULT_GENERATIONS * every
        checks.whole_number("steps", steps, of=", in steps of a member")
        every = min(every, steps)
        rng = generator(seed, "population")
        seeds: list[int] = []
        while len(seeds) < population:
            drawn = int(rng.integers(2**31))
            seeds += [drawn] * (drawn not in seeds)
        own = made.options()
        if not isinstance(made.algorithm, Agent):  # with the networks that it has here, such as convolutions for images
            _, agent, *_ = fitted_agent(made.environment.configured(), functools.partial(agents_for, made))
            own["config"] = agent.config
        super().__init__(
            made.algorithm, made.environment.env, {}, steps=steps // every * every, trials=1, seeds=seeds,
            scheduler=Generations(every, mutations or Mutations(), tournament or Tournament()),
            seed=seed, folder=folder, jobs=jobs, **own, training=replace(
                training, evaluate_every=every, evaluate_seed=int(rng.integers(2**31)), save_every=every,
                target=training.target if target is None else target, fit=fit_member,
            ),
        )  # fmt: skip

    def _as_given(self, plan: dict[str, Any]) -> dict[str, Any]:
        del plan["save_every"]
        return {"every": plan.pop("evaluate_every"), "population": len(plan.pop("seeds")), **plan}

    _made_by = "etude.evolve(...)"
    _command = "evolve"

    @classmethod
    def _asked(cls, held: dict[str, Any], plan: StudyPlan, given: Mapping[str, Any], folder: Any) -> dict[str, Any]:
        if held["scheduler"].get("class") != Generations.__name__:
            raise ConfigError(
                f"The study in {folder} is no evolution. Go on with it by etude.Study.load(folder).run() (etude "
                f"tune --resume {folder})."
            )
        scheduler = from_json(Generations, held["scheduler"], KNOWN)
        return {
            "population": len(plan.seeds), "every": scheduler.every, "steps": plan.steps,
            "mutations": scheduler.mutations, "tournament": scheduler.tournament, "seed": plan.seed,
        }  # fmt: skip

    @property
    def generation(self) -> int:
        """How many generations are complete."""
        steps = [trial.step for trial in self.members if trial.status != "failed"]
        return min(steps, default=0) // self.plan.evaluate_every

    @property
    def members(self) -> list[Trial]:
        """The population as it is now."""
        return population(self.trials)

    @property
    def global_steps(self) -> int:
        """Steps of all members so far (gradient steps, on recorded data), and those of their evaluations."""
        return self.steps + sum(score.cost for trial in self.trials for score in trial.scores)

    @property
    def best(self) -> Individual:  # type: ignore[override]
        """The member with the highest fitness at any of its evaluations, as it was evaluated there; of equally good
        ones the first. ConfigError where none was evaluated."""
        scored = [(score.mean, -score.step, -trial.number, trial) for trial in self.trials for score in trial.scores]
        if not scored:
            raise ConfigError(f"No member was evaluated yet{failures(self.trials)}.")
        fitness, step, number, trial = max(scored, key=lambda found: found[:3])
        path = trial_folder(self.folder, trial.number) / "checkpoints" / "best.etude"
        return Individual(trial.number, -step, fitness, trial.genome, path)

    def summary(self) -> str:
        """How far the evolution is, in a line."""
        complete, every, members = self.generation, self.plan.evaluate_every, self.members
        evaluated = sum(any(score.step > complete * every for score in trial.scores) for trial in members)
        present = f", {evaluated} of {len(members)} members evaluated in the next one" if evaluated else ""
        return (
            f"Generation {complete} of at most {self.plan.steps // every}{present}; {self.global_steps:,} steps in all"
        )

    def table(self) -> tuple[list[str], list[list[str]]]:
        """A header, and a row for each member, the best one first."""
        assert isinstance(self.scheduler, Generations)
        mutations, found = self.scheduler.mutations, list[list[str]]()
        for trial in sorted(self.members, key=lambda member: -member.score()):
            config = trial.genome.config
            held = {name: value_at_start(getattr(config, name)) for name in mutations.selected(config)}
            numbers = " ".join(f"{name}={value:.3g}" for name, value in held.items())
            found.append([
                str(trial.number), number_text(trial.score()), "" if trial.parent is None else str(trial.parent),
                str(mutation_of(trial)) if trial.parent is not None else "", numbers, shape_of(config.network),
            ])  # fmt: skip
        return ["member", "fitness", "parent", "mutation", "hyperparameters", "network"], found

    @property
    def lineage(self) -> Lineage:
        """Which member came from which."""
        return Lineage(self.trials)

    def plot(self, path: str | Path | None = None) -> Any:
        """Fitness of all members over the environment steps of all of them and of evaluations, trajectories of the
        hyperparameters that are mutated, and the size of the networks. Returns the matplotlib figure, and writes it to
        `path` where one is given."""
        return draw_evolution(curves_of(self.trials), path)


def evolve(algorithm: str | Agent, env: Any, *, reporters: Any = (), **given: Any) -> Evolution:
    """Evolve a population to its end; arguments as of `Evolution`. With the `folder` of an evolution that was
    interrupted, it goes on from there.

    reporters: functions of the evolution, called whenever a member was evaluated, ended or failed, such as
        `report.EvolutionTable()`.
    """
    with Evolution(algorithm, env, **given) as evolution:
        evolution.run(reporters)
    return evolution


def fit_member(child: Run, state: dict[str, Any], parent: Genome, change: dict[str, Any]) -> dict[str, Any]:
    """See `segment.Fit`: the state of the parent, with its networks mutated as the change says."""
    return fitted(child, state, parent.config, _mutation_from(change))


def mutation_of(trial: Trial) -> Mutation:
    """How a member came from its parent; none for one of the first generation."""
    return _mutation_from(trial.change) if trial.change else Mutation()


def _mutation_from(change: Mapping[str, Any]) -> Mutation:
    """The mutation that `dataclasses.asdict` described."""
    return from_json(Mutation, {"class": Mutation.__name__, **change})


def changed_fields(trials: Sequence[Trial]) -> list[str]:
    """The hyperparameters that some mutation changed."""
    return sorted({mutation.field for mutation in map(mutation_of, trials) if mutation.kind == HYPERPARAMETER})


def curves_of(trials: Sequence[Trial]) -> list[MemberCurve]:
    """What pictures show of the members."""

    def until(step: int) -> int:
        taken = sum(min(max(step - trial.started, 0), trial.taken) for trial in trials)
        return taken + sum(score.cost for trial in trials for score in trial.scores if score.step <= step)

    changed = changed_fields(trials)
    curves = []
    for trial in trials:
        config = trial.genome.config
        numbers = {name: value_at_start(getattr(config, name)) for name in changed}
        points = [(score.step, until(score.step), score.mean) for score in trial.scores]
        change = "" if trial.parent is None else str(mutation_of(trial))
        units = hidden_units(config.network)
        curves.append(MemberCurve(trial.number, trial.parent, trial.started, change, points, numbers, units))
    return curves
