"""`etude find`: a learning rate, or an optimizer, for an algorithm on an environment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tyro.conf import UseAppendAction

from etude.base.errors import ConfigError
from etude.base.optimizers import OPTIMIZERS
from etude.cli.options import Quiet, asks_for_help, parse, run_arguments, split_positionals
from etude.cli.output import rows, say
from etude.cli.train import asked

USAGE = "find lr|optimizer ALGORITHM ENV"


@dataclass(frozen=True)
class FindOptions:
    """What both finders take."""

    steps: int = 100_000  # environment steps at most
    episodes: int | None = None  # end after so many episodes; None: no limit
    seed: int = 0  # of everything that is random
    # -- further
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    envs: int | None = None  # environments stepped in parallel; None: as in etude train
    network: Literal["auto", "mlp", "conv"] = "auto"  # configured by --set.network.*; auto: conv for images
    optimizer: Literal["auto", "adam", "adamw", "rmsprop", "sgd", "lion"] = "auto"  # configured by --set.optimizer.*
    config: Path | None = None  # TOML or JSON file of hyperparameters, or a run's config.json; --set.* take precedence
    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of ENV's constructor
    wrapper: UseAppendAction[tuple[str, ...]] = ()  # module:Name of a wrapper; several are applied in order
    drop: UseAppendAction[tuple[str, ...]] = ()  # entry of Dict observations to leave out, such as mission
    frame_stack: int | None = None  # frames in an observation of ENV; None: 4 for Atari games (ALE/...), else 1
    quiet: Quiet = False  # print nothing but the result


@dataclass(frozen=True)
class FindRate(FindOptions):
    """Train ALGORITHM on ENV with a learning rate that grows from update to update, and suggest one: where reward or
    loss improves fastest, below where the loss diverges. Nothing is saved but the picture.
    """

    updates: int = 500  # gradient steps from the first rate to the last
    start_lr: float = 1e-5  # the first learning rate
    end_lr: float = 1.0  # the last learning rate
    window: int = 7  # episodes that normalise the reward in the picture
    plot: Path | None = None  # a picture of what the suggestion was read from: .png, .svg or .pdf


@dataclass(frozen=True)
class FindOptimizer(FindOptions):
    """Train ALGORITHM on ENV for a while with each of several optimizers, all from the same weights, and list mean
    reward and mean loss. Nothing is saved.
    """

    steps: int = 10_000  # environment steps of each candidate at most
    candidates: tuple[str, ...] = ("adam", "adamw", "rmsprop", "lion")  # NAME or NAME=LEARNING_RATE, with its defaults
    metric: Literal["reward", "loss"] = "reward"  # what the best one is the best by
    jobs: int | None = None  # candidates at a time, in worker processes; None: as many as cores; 1: this process


# Options of FindRate that `etude train` lacks, reads otherwise, or is given anew.
OF_THE_SEARCH = {
    "--steps",
    "--episodes",
    "--updates",
    "--start-lr",
    "--end-lr",
    "--window",
    "--plot",
    "--set.learning-rate",
}

KINDS: dict[str, type[FindOptions]] = {"lr": FindRate, "optimizer": FindOptimizer}


def main(arguments: Sequence[str]) -> int:
    """Find, and print what was found and why. Returns 1 where nothing was."""
    what = arguments[0] if arguments else ""
    if what not in KINDS:
        if asks_for_help(arguments):
            parse(FindRate, arguments, USAGE)
        raise ConfigError(
            f"find takes lr or optimizer, an algorithm and an environment, before its options; got "
            f"{' '.join(split_positionals(arguments)[0]) or 'nothing'}. Usage: etude {USAGE} [options]"
        )
    algorithm, env, options, config = asked(arguments[1:], KINDS[what], f"find {what}", steps=KINDS[what].steps)
    from etude.run import Run

    with Run(algorithm, env, config=config, seed=options.seed, **run_arguments(options)) as run:
        if what == "optimizer":
            return _find_optimizer(run, options)
        return _find_rate(run, options, ["etude", "train", algorithm, env, *_of_training(arguments[3:])])


def _of_training(arguments: Sequence[str]) -> list[str]:
    """The options that `etude train` takes in the same sense, each with its values."""
    kept: list[str] = []
    keeps = True
    for argument in arguments:
        if argument.startswith("--"):
            keeps = argument.partition("=")[0].replace("_", "-") not in OF_THE_SEARCH
        kept += [argument] if keeps else []
    return kept


def _find_rate(run: Any, options: Any, training: list[str]) -> int:
    """training: the command that trains as the finder does."""
    from etude.tuning import LRFinder

    finder = LRFinder(run)
    found = finder.find(
        N=options.updates, window_size=options.window, start_lr=options.start_lr, end_lr=options.end_lr,
        episodes=options.episodes, steps=options.steps,
    )  # fmt: skip
    if options.plot is not None:
        finder.plot(options.plot)
    if found.rate is None:
        say(f"No learning rate is suggested: {found.reason}")
        return 1
    if options.quiet:
        say(f"{found.rate:.3g}")
        return 0
    say(f"Learning rate {found.rate:.3g}: {found.reason}")
    say(f"Seen in {len(finder.losses)} updates and {len(finder.rewards)} episodes.")
    say("" if options.plot is None else f"Drawn: {options.plot}\n")
    rows([(shlex.join([*training, "--set.learning-rate", f"{found.rate:.3g}"]), "train with it")], indent="  ")
    return 0


def _find_optimizer(run: Any, options: Any) -> int:
    from etude.tuning import OptFinder

    finder = OptFinder(run, [_candidate(text) for text in options.candidates])
    logs = finder.find(episodes=options.episodes, metrics=options.metric, jobs=options.jobs, steps=options.steps)
    header, lines = finder.table()
    rows([header, *lines])
    if logs["best"] is None:
        say(f"No candidate has a mean {options.metric}: give more --steps, or see the reasons above.")
        return 1
    return 0


def _candidate(text: str) -> Any:
    """The optimizer that NAME or NAME=LEARNING_RATE stands for; raises ConfigError."""
    name, given, rate = text.partition("=")
    try:
        optimizer = OPTIMIZERS[name]()
        return (optimizer, float(rate)) if given else optimizer
    except (KeyError, ValueError):
        raise ConfigError(
            f"--candidates {text}: expected {', '.join(OPTIMIZERS)}, or one of them with its learning rate, as in "
            "lion=1e-4."
        ) from None
