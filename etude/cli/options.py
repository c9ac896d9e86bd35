"""Options from dataclasses, by tyro: names, types, defaults and help all come from the fields."""

from __future__ import annotations

import sys
from ast import literal_eval
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from tyro.conf import arg

from etude.base import schedules
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, schedule_text
from etude.cli.field_help import description, for_help, struct_rule
from etude.report.terminal import Lasting

Verbose = Annotated[bool, arg(aliases=("-v",))]
Quiet = Annotated[bool, arg(aliases=("-q",))]
Display = Literal["progress", "events", "nothing"]  # what a command prints while it trains
SCHEDULE = "FLOAT[:END[:FRACTION|@STEPS]]"


def parse(options: Any, arguments: Sequence[str], command: str) -> Any:
    """An instance of the dataclass `options`. Prints help (of all options for `--help all`), or what is wrong with the
    arguments, and exits (0 or 2).

    Unions of dataclasses (network specs) take the kind of their default; a number that may be a schedule is written
    as `base.schedules.schedule` reads it.
    """
    import tyro

    registry = tyro.constructors.ConstructorRegistry()
    registry.primitive_rule(_schedule_rule)
    registry.struct_rule(struct_rule)
    shown, given, more = options, list(arguments), ""
    if asks_for_help(given):
        whole = given[-1] == "all"
        shown, given = for_help(options, whole), ["--help"]
        more = "" if whole or shown is options else f"`etude {command} --help all` lists all options.\n"
    with redirect_stdout(Lasting(sys.stdout)) as output:  # type: ignore[type-var]
        try:
            return tyro.cli(
                shown,
                prog=f"etude {command}",
                description=description(options),
                args=given,
                config=(tyro.conf.AvoidSubcommands,),
                registry=registry,
            )
        finally:
            output.write(more)


def asks_for_help(arguments: Sequence[str]) -> bool:
    """Whether options are to be listed, and nothing is to be done."""
    return bool({"-h", "--help"} & set(arguments))


def _schedule_rule(info: Any) -> Any:
    """tyro's rule for `float | Linear`; None for other types."""
    if set(get_args(info.type)) != {float, Linear}:
        return None
    from tyro.constructors import PrimitiveConstructorSpec

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=SCHEDULE,
        instance_from_str=lambda texts: schedule(texts[0]),
        is_instance=lambda value: isinstance(value, int | float | Linear),
        str_from_instance=lambda value: [schedule_text(value)],
    )


def schedule(text: str) -> float | Linear:
    """The number or schedule that a text stands for; raises ValueError with the reason."""
    try:
        return schedules.schedule(text)
    except (ValueError, TypeError, ConfigError) as error:
        reason = f": {error}" if isinstance(error, ConfigError) else ""
        raise ValueError(
            f"{text!r} is no schedule{reason}; expected {SCHEDULE}, as in 0.001 or 0.001:0 or 1:0.05:0.1, over steps "
            "as in 1:0.05@10000, or through points STEP:VALUE as in 0:1,10000:0.1,50000:0.02"
        ) from None


def explorer(text: str) -> Any:
    """The explorer that NAME or NAME=NUMBER stands for, where the number may be a schedule; raises ConfigError."""
    import etude.explore as explore

    kinds = {
        "boltzmann": explore.Boltzmann,
        "boltzmann-gumbel": explore.BoltzmannGumbel,
        "epsilon-greedy": explore.EpsilonGreedy,
        "epsilon-z-greedy": explore.EpsilonZGreedy,
        "gaussian-noise": explore.GaussianNoise,
        "greedy": explore.Greedy,
    }
    name, given, number = text.partition("=")
    if name not in kinds or bool(given) == (name == "greedy"):
        raise ConfigError(
            f"--explorer {text}: expected greedy, or one of {', '.join(sorted(set(kinds) - {'greedy'}))} with its "
            f"number, as in boltzmann=0.5 or epsilon-greedy=1:0.05:0.1."
        )
    try:
        return kinds[name](*([schedule(number)] if given else []))
    except ValueError as error:
        raise ConfigError(f"--explorer {text}: {error}.") from None


