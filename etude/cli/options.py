"""Options from dataclasses, by tyro: names, types and defaults are those of the fields, help is the comment beside.

An option is declared once: one of what a run is, in its description; others that several commands have, in `Shared`.
A command `takes` them by name. tyro reads comments itself where the class has a source: not of a class that was made
while the program runs, and not where a field has another default than in the class that says what it means."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import shutil
import sys
import textwrap
import typing
from ast import literal_eval
from collections.abc import Callable, Collection, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args

from tyro.conf import UseAppendAction, arg

from etude.base import schedules
from etude.base.errors import ConfigError
from etude.base.schedules import Linear, schedule_text
from etude.base.text import Lasting
from etude.training.description import EXECUTION, Environment, Execution
from etude.training.schedule import Schedule

_FIELD = re.compile(r"^    (\w+): .*?(?:  # (.*))?$", re.MULTILINE)


@functools.cache  # Python reads a whole file for the source of a class in it
def field_comments(kind: type) -> dict[str, str]:
    """What is said of each field of a dataclass, with it or in the comment beside it; in those of the classes that it
    derives from, where it has none of its own."""
    told: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        with suppress(OSError, TypeError):  # made while the program runs
            told |= {name: comment for name, comment in _FIELD.findall(inspect.getsource(base)) if comment}
        for taken in vars(base).get("taken", {}).values():
            told |= {name: text for name, text in taken.items() if text}
    fields = dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ()
    return told | {field.name: field.metadata["help"] for field in fields if field.metadata.get("help")}


def takes(
    names: str = "", /, of: type | None = None, kept: bool = False, **groups: str
) -> Callable[[type[T]], type[T]]:
    """Decorates a dataclass of options: it has the fields of these names, too, with their types, defaults and help.
    Those in groups are left out of a short --help; all are listed in this order, its own, too, where they are named.

    of: where they are declared; None: in `Shared`, `Execution`, `Environment` or `Schedule`. kept: they go on as they
        were saved where they are not given.
    """
    where = (Shared, Execution, Environment, Schedule) if of is None else (of,)

    def add(kind: type[T]) -> type[T]:
        taken: dict[str, dict[str, str]] = vars(kind).get("taken", {})  # group -> name -> help
        for group, words in {"": names, **groups}.items():
            for name in words.split():
                text = "".join(each.pop(name, "") for each in taken.values())
                if name not in kind.__annotations__:
                    source: Any = next(each for each in where if name in _by_name(each))
                    hint: Any = typing.get_type_hints(source, include_extras=True)[name]
                    text = field_comments(source)[name]
                    default = _default(_by_name(source)[name], None)
                    if kept:
                        text, hint, default = f"{text.partition('; None:')[0]}; None: as before", hint | None, None
                    kind.__annotations__[name] = hint
                    setattr(kind, name, default)
                kind.__annotations__[name] = kind.__annotations__.pop(name)
                taken.setdefault(group, {})[name] = text
        kind.taken = taken  # type: ignore[attr-defined]
        return kind

    return add


def _by_name(kind: Any) -> dict[str, dataclasses.Field[Any]]:
    return {field.name: field for field in dataclasses.fields(kind)}


def for_help(kind: type, whole: bool) -> type:
    """A dataclass that has the help of another one, of options: of all by group; or of those above the first group, and
    of the hyperparameters `set` that hold no others within."""
    groups: dict[str, list[str]] = {"": []}
    for i, base in enumerate(kind.__mro__[:-1]):  # its own first
        taken = vars(base).get("taken", {})
        placed = set().union(*taken.values(), *(each.__annotations__ for each in kind.__mro__[i + 1 : -1]))
        groups[""] += [name for name in base.__annotations__ if name not in placed]
        for title, fields in taken.items():
            groups.setdefault(title, []).extend(fields)
    if len(groups) == 1:
        return kind
    shown = list(dict.fromkeys(groups.pop("")))
    made = _fields_of(kind, shown)
    for title, fields in groups.items() if whole else ():
        new = [field for field in dict.fromkeys(fields) if field not in shown]
        shown += new
        group = dataclasses.make_dataclass(title, _fields_of(kind, new, named_alone=True))
        made.append((title, group, dataclasses.field(default_factory=group)))
    nested = {f.name: value for f in dataclasses.fields(kind) if _has_options(value := _default(f, None))}
    for name, value in nested.items() if whole else ():
        made.append((name, type(value), dataclasses.field(default_factory=_returning(value))))
    if "set" in nested and not whole:
        config: Any = nested["set"]
        flat = [field.name for field in dataclasses.fields(config)]
        part = dataclasses.make_dataclass("set", _fields_of(type(config), flat, config))
        made.append(("set", part, dataclasses.field(default_factory=part)))
    return dataclasses.make_dataclass(kind.__name__, made)


def _returning(value: Any) -> Callable[[], Any]:
    return lambda: value


def _has_options(value: Any) -> bool:
    """Whether a field's value is a dataclass with an option for each of its fields; schedules are one option."""
    return dataclasses.is_dataclass(value) and not isinstance(value, Linear)


