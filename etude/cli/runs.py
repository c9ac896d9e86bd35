"""Commands that use what was trained: `etude evaluate`, `watch`, `plot`, `estimate`, `export` and `serve`.

Runs are named by directory, a checkpoint file, or the file of an agent of one's own."""

from __future__ import annotations

import errno
import os
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import etude.checkpoint as checkpoint
from etude.base.checks import Stored
from etude.base.data import return_text
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.run_directory import RunDirectory, read_run
from etude.cli.options import OfTrained, explorer, takes, task, with_names, with_path
from etude.cli.output import in_colour, rows, say
from etude.envs import name_of
from etude.estimation import EstimateRequest, Estimator, FQEConfig
from etude.export import FORMATS
from etude.report.filming import has_display, render_without_display
from etude.report.plots import draw_episodes

if TYPE_CHECKING:
    from etude.run import Run

    Format = str
else:
    Format = Literal[tuple(FORMATS)]

OF_AGENT = ("kind", "class", "weights", "numbers")  # what the file of an agent holds of it, beside its history
Which = Literal["last", "best"]
TRAINING = ("replay", "evaluation")  # components that acting does not need: verified, and not kept in memory


def trained(path: Path, which: Which, env: str | None, **setup: Any) -> Run:
    """The run in a directory's newest or best checkpoint, or in a checkpoint file; acts, and writes nothing."""
    from etude.run import COMPONENTS, from_state

    loaded = read_run(path, COMPONENTS, TRAINING, best=which == "best")
    for note in loaded.notes:
        say(note)
    return from_state(loaded.state, env, **setup)


def own_agent(path: Path, name: str) -> Any:
    """The agent of one's own that a file holds, of the class that the user names."""
    from etude.envs.registry import imported
    from etude.solo.agent import RL

    try:
        agent = imported(name, "agent")()
    except TypeError as error:
        raise ConfigError(
            f"--agent {name} is called without arguments, and raised {error}. Name a function that makes the agent."
        ) from error
    if not isinstance(agent, RL):
        raise ConfigError(f"--agent {name} made a {type(agent).__name__}; expected an agent of etude.RL or RL_pytorch.")
    agent.restore(path)
    return agent


def episodes_of(path: Path) -> dict[str, Sequence[float]] | None:
    """The rewards and losses of an agent of one's own by episode, from its file; None for anything else."""
    with suppress(CheckpointError):
        if path.is_file() and "agent" in checkpoint.inspect(path).components:
            held = Stored(checkpoint.read(path, skip=("training",)), "").table()["agent"].fields(("history",), OF_AGENT)
            history = held["history"].fields(("rewards", "losses"), ("seconds", "best", "files"))
            found = {"reward": history["rewards"], "loss": history["losses"]}
            return {name: [each.number(nan=True) for each in values.items()] for name, values in found.items()}
    return None


@dataclass(frozen=True)
@takes("max_steps task agent")
class Evaluate(OfTrained):
    """Report the mean return of the agent of RUN, a run directory or a checkpoint file.

    It takes its best actions in separate environments, with frozen normalisers.
    """

    episodes: int = 20  # whole episodes
    seed: int | None = None  # of the episodes; None: derived from the run's seed, different from those of training
    steps: int | None = None  # environment steps that the episodes take at least; None: any


def evaluate(arguments: Sequence[str]) -> int:
    """Print the returns."""
    path, options = with_path(Evaluate, arguments, "evaluate")
    if options.agent is not None:
        own = own_agent(path, options.agent)
        found = own.evaluate(options.episodes, options.seed or 0, options.max_steps or 10_000)
        say(f"{type(own).__name__} after {own.total_episode:,} episodes: {found}")
        return 0
    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        given = task(options.task)
        found = run.evaluate(options.episodes, options.seed, options.max_steps, task=given, steps=options.steps)
        say(f"{run.algorithm} on {name_of(run.environment)} after {run.step:,} steps: {found}")
    return 0


@dataclass(frozen=True)
@takes("task agent")
class Watch(OfTrained):
    """Show the agent of RUN, a run directory or checkpoint file, in a window, or record a video (no display needed).
    Games of texts are printed."""

    video: Path | None = None  # write a video here, .mp4 or .gif, instead of opening a window
    episodes: int = 1  # whole episodes
    max_steps: int = 5_000  # step limit of all episodes together
    seed: int = 0  # of the first episode; each further episode adds 1


def watch(arguments: Sequence[str]) -> int:
    """Play."""
    path, options = with_path(Watch, arguments, "watch")
    if not has_display():
        render_without_display()  # before the environment is imported
    _watch(path, options)
    return 0