def environment_arguments(texts: Sequence[str]) -> dict[str, Any]:
    """By name, what NAME=VALUE stand for: Python literals, true and false, and texts otherwise; raises ConfigError."""
    found = {}
    for text in texts:
        name, given, value = text.partition("=")
        if not (given and name.isidentifier()):
            raise ConfigError(f"--env-arg {text}: expected NAME=VALUE, as in is_slippery=False.")
        found[name] = plain_value(value)
    return found


def run_arguments(options: Any) -> dict[str, Any]:
    """The arguments of `Run` that the options of every command stand for which makes runs."""
    return {
        "engine": options.engine, "device": options.device, "environments": options.envs,
        "env_args": environment_arguments(options.env_arg) or None, "frame_stack": options.frame_stack,
        "wrappers": (*options.wrapper, *(f"drop:{key}" for key in options.drop)) or None,
    }  # fmt: skip


def plain_value(text: str) -> Any:
    """What a text stands for: a Python literal, true and false, and itself otherwise."""
    try:
        return {"true": True, "false": False}[text] if text in ("true", "false") else literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def task(text: str | None) -> Any:
    """The task that --task TASK stands for; None where none is given. ConfigError for what is no plain data."""
    from etude.envs.tasks import task_data

    return None if text is None else task_data(plain_value(text))


def shown(options: Any) -> Display:
    """What -v and -q ask for; ConfigError for both."""
    if options.verbose and options.quiet:
        raise ConfigError("-v (--verbose) and -q (--quiet) contradict each other. Give one of them.")
    return "events" if options.verbose else "nothing" if options.quiet else "progress"


def with_address(arguments: Sequence[str]) -> list[str]:
    """The arguments, with `local` after a --ray without an address."""
    given = list(arguments)
    for i, argument in reversed(list(enumerate(given))):
        if argument == "--ray" and (i + 1 == len(given) or given[i + 1].startswith("-")):
            given.insert(i + 1, "local")
    return given


def executor(jobs: int, devices: Sequence[str] = (), ray: str | None = None) -> Any:
    """Where trials run that --jobs, --devices and --ray ask for; None: one after the other, in this process."""
    from etude.tuning import ProcessExecutor, RayExecutor

    if ray is None:
        return ProcessExecutor(jobs, devices=devices) if jobs != 1 or devices else None
    if devices:
        raise ConfigError(
            f"--devices {' '.join(devices)} --ray {ray}: an actor on Ray has one CPU. Leave one of the two out."
        )
    return RayExecutor(jobs, ray)


def goes_on(arguments: Sequence[str]) -> bool:
    """Whether --resume is given; ConfigError where an algorithm is, too."""
    given = any(argument.partition("=")[0] == "--resume" for argument in arguments) and not asks_for_help(arguments)
    if given and split_positionals(arguments)[0]:
        raise ConfigError("--resume goes without ALGORITHM and ENV: they are those of what goes on.")
    return given


def resumed_options(options: Any, arguments: Sequence[str], differing: Sequence[str]) -> dict[str, Any]:
    """Those of the options of --resume that were given, and change something of the study: where it runs, or of which
    there may be more. ConfigError for others."""
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    allowed = ("resume", "jobs", "ray", "devices", "quiet", "trust", *differing)
    if refused := sorted(given - {f"--{name}" for name in allowed}):
        raise ConfigError(f"--resume goes on with the study as it was asked for: leave {', '.join(refused)} out.")
    return {name: getattr(options, name) for name in differing if f"--{name}" in given}


def split_positionals(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what stands before the first option, the rest)."""
    count = next((i for i, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def one_run(names: list[str], command: str, kind: str = "RUN") -> Path:
    """The path that a command was given; raises ConfigError where it is not one. kind: of what."""
    if len(names) != 1:
        raise ConfigError(
            f"{command} takes one {kind.lower()}; got {len(names)}. Usage: etude {command} {kind} [options]"
        )
    return Path(names[0])