def _fields_of(kind: type, names: Collection[str], whole: Any = None, named_alone: bool = False) -> list[Any]:
    """Some fields of a dataclass, for another one: with their help, and the values that they have in `whole`."""
    told, hints, fields = field_comments(kind), typing.get_type_hints(kind, include_extras=True), _by_name(kind)
    found = []
    for field in (fields[name] for name in names):
        value = _default(field, whole)
        if not _has_options(value):
            hint = Annotated[hints[field.name], arg(prefix_name=False)] if named_alone else hints[field.name]
            metadata = {"help": told.get(field.name)}
            made = dataclasses.field(default_factory=_returning(value), metadata=metadata)
            found.append((field.name, hint, made))
    return found


def struct_rule(info: Any) -> Any:
    """tyro's rule for dataclasses, with these help texts; None for other types."""
    if not (isinstance(info.type, type) and dataclasses.is_dataclass(info.type)):
        return None
    from tyro.constructors import StructConstructorSpec, StructFieldSpec

    told, hints = field_comments(info.type), typing.get_type_hints(info.type, include_extras=True)
    fields = []
    for field in (each for each in dataclasses.fields(info.type) if each.init):
        value = _default(field, info.default)
        hint, text = hints[field.name], told.get(field.name)
        if _has_options(value):  # of a union, the kind that it is now
            hint, text = type(value), " ".join(description(type(value)).partition("\n\n")[0].split())
        fields.append(StructFieldSpec(field.name, hint, value, text))
    return StructConstructorSpec(info.type, tuple(fields))


def _default(field: dataclasses.Field[Any], whole: Any) -> Any:
    import tyro

    if dataclasses.is_dataclass(whole):
        return getattr(whole, field.name)
    if field.default is not dataclasses.MISSING:
        return field.default
    return tyro.MISSING if field.default_factory is dataclasses.MISSING else field.default_factory()


