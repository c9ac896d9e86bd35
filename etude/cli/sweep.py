"""`etude sweep`: train one config with many seeds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tyro.conf import UseAppendAction

from etude.base.errors import ConfigError
from etude.cli import INTERRUPTED
from etude.cli.options import Quiet, run_arguments
from etude.cli.output import rows, say
from etude.cli.train import STEPS, asked

if TYPE_CHECKING:
    from etude.tuning import Sweep

OF_SWEEP = (
    "steps", "folder", "processes", "evaluate_every", "evaluate_episodes", "save_every", "vectorization",
)  # fmt: skip


@dataclass(frozen=True)
class SweepOptions:
    """Train ALGORITHM on ENV with many seeds of one config. Each seed has a run directory in the folder of the sweep.

    The seeds are divided over processes. Within one, the environments of all runs are stepped together, and the
    learning step is compiled once. Ctrl-C saves the runs; the same command with --folder goes on, also after a crash.
    """

    seeds: int = 10  # how many runs
    first_seed: int = 0  # of the first run; the others count on from it
    steps: int = STEPS  # environment steps of each run
    processes: int | None = None  # that train; None: as many as there are cores, or 1 with --device cuda
    folder: Path | None = None  # of the sweep; None: a new one in sweeps/
    evaluate_every: int | None = None  # environment steps between evaluations of a run; None: none, curves of training
    evaluate_episodes: int = 10  # whole episodes in an evaluation
    save_every: int | None = None  # environment steps between checkpoints of a run; None: a quarter of it
    # -- further
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    envs: int | None = None  # environments stepped in parallel by each run; None: as in etude train
    vectorization: Literal["auto", "loop", "native"] = "auto"  # native: one simulator for all runs of a process
    network: Literal["auto", "mlp", "conv"] = "auto"  # configured by --set.network.*; auto: conv for images
    optimizer: Literal["auto", "adam", "adamw", "rmsprop", "sgd", "lion"] = "auto"  # configured by --set.optimizer.*
    config: Path | None = None  # TOML or JSON file of hyperparameters, or a run's config.json; --set.* take precedence
    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of ENV's constructor
    wrapper: UseAppendAction[tuple[str, ...]] = ()  # module:Name of a wrapper; several are applied in order
    drop: UseAppendAction[tuple[str, ...]] = ()  # entry of Dict observations to leave out, such as mission
    frame_stack: int | None = None  # frames in an observation of ENV; None: 4 for Atari games (ALE/...), else 1
    quiet: Quiet = False  # print nothing but errors


def main(arguments: Sequence[str]) -> int:
    """Train all seeds, with a progress bar; then list what they came to."""
    algorithm, env, options, config = asked(arguments, SweepOptions, "sweep")
    if options.seeds < 1 or options.first_seed < 0:
        raise ConfigError(
            f"--seeds {options.seeds} --first-seed {options.first_seed}: expected at least 1 seed, counted from 0 or "
            "more."
        )
    return _carry_out(algorithm, env, options, config, arguments)


def _carry_out(algorithm: str, env: str, options: Any, config: Any, arguments: Sequence[str]) -> int:
    from etude.report import SweepProgress
    from etude.tuning import Sweep

    given = {name: getattr(options, name) for name in OF_SWEEP}
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    with Sweep(algorithm, env, seeds=seeds, config=config, **given, **run_arguments(options)) as sweep:
        if options.quiet:
            sweep.run()
        else:
            with closing(SweepProgress()) as bar:
                sweep.run(bar)
        return _conclude(sweep, options, arguments)


def _conclude(sweep: Sweep, options: Any, arguments: Sequence[str]) -> int:
    result = sweep.result
    code = INTERRUPTED if not sweep.finished else 1 if sweep.failed else 0
    paths = result.write()
    if options.quiet:
        return code
    say()
    header, lines = result.table()
    rows([header, *lines])
    say(f"\n{result.summary()}")
    for reason, seeds in _by_reason(sweep.failed).items():
        say(f"\nFailed, and saved before: seed {', '.join(map(str, seeds))}. {reason}")
    if code:
        folder = [] if options.folder else ["--folder", str(sweep.folder)]
        command = shlex.join(["etude", "sweep", *arguments, *folder])
        say(f"\nGo on from the checkpoints in {sweep.folder} with\n  {command}")
    say()
    say("\n".join(map(str, paths)))
    best = result.directory(int(lines[0][0]))
    rows([(f"etude evaluate {best}", "the return of one run over 20 episodes"),
          (f"etude plot {sweep.folder}", "the mean learning curve")], indent="  ")  # fmt: skip
    return code


def _by_reason(failed: dict[int, str]) -> dict[str, list[int]]:
    """The seeds that failed, by reason."""
    found: dict[str, list[int]] = {}
    for seed, reason in failed.items():
        found.setdefault(reason, []).append(seed)
    return found
