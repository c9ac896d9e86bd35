"""`etude estimate`: what a trained agent would earn, from episodes that another policy played."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from etude.base.errors import ConfigError
from etude.cli.options import explorer, one_run, parse, split_positionals
from etude.cli.output import rows, say


@dataclass(frozen=True)
class EstimateOptions:
    """Estimate what the agent of RUN, a run directory or a checkpoint file, would earn in an episode, from the recorded
    episodes of another policy.

    Prints a table of mean discounted returns with intervals. Methods by ratios (is, pdis, wis, trajectory_wis, dr, wdr)
    need the data's log_prob; fqe and dm train a critic.
    """

    data: str | None = None  # a file of recorded episodes: .h5, .hdf5 or .parquet
    methods: tuple[str, ...] = ("wis",)  # is, pdis, wis, trajectory_wis, dm, dr, wdr, fqe, simulation
    confidence: float = 0.95  # of the intervals
    gamma: float | None = None  # discount factor; None: the run's
    explore: bool = False  # estimate the policy that explores as in training, not the best actions
    explorer: str | None = None  # estimate the policy of NAME[=NUMBER], such as boltzmann=1
    softened: float | None = None  # estimate the best actions, softened: random with this probability (Box: Gaussian)
    fqe_steps: int | None = None  # gradient steps of the critic; None: 10,000
    episodes: int = 100  # of the simulation
    output: Path | None = None  # picture of the estimates to write, a PNG; None: none
    seed: int | None = None  # of resampling, critic and simulation; None: the run's
    checkpoint: Literal["last", "best"] = "last"  # checkpoint of a run directory: newest, or highest evaluated return
    env: str | None = None  # another environment with the same spaces; None: the run's
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Print the estimates."""
    names, rest = split_positionals(arguments)
    options: EstimateOptions = parse(EstimateOptions, rest, "estimate RUN")
    path = one_run(names, "estimate")
    from etude.cli.runs import trained

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        _report(run, options)
    return 0


def _report(run, options: EstimateOptions) -> None:
    from etude.estimation import EstimateRequest, Estimator, FQEConfig

    request = EstimateRequest(
        data=options.data,
        methods=options.methods,
        confidence=options.confidence,
        gamma=options.gamma,
        explore=options.explore,
        explorer=None if options.explorer is None else explorer(options.explorer),
        softened=options.softened,
        model=None if options.fqe_steps is None else FQEConfig(steps=options.fqe_steps),
        episodes=options.episodes,
        seed=options.seed,
    )
    found = Estimator(run, request)()
    say(f"{run.algorithm} on {run.environment} after {run.step:,} steps, from {options.data}:")
    rows(found.rows(), indent="  ")
    say(f"The behaviour's own value is {found.behaviour:.4g}.")
    for note in found.notes:
        say(note)
    if options.output is not None:
        _draw(found, options.output)


def _draw(found, output: Path) -> None:
    from etude.report.plots import draw_estimates

    try:
        draw_estimates(found, output)
    except OSError as error:
        raise ConfigError(
            f"The picture {output} cannot be written: {error.strerror or error}. Name another file: --output."
        ) from error
    say(f"Drawn: {output}")
