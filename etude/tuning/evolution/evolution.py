"""Evolution of the hyperparameters and networks of a population, as a study."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

from etude.agent import Agent
from etude.base.errors import CheckpointError, ConfigError
from etude.base.seeding import generator
from etude.checkpoint.config_json import from_json
from etude.report.studies import MemberCurve, draw_evolution, draw_lineage, number_text
from etude.run import Run, load
from etude.run.shared_rows import copy_checkpoint
from etude.training.assembly.agents import fitted as fitted_agent
from etude.training.assembly.described import agents_for
from etude.training.description import RunDescription
from etude.tuning.evolution.generations import Generations, Tournament, population
from etude.tuning.evolution.mutations import Mutations, value_at_start
from etude.tuning.evolution.runs import fitted
from etude.tuning.evolution.structure import HYPERPARAMETER, ArchitectureLimits, Mutation, hidden_units, shape_of
from etude.tuning.experiment import described_trials, experiment_from, preset_steps
from etude.tuning.history import plan_in
from etude.tuning.journal import NAME, read_lines
from etude.tuning.segment import TrialTraining, trial_folder
from etude.tuning.study import Study, trained_as, trained_as_before
from etude.tuning.trial import Genome, Trial, failures, lineage

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
        if type(population) is not int or population < 2:
            raise ConfigError(f"population = {population!r}; expected a whole number of at least 2 members.")
        if type(every) is not int or every < 1:
            raise ConfigError(f"every = {every!r}; expected a whole number of at least 1, in environment steps.")
        training = training or TrialTraining(evaluate_episodes=EPISODES)
        training, jobs = trained_as("Evolution", training, further.pop("jobs", 1), further)
        folder = further.pop("folder", None)
        made = described_trials(algorithm, env, further)
        if steps is None:
            steps = preset_steps(made) or DEFAULT_GENERATIONS * every
        if type(steps) is not int or steps < 1:
            raise ConfigError(f"steps = {steps!r}; expected a whole number of at least 1, in steps of a member.")
        every = min(every, steps)
        rng = generator(seed, "population")
        seeds: list[int] = []
        while len(seeds) < population:
            drawn = int(rng.integers(2**31))
            seeds += [drawn] * (drawn not in seeds)
        own = made.options() | ({} if isinstance(made.algorithm, Agent) else {"config": _fitted_config(made)})
        super().__init__(
            made.algorithm, made.environment.env, {}, steps=steps // every * every, trials=1, seeds=seeds,
            scheduler=Generations(every, mutations or Mutations(), tournament or Tournament()),
            seed=seed, folder=folder, jobs=jobs, **own, training=replace(
                training, evaluate_every=every, evaluate_seed=int(rng.integers(2**31)), save_every=every,
                target=training.target if target is None else target, fit=fit_member,
            ),
        )  # fmt: skip

    @classmethod
    def load(cls, folder: str | PathLike[str], *, trust: bool = False, **given: Any) -> Evolution:
        """The evolution in a folder, ready to go on; see `Study.load`."""
        lines, _ = read_lines(Path(folder) / NAME)
        if not lines or "study" not in lines[0]:
            raise CheckpointError(f"There is no study in {folder}: its journal is empty. Make one: etude.evolve(...).")
        held = lines[0]["study"]
        if held["scheduler"].get("class") != Generations.__name__:
            raise ConfigError(
                f"The study in {folder} is no evolution. Go on with it by etude.Study.load(folder).run() (etude "
                f"tune --resume {folder})."
            )
        scheduler, plan = from_json(Generations, held["scheduler"], KNOWN), plan_in(lines)
        training = trained_as_before(plan, given)
        again = {name: value for name, value in given.items() if name not in ("jobs", "executor")}
        asked = {
            "population": len(plan.seeds), "every": scheduler.every, "steps": plan.steps, "target": training.target,
            "mutations": scheduler.mutations, "tournament": scheduler.tournament, "seed": plan.seed,
            "training": training,
        }  # fmt: skip
        return cls(**{**asked, **experiment_from(held, again, trust), **given, "folder": folder})

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
        """Environment steps of all members so far, those of evaluations included."""
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
        evaluated = sum(trial.step > complete * every for trial in members)
        present = f", {evaluated} of {len(members)} members evaluated in the next one" if evaluated else ""
        return (
            f"Generation {complete} of at most {self.plan.steps // every}{present}; {self.global_steps:,} environment "
            "steps in all"
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
    return fitted(child, state, parent.config, mutation_from(change))


def mutation_of(trial: Trial) -> Mutation:
    """How a member came from its parent; none for one of the first generation."""
    return mutation_from(trial.change) if trial.change else Mutation()


def mutation_from(change: Mapping[str, Any]) -> Mutation:
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


def _fitted_config(made: RunDescription) -> Any:
    """The config with the networks that the algorithm has on this environment, such as convolutions for images."""
    return fitted_agent(made.environment.configured(), functools.partial(agents_for, made)).agent.config
