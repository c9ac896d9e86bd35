"""`etude evolve`: a population whose hyperparameters and networks evolve, from the command line."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

from etude.base.errors import ConfigError
from etude.cli import INTERRUPTED
from etude.cli.options import OfStudies, executor, goes_on, resumed, run_arguments, takes
from etude.cli.output import rows, say
from etude.cli.train import asked, data_sources
from etude.cli.tune import run_shown
from etude.tuning import TrialTraining
from etude.tuning.evolution import Evolution, Mutations, Tournament

OF_EVOLUTION = ("population", "every", "steps", "target", "folder")


@dataclass(frozen=True)
@takes("none architecture new_layer parameters activation hyperparameters step strength network", of=Mutations)
class MutationOptions:
    """Relative probabilities of mutations, and what they change."""

    select: tuple[str, ...] = ()  # hyperparameters that change; (): learning rate, batch size, train_every
    limits: tuple[str, ...] = ()  # NAME=LOW:HIGH of a hyperparameter
    activations: tuple[str, ...] = tuple(Mutations.activations)  # activation functions that are drawn from


@dataclass(frozen=True)
@takes("shared_replay", of=TrialTraining)
@takes("elitism over_last", of=Tournament)
class Evolve(OfStudies):
    """Evolve a population of members that learn ALGORITHM on ENV: after every generation they are evaluated, the best
    ones are copied, and the copies mutated. Prints the population of each generation; members are run directories.

    --resume goes on with an evolution that was interrupted, or with more --steps.
    """

    population: int = 6  # members
    every: int = 20_000  # environment steps of each member in a generation
    steps: int | None = None  # environment steps of each member at most; None: the preset's, or 20 generations
    target: float | None = None  # end with the generation in which the mean return of an evaluation reaches it
    evaluate_episodes: int = 5  # whole episodes in the evaluation of a member; the same for all members
    mutations: MutationOptions = field(default_factory=MutationOptions)
    tournament_size: int = Tournament.size  # members of which the best one becomes a parent


def main(arguments: Sequence[str]) -> int:
    """Evolve, with a live table; then say where the best member is."""
    if goes_on(arguments):
        evolution, options = resumed(Evolve, arguments, "evolve", Evolution.load, "device", "workers", "steps")
        return _carry_out(evolution, options.quiet)
    algorithm, env, options, config = asked(arguments, Evolve, "evolve", ", or --resume FOLDER alone")
    given = {name: getattr(options, name) for name in OF_EVOLUTION}
    given |= {**run_arguments(options, "ray", "devices"), "data": data_sources(options.data)}
    given["jobs"] = executor(options.jobs, options.devices, options.ray)
    given["config"] = config
    given["training"] = TrialTraining(evaluate_episodes=options.evaluate_episodes, shared_replay=options.shared_replay)
    tournament = Tournament(options.tournament_size, options.elitism, options.over_last)
    evolution = Evolution(
        algorithm, env, mutations=_mutations(options.mutations), tournament=tournament,
        **{name: value for name, value in given.items() if value is not None},
    )  # fmt: skip
    return _carry_out(evolution, options.quiet)


def _mutations(options: MutationOptions) -> Mutations:
    limits = {}
    for text in options.limits:
        name, _, ends = text.partition("=")
        try:
            low, high = (float(end) for end in ends.split(":"))
        except ValueError:
            raise ConfigError(
                f"--mutations.limits {text}: expected NAME=LOW:HIGH, as in learning_rate=1e-4:1e-2."
            ) from None
        limits[name.replace("-", "_")] = (low, high)
    given = {f.name: getattr(options, f.name) for f in fields(options) if f.name not in ("limits", "select")}
    return Mutations(**given, limits=limits, select=tuple(name.replace("-", "_") for name in options.select))


def _carry_out(evolution: Evolution, quiet: bool) -> int:
    from etude.report import EvolutionTable

    with evolution:
        run_shown(evolution, quiet, EvolutionTable)
    if not evolution.finished:
        say(f"\nStopped, and saved. Continue with\n  etude evolve --resume {shlex.quote(str(evolution.folder))}")
        return INTERRUPTED
    best = evolution.best
    evolution.plot(evolution.folder / "evolution.png")
    evolution.lineage.plot(evolution.folder / "lineage.png")
    say(f"\nBest: member {best.trial} at step {best.step:,}, fitness {best.fitness:.4g}")
    say(f"The evolution is in {evolution.folder}: evolution.png, lineage.png")
    path = shlex.quote(str(best.path))
    rows(
        [(f"etude evaluate {path}", "its return over 20 episodes"), (f"etude watch {path}", "see it play")], indent="  "
    )
    return 0
