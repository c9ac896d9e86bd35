"""`etude train`: one algorithm on one environment, from the command line; and a run carried out with reporters,
and with words at its end."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import shlex
import warnings
from collections.abc import Collection, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tyro.conf import UseAppendAction

import etude.presets as presets
from etude.algorithms import ALGORITHMS, named
from etude.base.data import return_text
from etude.base.errors import CheckpointError, ConfigError
from etude.base.other_libraries import INSTEAD, explain
from etude.checkpoint import trust
from etude.cli import INTERRUPTED
from etude.cli.options import (
    STEPS,
    Display,
    asks_for_help,
    explorer,
    parse,
    run_arguments,
    shown,
    split_positionals,
    takes,
    with_address,
)
from etude.cli.output import next_commands, say, used_by
from etude.networks import Conv, Mlp, layers_of, with_layers
from etude.optimizers import OPTIMIZERS
from etude.training.sources import SAMPLER

if TYPE_CHECKING:
    from etude.run import Run, Schedule


class Output(NamedTuple):
    """Where a run is recorded, and in which format; see `offline.Writer`."""

    folder: str
    format: str

    @classmethod
    def resumed(cls, held: Any, trusted: bool) -> Output | None:
        """From the config.json of a run; None where it was not recorded. Raises UntrustedError where the user of this
        process did not give the folder, and CheckpointError where it is damaged."""
        if held is None:
            return None
        if not isinstance(held, dict) or not all(isinstance(held.get(name), str) for name in cls._fields):
            raise CheckpointError(f"config.json of this run has a damaged output: {held!r:.200}. Give --output.")
        if not trusted:
            trust.require_signed(trust.output_claims(held["folder"]), held.get("signatures"))
        return cls(held["folder"], held["format"])


def carry_out(
    run: Run, steps: int, schedule: Schedule, display: Display = "progress", output: Output | None = None
) -> int:
    """Train `run` for `steps` more environment steps; returns the exit code. display: what to print."""
    from etude.offline import Writer
    from etude.report import Curve, EventLines, JsonLines, Progress, TensorBoard, Text
    from etude.report.filming import plays_texts

    assert run.directory is not None
    directory = run.directory
    total = run.step + steps
    about = run.description()
    about |= {"total": total, "schedule": schedule.plain(), "versions": used_by(about)}
    if output is not None:
        about["output"] = {**output._asdict(), "signatures": trust.signatures(trust.output_claims(output.folder))}
    directory.write_config(about)
    if not run.chief:
        return INTERRUPTED if run.train(steps, schedule=schedule).reason == "interrupted" else 0
    with ExitStack() as stack:
        reporters: list[Any] = [
            stack.enter_context(closing(JsonLines(directory.metrics))),
            stack.enter_context(closing(TensorBoard(directory.tensorboard))),
            Curve(directory.curve),
        ]
        if output is not None:
            reporters.append(Writer(output.folder, output.format))
        if display == "progress":
            reporters.insert(0, stack.enter_context(closing(Progress())))
        elif display == "events":
            reporters.insert(0, EventLines())
        else:
            stack.enter_context(warnings.catch_warnings(action="ignore", category=UserWarning))
        if schedule.evaluate_every is not None and plays_texts(run):
            reporters.append(Text(schedule.evaluate_every, [*reporters]))
        finished = run.train(steps, reporters, schedule=schedule)
    if finished.step not in (saved := directory.saved()):
        kept = f"the newest checkpoint is of step {max(saved):,}" if saved else "there is no checkpoint of it"
        raise CheckpointError(
            f"The run has taken {finished.step:,} steps, and could not be saved: {kept}. The warnings above say why. "
            f"Make room in {directory.path}, or take another --run-dir."
        )
    if display == "nothing":
        return INTERRUPTED if finished.reason == "interrupted" else 0
    best = run.learner.progress.best
    if finished.reason == "interrupted":
        say(f"\nStopped at step {finished.step:,} and saved. Continue with")
        say(f"  etude resume {shlex.quote(str(directory.path))}")
        return INTERRUPTED
    if finished.reason == "target":
        say(
            f"\nReached a mean return of {schedule.target:g} at step {finished.step:,}, after {finished.seconds:.1f} s."
        )
    elif schedule.target is not None and best is not None and best < schedule.target:
        say(f"\nNo evaluation reached {schedule.target:g}; the best mean return was {return_text(best)}.")
    next_commands(str(directory.path))
    return 0


OF_SCHEDULE = (
    "target", "evaluate_episodes", "evaluate_max_steps", "evaluate_steps", "evaluate_workers", "estimate_every"
)  # fmt: skip
EVALUATION_SHARE = 0.1  # of the run's environment steps, where the user does not say when to evaluate
OPTIONS = {  # for arguments of `Run` and the config that have another name here
    "environments": "--envs",
    "args": "--env-arg",
    "wrappers": "--wrapper",
    "network": "--set.network.widths",
    "environment": "ENV, after the algorithm",
}
NETWORKS: dict[str, type[Mlp | Conv]] = {"mlp": Mlp, "conv": Conv}


@dataclass(frozen=True)
@takes(
    "steps seed run_dir envs workers engine device target evaluate_every config",
    learning="network optimizer adapt explorer start_from",
    environment="policies env_arg wrapper drop frame_stack keep_info",
    evaluation="evaluate_episodes evaluate_max_steps evaluate_steps evaluate_workers save_every",
    machine="overlap ray devices compiled vectorization fused replay_folder",
    data="data output output_format estimate_every estimate_data estimate_methods estimate_softened serve spaces "
    "certificate key",
    display="verbose quiet",
)
class Train:
    """Train ALGORITHM on ENV. Checkpoints, metrics and the learning curve go to a run directory.

    `etude list` lists the algorithms. ENV is a Gymnasium id, or `module:callable` or `file.py:callable` that returns
    an environment; `mpe2:simple_spread_v3` and other modules of PettingZoo have several agents. Name both to list the
    hyperparameters as well, with the preset of ENV as defaults: `etude train dqn CartPole-v1 --help`.
    """

    steps: int = STEPS  # environment steps of the run; gradient steps if it learns from --data alone
    evaluate_every: int | None = None  # environment steps between evaluations; 0: never; None: 20 times or fewer
    adapt: UseAppendAction[tuple[str, ...]] = ()  # SIGNAL:HYPERPARAMETER, such as ess:batch_size; adjusts the latter
    explorer: str | None = None  # NAME[=NUMBER], such as boltzmann=1:0.1; None: the algorithm's own
    start_from: Path | None = None  # run directory, checkpoint or safetensors file to take weights from, by name
    keep_info: UseAppendAction[tuple[str, ...]] = ()  # name of a number in info that becomes a metric of episodes
    estimate_data: str | None = None  # file of recorded episodes for --estimate-every; None: --data
    estimate_methods: tuple[str, ...] = ("wis",)  # is, pdis, wis, trajectory_wis, dm, dr, wdr, fqe, simulation
    estimate_softened: float | None = None  # estimate the best actions softened by this; None: the best actions
    spaces: str | None = None  # of what the clients of --serve play: an environment that has them, or a JSON file


def asked(
    arguments: Sequence[str], kind: type, command: str, example: str = "", **defaults: Any
) -> tuple[str, str, Any, Any]:
    """(algorithm, environment, options, config) that the arguments of a command, ALGORITHM ENV and options, stand for;
    the config is None where it is the preset's, or the default one. Prints help, and exits, where they ask for
    it; raises ConfigError for other names, and for options that are called otherwise here.

    example: what an error says besides. defaults: of options, in the place of a preset's.
    """
    names, rest = split_positionals(with_address(arguments))
    usage = f"{command} ALGORITHM ENV"
    if len(names) == 1 and _named_before_parsing(rest, "--serve"):
        names += filter(None, [_named_before_parsing(rest, "--spaces")])
    elif _named_before_parsing(rest, "--serve") or _named_before_parsing(rest, "--spaces"):
        raise ConfigError("With --serve HOST:PORT clients play: give --spaces in the place of ENV.")
    if len(names) != 2:
        if asks_for_help(rest):
            parse(with_hyperparameters(named(names[0]), options=kind) if names else kind, rest, usage)
        raise ConfigError(
            f"{command} takes an algorithm ({', '.join(ALGORITHMS)}) and an environment, before its options{example}; "
            f"got {' '.join(names) or 'neither'}. Usage: etude {usage} [options]"
        )
    algorithm, env = named(names[0]), names[1]
    file = _named_before_parsing(rest, "--config")
    offered = with_hyperparameters(
        algorithm, env, _kind_named(rest, "--network", NETWORKS), Path(file) if file else None,
        _kind_named(rest, "--optimizer", OPTIMIZERS), kind,
    )  # fmt: skip
    if defaults:
        changed = [(name, type(value), dataclasses.field(default=value)) for name, value in defaults.items()]
        offered = dataclasses.make_dataclass(kind.__name__, changed, bases=(offered,), frozen=True)
        offered.__doc__ = kind.__doc__
    _refuse_other_names(rest, offered, command, algorithm)
    options = parse(offered, rest, f"{command} {algorithm} {env}")
    chosen = options.config is not None or {options.network, options.optimizer} != {"auto"}
    default, config = offered().set, options.set
    if not chosen and config == default:
        return algorithm, env, options, None
    if config.network == default.network:
        # Over images the default network itself gives way to convolutions, and another object that is equal to it does
        # not: --network means what it says.
        network = default.network if options.network == "auto" else copy.copy(default.network)
        config = dataclasses.replace(config, network=network)
    return algorithm, env, options, config


def with_hyperparameters(
    algorithm: str,
    env: str | None = None,
    network: str = "auto",
    file: Path | None = None,
    optimizer: str = "auto",
    options: type | None = None,
) -> Any:
    """`Train`, or other options, with a field `set`, the algorithm's config; its defaults and the steps (unless they
    are None in the options) are the preset's for `env`, but for what the file says."""
    from etude.training.description import config_for

    config: Any = config_for(algorithm, env)
    if file is not None:
        config = presets.read_config(file, algorithm, config)
    if network != "auto" and not isinstance(layers_of(config.network), NETWORKS[network]):
        held = {name: getattr(layers_of(config.network), name) for name in ("dueling", "noisy", "layer_norm")}
        config = dataclasses.replace(config, network=with_layers(config.network, NETWORKS[network](**held)))
    if optimizer != "auto" and type(config.optimizer) is not OPTIMIZERS[optimizer]:
        config = dataclasses.replace(config, optimizer=OPTIMIZERS[optimizer]())
    base: Any = Train if options is None else options
    fields = [("set", type(config), dataclasses.field(default=config))]
    if base.steps is not None:
        preset = presets.lookup(algorithm, env) if env else None
        fields.append(("steps", int, dataclasses.field(default=preset.steps if preset else STEPS)))
    made = dataclasses.make_dataclass(base.__name__, fields, bases=(base,), frozen=True)
    made.__doc__ = base.__doc__
    return made