def _watch(path: Path, options: Any) -> None:
    from etude.report.filming import games, plays_texts, watch

    if options.agent is not None:
        _check_window(path, options)
        earned = own_agent(path, options.agent).animate_agent(options.max_steps, options.video, options.seed)
        say(f"episode 1: return {return_text(earned)}")
        return
    lengths: list[int] = []

    def tell(episode: Any) -> None:
        lengths.append(episode.length)
        cut = "" if episode.ended else f", cut off after {sum(lengths):,} steps"
        say(f"episode {len(lengths)}: return {return_text(episode.reward)}{cut}")

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        of_episodes = options.episodes, options.max_steps, options.seed, task(options.task)
        if options.video is None and plays_texts(run):
            for text, episode in games(run, *of_episodes, colour=in_colour()):
                say(text.rstrip("\n"))
                tell(episode)
            return
        _check_window(path, options)
        film = watch(run, options.video, *of_episodes, tell)
        if film is not None:
            say(repr(film))


def _check_window(path: Path, options: Any) -> None:
    if options.video is None and not has_display():
        command = shlex.join(["etude", "watch", str(path), "--video", "out.gif"])
        raise ConfigError(f"There is no display for a window. Record a video: {command}")


@dataclass(frozen=True)
class Plot:
    """Draw the learning curves of RUN..., one panel for each environment, a line for each configuration: a statistic
    over its seeds. RUN is a run directory, its metrics.jsonl, or a folder of run directories."""

    output: Path | None = None  # file to write; None: curves.png, or for a single run curve.png in its directory
    metric: str | None = None  # draw this metric instead of the return, such as pole_angle or train/entropy
    kind: Literal["curves", "profile", "improvement"] = "curves"  # profile, improvement: those of rliable, at the end
    statistic: Literal["iqm", "mean", "median"] = "iqm"  # over seeds; iqm: interquartile mean
    band: Literal["bootstrap", "range"] = "bootstrap"  # 95 % bootstrap interval of the statistic, or range of the seeds
    labels: tuple[str, ...] = ()  # one for each run, equal ones form a line; (): the hyperparameters that differ
    format: Literal["png", "svg", "pdf"] | None = None  # of the file; None: by the name of --output, else png
    style: Literal["screen", "paper"] = "screen"  # paper: as wide as a column of proceedings, in a font like Times


def plot(arguments: Sequence[str]) -> int:
    """Draw, and say where."""
    paths, options = with_names(Plot, arguments, "plot RUN...")
    if len(paths) == 1 and (episodes := episodes_of(Path(paths[0]))) is not None:
        output = options.output or Path(paths[0]).with_suffix(f".{options.format or 'png'}")
        with drawn(output):
            draw_episodes(episodes, output)
        return 0
    from etude.report.plots import draw_run, draw_runs
    from etude.report.series import METRICS, RETURN, compared, find_runs

    found = [path for given in paths for path in find_runs(given)]
    from etude.report.series import read_run

    runs = []
    for path in found:
        try:
            runs.append(read_run(path, options.metric))
        except ConfigError as error:
            if str(path) in paths:
                raise
            say(f"Left out: {error}")
    alone = found[0] if len(found) == len(runs) == 1 and options.kind == "curves" else None
    output = _picture(options, alone)
    with drawn(output):
        if alone is not None:
            draw_run(runs[0], output, options.style)
        else:
            comparison = compared(runs, options.labels)
            draw_runs(
                comparison, output, options.kind, statistic=options.statistic, band=options.band, style=options.style
            )
            if runs[0].quantity == RETURN:
                other = next(name for name, quantity in METRICS.items() if quantity != comparison.quantity)
                say(f"All lines are of one metric, {comparison.quantity}. Another one: --metric {other}")
            for note in comparison.notes:
                say(note)
    return 0


def _picture(options: Plot, alone: Path | None) -> Path:
    """The file to write. alone: the only run."""
    if options.output is not None:
        suffix = options.output.suffix.lstrip(".")
        if options.format is None or suffix == options.format:
            return options.output
        if suffix:
            raise ConfigError(f"--output {options.output} --format {options.format}: two formats. Leave one out.")
        return options.output.with_suffix(f".{options.format}")
    metric = None if options.metric is None else options.metric.replace("/", "_")
    inside = alone is not None and alone.is_dir()
    name = f"{(metric or 'curve') if inside else 'curves'}.{options.format or 'png'}"
    return alone / name if alone is not None and inside else Path(name)


@dataclass(frozen=True)
@takes("data methods confidence gamma explore explorer softened fqe_steps episodes output seed", of=EstimateRequest)
class EstimateOptions(OfTrained):
    """Estimate what the agent of RUN, a run directory or a checkpoint file, would earn in an episode, from the recorded
    episodes of another policy.

    Prints a table of mean discounted returns with intervals. Methods by ratios (is, pdis, wis, trajectory_wis, dr, wdr)
    need the data's log_prob; fqe and dm train a critic.
    """

    data: str | None = None  # a file of recorded episodes: .h5, .hdf5 or .parquet
    methods: tuple[str, ...] = ("wis",)  # is, pdis, wis, trajectory_wis, dm, dr, wdr, fqe, simulation
    explorer: str | None = None  # estimate the policy of NAME[=NUMBER], such as boltzmann=1
    fqe_steps: int | None = None  # gradient steps of the critic; None: 10,000
    output: Path | None = None  # picture of the estimates to write, a PNG; None: none


