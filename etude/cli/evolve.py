"""`etude evolve`: a population whose hyperparameters and networks evolve, from the command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from etude.algorithms import ALGORITHMS, OTHER_NAMES
from etude.base.errors import ConfigError
from etude.cli.options import Quiet, environment_arguments, executor, parse, split_positionals, with_address
from etude.cli.output import rows, say
from etude.tuning.evolution import Evolution, Mutations, Tournament

USAGE = "evolve ALGORITHM ENV"


@dataclass(frozen=True)
class Rates:
    """Relative probabilities of mutations, and what they change."""

    none: float = Mutations.none  # of a copy without mutation
    architecture: float = Mutations.architecture  # of a change of layers, units, filters or kernels
    new_layer: float = Mutations.new_layer  # probability that this adds or removes a layer or changes a kernel
    parameters: float = Mutations.parameters  # of noise on the weights of the acting network
    activation: float = Mutations.activation  # of another activation function
    hyperparameters: float = Mutations.hyperparameters  # of a step of one hyperparameter
    select: tuple[str, ...] = ()  # hyperparameters that change; (): learning rate, batch size, train_every
    limits: tuple[str, ...] = ()  # NAME=LOW:HIGH of a hyperparameter
    strength: float = Mutations.strength  # standard deviation of the noise, relative to each weight


@dataclass(frozen=True)
class Evolve:
    """Evolve a population of members that learn ALGORITHM on ENV: after every generation they are evaluated, the best
    ones are copied, and the copies mutated. Prints the population of each generation; members are run directories.

    With the --folder of an evolution that was interrupted, and the same options, it goes on.
    """

    population: int = 6  # members
    every: int = 20_000  # environment steps of each member in a generation
    steps: int | None = None  # environment steps of each member at most; None: the preset's, or 20 generations
    target: float | None = None  # end with the generation in which the mean return of an evaluation reaches it
    evaluate_episodes: int = 5  # whole episodes in the evaluation of a member; the same for all members
    mutations: Rates = field(default_factory=Rates)
    tournament_size: int = Tournament.size  # members of which the best one becomes a parent
    elitism: bool = Tournament.elitism  # the best member goes on unchanged
    over_last: int = Tournament.over_last  # fitness is the mean of so many last evaluations
    seed: int = 0  # of everything that is random
    jobs: int = 1  # members that learn at the same time, in worker processes
    ray: str | None = None  # members learn in --jobs Ray actors: local, auto or the address of a cluster; alone: local
    shared_replay: bool = False  # members of off-policy algorithms store into one replay; with one job
    folder: Path | None = None  # of the evolution; None: a new one in studies/
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    envs: int | None = None  # environments stepped in parallel by each member; None: the preset's
    env_arg: tuple[str, ...] = ()  # NAME=VALUE, keyword arguments of ENV's constructor
    quiet: Quiet = False  # print nothing but the result


def main(arguments: Sequence[str]) -> int:
    """Evolve, with a table of each generation; then say where the best member is."""
    names, rest = split_positionals(with_address(arguments))
    if len(names) != 2:
        if "--help" in rest or "-h" in rest:
            parse(Evolve, rest, USAGE)
        raise ConfigError(
            f"evolve takes an algorithm ({', '.join(ALGORITHMS)}) and an environment, before its options; got "
            f"{' '.join(names) or 'neither'}. Usage: etude {USAGE} [options]"
        )
    algorithm, env = OTHER_NAMES.get(names[0], names[0]), names[1]
    options = parse(_with_hyperparameters(algorithm, env), rest, f"evolve {algorithm} {env}")
    given = {name: getattr(options, name) for name in (
        "population", "every", "steps", "target", "evaluate_episodes", "seed", "folder", "engine", "device",
        "shared_replay",
    )}  # fmt: skip
    given |= {"environments": options.envs, "env_args": environment_arguments(options.env_arg) or None}
    given["executor"] = executor(options.jobs, ray=options.ray)
    given = {name: value for name, value in given.items() if value is not None}
    tournament = Tournament(options.tournament_size, options.elitism, options.over_last)
    unchanged = options.set == _config_for(algorithm, env)
    config = None if unchanged else options.set
    with Evolution(
        algorithm, env, config=config, mutations=_mutations(options.mutations), tournament=tournament, **given
    ) as evolution:
        return _carry_out(evolution, options.quiet)


def _with_hyperparameters(algorithm: str, env: str) -> type:
    """`Evolve` with a field `set`, the config that members begin with."""
    config = _config_for(algorithm, env)
    fields = [("set", type(config), dataclasses.field(default=config))]
    made = dataclasses.make_dataclass("Evolve", fields, bases=(Evolve,), frozen=True)
    made.__doc__ = Evolve.__doc__
    return made


def _config_for(algorithm: str, env: str) -> Any:
    from etude.training.build import config_for

    return config_for(algorithm, env)


def _mutations(rates: Rates) -> Mutations:
    limits = {}
    for text in rates.limits:
        name, _, ends = text.partition("=")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise ConfigError(
                f"--mutations.limits {text}: expected NAME=LOW:HIGH, as in learning_rate=1e-4:1e-2."
            ) from None
        limits[name.replace("-", "_")] = (low, high)
    given = {f.name: getattr(rates, f.name) for f in dataclasses.fields(rates) if f.name not in ("limits", "select")}
    return Mutations(**given, limits=limits, select=tuple(name.replace("-", "_") for name in rates.select))


class GenerationTables:
    """Prints the population when a generation is complete."""

    def __init__(self) -> None:
        self._shown = 0

    def __call__(self, evolution: Evolution) -> None:
        if evolution.generation > self._shown and not evolution.state.in_flight:
            self._shown = evolution.generation
            say(f"\nGeneration {self._shown}, {evolution.global_steps:,} environment steps in all")
            header, members = evolution.table()
            rows([header, *members])


def _carry_out(evolution: Evolution, quiet: bool) -> int:
    evolution.run(() if quiet else GenerationTables())
    failed = [trial for trial in evolution.trials if trial.status == "failed"]
    for trial in failed:
        say(f"Member {trial.number} failed: {trial.reason}")
    best = evolution.best
    if not evolution.finished:
        say(f"\nInterrupted. The same command with --folder {evolution.folder} goes on.")
        return 130
    evolution.plot(evolution.folder / "evolution.png")
    evolution.lineage.plot(evolution.folder / "lineage.png")
    say(f"\nBest: member {best.trial} at step {best.step:,}, fitness {best.fitness:.4g}")
    say(f"The evolution is in {evolution.folder}: evolution.png, lineage.png")
    rows([(f"etude evaluate {best.path}", "its return over 20 episodes"), (f"etude watch {best.path}", "see it play")],
         indent="  ")  # fmt: skip
    return 0