def _kind_named(arguments: Sequence[str], option: str, kinds: dict[str, type]) -> str:
    """The value of --network or --optimizer, needed before parsing: the options that there are depend on it."""
    named = _named_before_parsing(arguments, option)
    return named if named in kinds else "auto"


def _named_before_parsing(arguments: Sequence[str], option: str) -> str | None:
    """The value of an option, before parsing."""
    joined = [part for argument in arguments for part in argument.split("=", 1)]
    return next(
        (value for name, value in reversed(list(zip(joined, joined[1:], strict=False))) if name == option), None
    )


def _refuse_other_names(arguments: Sequence[str], offered: Any, command: str, algorithm: str) -> None:
    """Raise ConfigError for options that are called otherwise here, or are hyperparameters, and for hyperparameters
    that the algorithm does not have."""
    known = {field.name for field in dataclasses.fields(offered)}
    hyperparameters = [field.name for field in dataclasses.fields(offered().set) if field.init]
    for argument in arguments:
        option = argument.partition("=")[0]
        inner = option.startswith("--set.")
        name = option.removeprefix("--").removeprefix("set.").partition(".")[0].replace("-", "_")
        there = hyperparameters if inner else known
        if not argument.startswith("--") or name in there or name.removeprefix("no_") in there:
            continue
        begun = f"{algorithm} has no hyperparameter" if inner else f"{command} has no option"
        if name in hyperparameters:
            raise ConfigError(f"{begun} {option}: it is --set.{name.replace('_', '-')}.")
        if hint := INSTEAD.get(name):
            words = re.findall(r"`(\w+)`", hint)
            options = [found for word in words if (found := _option(word, known, hyperparameters))]
            raise ConfigError(f"{begun} {option}: use {' or '.join(options) or hint}.")
        if inner:
            raise ConfigError(explain(algorithm, [name], hyperparameters))