def description(kind: type) -> str:
    """The docstring of a class, in lines that fit the terminal; none where Python leaves docstrings out (-OO), so that
    a dataclass has its signature in the place of it."""
    if (kind.__doc__ or "").startswith(f"{kind.__name__}("):
        return ""
    width, indent = max(40, shutil.get_terminal_size().columns), " "  # tyro joins lines that begin with a letter
    parts = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    return "\n\n".join(
        textwrap.fill(part, width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        for part in parts
    )


T = TypeVar("T")
STEPS = 100_000  # where neither the user nor a preset says how many
Display = Literal["progress", "events", "nothing"]  # what a command prints while it trains
SCHEDULE = "FLOAT[:END[:FRACTION|@STEPS]]"


@dataclass(frozen=True)
class Shared:
    """The options that several commands have, but for those in the description of a run and its schedule."""

    steps: int = STEPS  # environment steps of each run
    run_dir: Path | None = None  # directory of the run; None: a new one in runs/
    envs: int | None = None  # environments stepped in parallel; None: the preset's, or 1 off-policy and 8 otherwise
    engine: Literal["auto", "jax", "torch", "tensorflow"] = "auto"  # auto: the first one installed
    ray: str | None = None  # workers are Ray actors: local, auto or the address of a cluster; alone: local
    devices: int | Literal["all"] | None = None  # devices to train on; torch: as many processes, from torchrun
    save_every: int | None = None  # environment steps between checkpoints; None: a tenth of the run
    config: Path | None = None  # TOML or JSON file of hyperparameters, or a run's config.json; --set.* take precedence
    network: Literal["auto", "mlp", "conv"] = "auto"  # configured by --set.network.*; auto: conv for images
    optimizer: Literal["auto", "adam", "adamw", "rmsprop", "sgd", "lion"] = "auto"  # configured by --set.optimizer.*
    env: str | None = None  # another environment with the same spaces; None: the run's
    env_arg: UseAppendAction[tuple[str, ...]] = ()  # NAME=VALUE, a keyword argument of ENV's constructor
    wrapper: UseAppendAction[tuple[str, ...]] = ()  # module:Name of a wrapper; several are applied in order
    drop: UseAppendAction[tuple[str, ...]] = ()  # entry of Dict observations to leave out, such as mission
    policies: Literal["each", "shared"] | None = None  # of several agents: one for each or one for all; None: each
    data: tuple[str, ...] = ()  # recorded episodes: file, folder or Minari id; =SHARE for several, sampler=SHARE, too
    output: Path | None = None  # folder to record all episodes in
    output_format: Literal["parquet", "hdf5", "jsonl", "minari"] = "parquet"  # of the files of --output
    folder: Path | None = None  # of the study or sweep; None: a new one in studies/ or sweeps/
    checkpoint: Literal["last", "best"] = "last"  # checkpoint of a run directory: newest, or highest evaluated return
    trust: bool = False  # import the environment that RUN names, though you did not train it here
    max_steps: int | None = None  # step limit of an episode; None: 10,000 if ENV has no time limit
    task: str | None = None  # of the episodes, such as 60 or "{'distance': 60}"; None: the run's
    agent: str | None = None  # FILE.py:CLASS or MODULE:CLASS, where RUN is the file of an agent of one's own
    serve: str | None = None  # listen at HOST:PORT for clients, which play in the place of ENV
    certificate: Path | None = None  # PEM file, to serve over https
    key: Path | None = None  # PEM file, of the certificate; None: it is in the same file
    verbose: Annotated[bool, arg(aliases=("-v",))] = False  # print every event instead of a progress bar
    quiet: Annotated[bool, arg(aliases=("-q",))] = False  # print nothing but errors, and the result of a search


OF_MAKING = "engine device envs network optimizer config policies env_arg wrapper drop frame_stack quiet"


@dataclass(frozen=True)
@takes(further=OF_MAKING)
class OfRuns:
    """What every command takes that makes several runs."""


@dataclass(frozen=True)
@takes("jobs ray devices seed folder resume", further="data workers trust vectorization fused")
class OfStudies(OfRuns):
    """What every command takes that makes runs as trials, in worker processes."""

    jobs: int = 1  # trials or members that learn at a time, in worker processes; 1: this process
    ray: str | None = None  # they run in --jobs Ray actors: local, auto or the address of a cluster; alone: local
    devices: tuple[str, ...] = ()  # of the worker processes, in turn; (): --device
    resume: Path | None = None  # go on with the study in this folder; instead of ALGORITHM and ENV
    trust: bool = False  # --resume: import the environment that the study names, though you did not make it here


@dataclass(frozen=True)
@takes("checkpoint env trust")
class OfTrained:
    """What every command takes that uses a trained run."""


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
        except SystemExit as end:
            if end.code and {each.rpartition("=")[2].lower() for each in given} & {"true", "false"}:
                raise ConfigError(
                    "Options that are on or off take no value: --set.double for True, --set.no-double for False."
                ) from None
            raise
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


def run_arguments(options: Any, *but: str) -> dict[str, Any]:
    """The arguments of `Run` that options stand for: those of the same name, but for some, and those that have another
    one here. What an option leaves open is not among them."""
    given = {name: getattr(options, name) for name in EXECUTION if name in vars(options) and name not in but}
    given |= {"environments": options.envs, "policies": vars(options).get("policies")}
    if "env_arg" in vars(options):
        given["env_args"] = environment_arguments(options.env_arg) or None
        given["wrappers"] = (*options.wrapper, *(f"drop:{key}" for key in options.drop)) or None
        given["frame_stack"] = options.frame_stack
    return {name: value for name, value in given.items() if value is not None}


def plain_value(text: str) -> Any:
    """What a text stands for: a Python literal, true and false, and itself otherwise."""
    try:
        return {"true": True, "false": False}[text] if text in ("true", "false") else literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def task(text: str | None) -> Any:
    """The task that --task TASK stands for; None where none is given. ConfigError for what is no plain data."""
    from etude.envs.adapter import task_data

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
    """Where trials run that --jobs, --devices and --ray ask for; 1: one after the other, in this process."""
    from etude.tuning import ProcessExecutor, RayExecutor

    if ray is None:
        return ProcessExecutor(jobs, devices=devices) if jobs != 1 or devices else 1
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


def resumed(kind: Any, arguments: Sequence[str], command: str, load: Callable[..., Any], *differing: str) -> Any:
    """(the study that --resume goes on with, the options). load: reads one. differing: the options that may be given
    anew: where it runs, or of which there may be more; ConfigError for others."""
    options: Any = parse(kind, with_address(arguments), command)
    given = {argument.partition("=")[0] for argument in arguments if argument.startswith("--")}
    allowed = ("resume", "jobs", "ray", "devices", "quiet", "trust", *differing)
    if refused := sorted(given - {f"--{name}" for name in allowed}):
        raise ConfigError(f"--resume goes on with the study as it was asked for: leave {', '.join(refused)} out.")
    changed = {name: getattr(options, name) for name in differing if f"--{name}" in given}
    where = executor(options.jobs, options.devices, options.ray)
    return load(options.resume, trust=options.trust, jobs=where, **changed), options


def split_positionals(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """(what stands before the first option, the rest)."""
    count = next((i for i, argument in enumerate(arguments) if argument.startswith("-")), len(arguments))
    return list(arguments[:count]), list(arguments[count:])


def with_names(options: Any, arguments: Sequence[str], command: str) -> tuple[list[str], Any]:
    """(what stands before the options, these as `parse` reads them). command: with what it takes, such as RUNS..."""
    names, rest = split_positionals(arguments)
    return names, parse(options, rest, command)


def with_path(options: Any, arguments: Sequence[str], command: str, kind: str = "RUN") -> tuple[Path, Any]:
    """(the one path before the options, these); see `one_run`."""
    names, given = with_names(options, arguments, f"{command} {kind}")
    return one_run(names, command, kind), given


def one_run(names: list[str], command: str, kind: str = "RUN") -> Path:
    """The path that a command was given; raises ConfigError where it is not one. kind: of what."""
    if len(names) != 1:
        raise ConfigError(
            f"{command} takes one {kind.lower()}; got {len(names)}. Usage: etude {command} {kind} [options]"
        )
    return Path(names[0])