def estimate(arguments: Sequence[str]) -> int:
    """Print the estimates."""
    path, options = with_path(EstimateOptions, arguments, "estimate")
    from etude.report.plots import draw_estimates

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        given: dict[str, Any] = {field.name: getattr(options, field.name, None) for field in fields(EstimateRequest)}
        given["explorer"] = None if options.explorer is None else explorer(options.explorer)
        given["model"] = None if options.fqe_steps is None else FQEConfig(steps=options.fqe_steps)
        request = EstimateRequest(**given)
        found = Estimator(run, request)()
        say(f"{run.algorithm} on {name_of(run.environment)} after {run.step:,} steps, from {options.data}:")
    rows(found.rows(), indent="  ")
    say(f"The behaviour's own value is {found.behaviour:.4g}.")
    for note in found.notes:
        say(note)
    if options.output is not None:
        with drawn(options.output):
            draw_estimates(found, options.output)
    return 0


@contextmanager
def drawn(output: Path, option: str = "--output", quiet: bool = False) -> Iterator[None]:
    """Says that a picture is drawn, unless quiet. ConfigError where it cannot be written, with the option that names
    it."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise
        raise ConfigError(
            f"The picture {output} cannot be written: {error.strerror or error}. Name another file: {option}."
        ) from error
    if not quiet:
        say(f"Drawn: {output}")


@dataclass(frozen=True)
@takes("checkpoint env trust")
class Export:
    """Write the policy of RUN, a run directory or a checkpoint file, in a format that needs no etude."""

    to: Format = "numpy"  # numpy: a folder with act.py; see docs/deploy.md
    out: Path | None = None  # the file or folder; None: named after RUN, in the current folder


def export(arguments: Sequence[str]) -> int:
    """Write the files."""
    path, options = with_path(Export, arguments, "export")
    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        out = options.out or Path(path.absolute().stem + (FORMATS[options.to].suffix or f"-{options.to}"))
        say(f"{run.export(out, options.to)}: {FORMATS[options.to].about}")
        if then := FORMATS[options.to].then:
            say(f"  {then.format(path=shlex.quote(str(out)))}")
    return 0


@dataclass(frozen=True)
@takes("address every certificate key trust")
class Serve:
    """Answer observations of clients with the best actions of RUNS..., run directories or checkpoint files.

    A run directory is served by the checkpoint with the highest evaluated return, or the newest one where there is
    none, and again by the next one. The name of a policy is that of its folder or file; NAME=RUN gives it another.
    An address that other machines reach needs a token, in the environment variable ETUDE_TOKEN.
    """

    address: str = "127.0.0.1:9900"  # to listen at, HOST:PORT
    every: float = 5.0  # seconds between two looks for a newer checkpoint


def serve(arguments: Sequence[str]) -> int:
    """Answer until Ctrl-C."""
    names, options = with_names(Serve, arguments, "serve RUNS...")
    if not names:
        raise ConfigError("serve takes runs; got none. Usage: etude serve RUNS... [options]")
    from etude.serving.clients import Listening
    from etude.serving.service import PolicyService

    sources: dict[str, Checkpoints] = {}
    for given in names:
        name, named, path = given.rpartition("=")[0], "=" in given, Path(given.rpartition("=")[2])
        name = name if named else path.absolute().name.removesuffix(".etude")
        if name in sources:
            raise ConfigError(f"Two runs are called {name!r}: give them names, as NAME=RUN.")
        sources[name] = Checkpoints(path, options.trust)
    files = [None if file is None else str(file) for file in (options.certificate, options.key)]
    listening = Listening(options.address, os.environ.get("ETUDE_TOKEN") or None, None, *files)
    service = PolicyService(listening, sources)
    try:
        scheme = "http" if options.certificate is None else "https"
        for name in service.policies:
            say(f"{name} is served at {scheme}://{options.address}/{name}")
        say("Ctrl-C ends it.")
        with suppress(KeyboardInterrupt):
            while not service.ends:
                time.sleep(options.every)
                for problem in service.reload():
                    say(f"The policy goes on as it was. {problem}")
    finally:
        service.close()
    return 0


class Checkpoints:
    """Loads the policy of a run: from its best checkpoint, or its newest where there is none."""

    def __init__(self, path: Path, trust: bool):
        self._path, self._trust = path, trust
        self._loaded: Any = None  # what tells whether the file is another one

    def __call__(self) -> Mapping[str, Any] | None:
        """The policies by agent; None where they are those of the last call."""
        from etude.export.policy import policies_of

        best = RunDirectory(self._path).best
        file = best if best.is_file() else self._path
        about = file.stat() if file.is_file() else None
        found = None if about is None else (about.st_mtime_ns, about.st_ino, about.st_size)
        if self._loaded is not None and self._loaded == (file, found):
            return None
        with trained(file, "last", None, trust=self._trust) as run:
            policies = policies_of(run.policy, run.actor())
            if self._loaded is None and (others := sorted(run.policy.translation.conversions.keys() - policies)):
                say(
                    f"{', '.join(others)} of {self._path} not served: the policy is a league or a function, no network."
                )
        self._loaded = file, found
        return policies