def _option(word: str, known: set[str], hyperparameters: Collection[str]) -> str | None:
    """The option for an argument of `Run` or `train`, or a field of the config; None where there is none."""
    if word in OPTIONS or not (word in known or word in hyperparameters):
        return OPTIONS.get(word)
    return f"--{'' if word in known else 'set.'}{word.replace('_', '-')}"


def _schedule(options: Any) -> Any:
    """When to evaluate and save. Where nobody says when to evaluate, a twentieth of the run, and within a share of it:
    a target is looked for regardless, and on recorded data no environment steps are counted."""
    from etude.run import Schedule

    unsaid = options.evaluate_every is None
    every = None if (options.spaces or "").endswith(".json") else max(1, options.steps // 20)  # spaces cannot be played
    alone = bool(options.data) and not any(source.startswith("sampler=") for source in options.data)
    return Schedule(
        **{name: getattr(options, name) for name in OF_SCHEDULE},
        evaluate_every=every if unsaid else options.evaluate_every or None,
        evaluate_share=EVALUATION_SHARE if unsaid and options.target is None and not alone else None,
        save_every=options.save_every or max(1, options.steps // 10),
        estimate=_estimate(options),
    )


def data_sources(texts: Sequence[str]) -> Any:
    """What --data stands for: a file alone, or pairs of a file, or `sampler`, and its share; raises ConfigError."""
    if not texts:
        return None
    if len(texts) == 1 and _share(texts[0]) is None:
        return texts[0]
    if without := [text for text in texts if _share(text) is None]:
        raise ConfigError(
            f"--data {' '.join(texts)}: {without[0]} has no share; give one to each, as in --data demos.h5=0.5 "
            "sampler=0.5. They are divided by their sum."
        )
    return [(text.rpartition("=")[0], _share(text)) for text in texts]


def _share(text: str) -> float | None:
    """The number after the last `=`; None where there is none."""
    name, _, number = text.rpartition("=")
    try:
        return float(number) if name else None
    except ValueError:
        return None


def _estimate(options: Any) -> dict[str, Any] | None:
    """What is estimated while training, in plain data, so that a resumed run goes on with it; None: nothing."""
    if options.estimate_every is None:
        unused = [name for name in ("data", "softened") if getattr(options, f"estimate_{name}") is not None]
        if unused:
            raise ConfigError(f"--estimate-{unused[0]} is for estimates while training: give --estimate-every, too.")
        return None
    files = [text if _share(text) is None else text.rpartition("=")[0] for text in options.data]
    files = [file for file in files if file != SAMPLER]
    data = options.estimate_data or (files[0] if len(files) == 1 else None)  # a run on several files has to say which
    return {"data": data, "methods": list(options.estimate_methods), "softened": options.estimate_softened}


def train(arguments: Sequence[str]) -> int:
    """Train, with a progress bar; then say where the run is and what can be done with it."""
    from etude.checkpoint.run_directory import RunDirectory
    from etude.run import Run
    from etude.training.assembly.replicas import check_launched, directory_for
    from etude.training.description import RunDescription

    algorithm, env, options, config = asked(arguments, Train, "train")
    display = shown(options)
    check_launched(options.devices)
    schedule = _schedule(options)
    given = {**run_arguments(options), "start_from": options.start_from}
    given |= {"config": config, "data": data_sources(options.data)}
    given["explorer"] = options.explorer and explorer(options.explorer)
    if options.adapt and config is None:
        given["adapt"] = options.adapt
    elif options.adapt:
        given["config"] = dataclasses.replace(config, adapt=options.adapt)
    output = None if options.output is None else Output(str(options.output), options.output_format)
    with Run.of(RunDescription.of(algorithm, played_by(options, env), given)) as run:
        # Made after the run, so that one that cannot be leaves no empty directory behind.
        name = f"{algorithm}-{env}-s{options.seed}"
        run.directory = directory_for(run.group, lambda: RunDirectory.create(options.run_dir, name))
        with run.directory:
            if config is None and display != "nothing" and (note := presets.none_for(algorithm, env)):
                say(note)
            return carry_out(run, options.steps, schedule, display, output)


def played_by(options: Any, env: Any) -> Any:
    """The environment of a run, or what listens for clients that play it. ETUDE_TOKEN holds their token."""
    if options.serve is None:
        if options.certificate or options.key:
            raise ConfigError("--certificate and --key are for clients: they go with --serve HOST:PORT.")
        return env
    from etude.serving import Clients

    files = [None if file is None else str(file) for file in (options.certificate, options.key)]
    clients = Clients(
        options.serve, env, token=os.environ.get("ETUDE_TOKEN"), ssl_certfile=files[0], ssl_keyfile=files[1]
    )
    say(f"Clients play: they connect to {'http' if files[0] is None else 'https'}://{options.serve}")
    return clients
