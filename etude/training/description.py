"""What a run is: one description, from which runs, studies, sweeps and commands take their fields."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self, get_args

import etude.presets as presets
from etude.agent import Agent
from etude.algorithms import ALGORITHMS, find, named
from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.other_libraries import explain
from etude.envs import ConfiguredEnvironment, configured, counted_from, name_of
from etude.envs.make import Vectorization, make_any, make_rendering
from etude.envs.registry import resolve
from etude.multi_agent.policies import Policies
from etude.serving import preset_name
from etude.training.schedule import Schedule


@dataclass(frozen=True)
class Execution:
    """How a run is carried out: how it explores, what collects its steps, and what computes. Nothing of this changes
    what is learned, but for `seed`, `environments`, `explorer` and `rewrite`.

    explorer: one of `etude.explore`, or your own, in the place of the one that the config describes.
    rewrite: a rewriter of `etude.rewrite` or a function, or a list of them, called with the `Steps` that are collected;
        returns those to learn from. Reported returns stay the environment's.
    """

    seed: int = 0  # of all random numbers: equal seeds give equal runs
    engine: str = "auto"  # auto, jax, torch, tensorflow
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    compiled: bool = False  # torch only: compile the learning step (slower start, faster steps)
    environments: int | None = None  # stepped in parallel; None: what the preset says, or 1 off-policy and 8 else
    workers: int = 0  # worker processes that collect; 0: this process
    overlap: bool = False  # workers collect while the learner learns, with weights that are one phase old
    vectorization: Vectorization = "auto"  # native: one simulator for all of a process; compiled: one program
    fused: bool = False  # compiled runs: many learning phases in one call, with the same numbers and events
    replay_folder: Path | str | None = None  # memory-map the replay buffer here when it exceeds RAM
    keep_info: tuple[str, ...] = ()  # names of numbers in `info` that travel with the steps, as extras `info.<name>`
    ray: str | None = None  # workers are Ray actors: "local", "auto" or the address of a cluster; None: processes
    devices: int | str | None = None  # to train on, or "all"; each has a part of every batch; None: one
    strategy: Any = field(default=None, compare=False)  # of tf.distribute, whose replicas have parts of every batch
    explorer: Any = field(default=None, metadata={"learned": True})
    rewrite: Any = None

    def __post_init__(self) -> None:
        texts = {"str": ((str,), "a name, such as 'cpu'"), "str | None": ((str, type(None)), "an address or None")}
        checks.declared(self, texts)
        object.__setattr__(self, "replay_folder", None if self.replay_folder is None else str(self.replay_folder))
        checks.one_of(self, "vectorization", get_args(Vectorization))
        names = self.keep_info
        if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(f"keep_info = {names!r}; expected names of numbers in info, as in ('x', 'success').")
        object.__setattr__(self, "keep_info", tuple(dict.fromkeys(names)))
        checks.whole_number("environments", self.environments, none=True)
        if self.workers < 0 or (self.environments is not None and self.workers > self.environments):
            raise ConfigError(
                f"workers = {self.workers} for {self.environments} environments; expected from 0 to as many as "
                "environments."
            )
        devices = self.devices
        if devices not in (None, "all") and not (type(devices) is int and devices >= 1):
            raise ConfigError(f"devices = {devices!r}; expected a number of at least 1, 'all', or None.")
        if self.fused and self.vectorization != "compiled":
            raise ConfigError(f"fused = True with vectorization = {self.vectorization!r}; expected 'compiled'.")
        if devices is not None and self.strategy is not None:
            raise ConfigError("devices and strategy both say what a run trains on. Give one of them.")
        checks.whole_number("seed", self.seed, 0)

    def given(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        values = {each.name: (getattr(self, each.name), each.default) for each in fields(self)}
        return {name: value for name, (value, default) in values.items() if value is not default and value != default}

    def plain(self) -> dict[str, Any]:
        """What a file says of it: not a strategy, which is of one process, nor the address of a cluster, since a
        checkpoint must not choose where a run that is loaded sends its data. Explorers and rewriters stand by
        themselves in a run's description."""
        held = {**vars(self), "keep_info": list(self.keep_info)}
        return {name: value for name, value in held.items() if name not in NOT_IN_FILES}


NOT_IN_FILES = ("ray", "strategy", "explorer", "rewrite")


@dataclass(frozen=True)
class Environment:
    """An environment of a run, and how it is made.

    env: a Gymnasium id, "module:callable", a callable that returns an environment, or `serving.Clients`.
    args: keyword arguments for what makes it, plain data.
    wrappers: callables or "module:Name", each called with what the one before it returned, the first with the
        environment, or "drop:KEY", which leaves an entry of Dict observations out; None takes AtariPreprocessing for
        Atari games (`ALE/...`), and none for others.
    frame_stack: how many frames an observation stacks, along a new first axis; an episode begins with its first frame
        repeated. `act` takes single frames. None takes 4 for Atari games preprocessed as above, and 1 for others.
    """

    env: Any
    args: dict[str, Any] | None = None
    wrappers: Iterable[Any] | None = None
    frame_stack: int | None = None  # frames in an observation; None: 4 for Atari games (ALE/...), else 1

    def __call__(self, render_mode: str | None = None) -> Any:
        """One such environment: wherever a callable is taken, such as by `serving.Clients`, this is."""
        source = resolve(self.configured())
        return make_any(source, {}) if render_mode is None else make_rendering(source, render_mode)

    @property
    def __name__(self) -> str:
        return name_of(self.env)

    @classmethod
    def of(cls, made: Any) -> Self:
        """What `configured` returned this for."""
        own = made if isinstance(made, ConfiguredEnvironment) else ConfiguredEnvironment(made, {}, ())
        return cls(own.env, own.args, own.wrappers, own.frame_stack)

    def configured(self) -> Any:
        """What a run makes its environments from. Without `wrappers`, an environment of a family that presets
        preprocess has the family's, with the family's arguments and stacked frames where these are not given."""
        env, args, wrappers, frame_stack = self.env, self.args, self.wrappers, self.frame_stack
        if isinstance(env, ConfiguredEnvironment):  # of a run that goes on
            return counted_from(replace(self, env=env.env).configured(), env.origins or ())
        usual = presets.preprocessing(env) if isinstance(env, str) and wrappers is None else None
        if usual is not None:
            wrappers = usual.wrappers
            args = {**usual.env_args, **args} if isinstance(args, dict) else usual.env_args if args is None else args
            frame_stack = usual.frame_stack if frame_stack is None else frame_stack
        return configured(env, args, wrappers, 1 if frame_stack is None else frame_stack)


def environment_source(env: Any) -> Any:
    """What environments are made from: what an `Environment` configures, any other `env` as it is."""
    return env.configured() if isinstance(env, Environment) else env


BY_ITSELF = ("seed", "engine", "environments", "workers")  # fields of Execution that are arguments of `Run`, too
OF_ENVIRONMENT = {"env_args": "args", "wrappers": "wrappers", "frame_stack": "frame_stack"}
TRAIN_ONLY = "train_only"  # of Policies


@dataclass(frozen=True)
class RunDescription:
    """All that makes a run: equal descriptions make runs with equal numbers.

    Its fields are as `Run` takes them; `config` has all hyperparameters that were given, None takes those of the
    preset, or the defaults.
    """

    algorithm: Any
    environment: Environment
    config: Any = field(default=None, metadata={"learned": True})
    policies: Any = field(default=None, metadata={"learned": True})
    data: Any = field(default=None, metadata={"learned": True})
    start_from: Any = None
    execution: Execution = Execution()

    def __post_init__(self) -> None:
        ray, workers = self.execution.ray, self.execution.workers
        if ray is not None and not (ray and workers):  # here, where arguments of `Run` are in place
            raise ConfigError(
                f"ray = {ray!r} with workers = {workers}; expected local, auto or an address, and how many actors "
                "collect: workers=2 (--workers 2)."
            )

    @property
    def named_environment(self) -> Any:
        """What a preset is looked up for; where clients play, the environment whose spaces they have."""
        return preset_name(self.environment.env)

    def learning(self, config: Any, agent: Agent | None = None) -> RunDescription:
        """The same with this config. agent: of the run that it describes, in the place of a name that is none."""
        algorithm = self.algorithm if agent is None or self.algorithm in ALGORITHMS else agent
        if isinstance(algorithm, str):
            return replace(self, algorithm=algorithm, config=config)
        algorithm = copy.copy(algorithm)
        algorithm.config = config
        return replace(self, algorithm=algorithm, config=None)

    @property
    def own_config(self) -> Any:
        """The config; of an agent of one's own, the agent's."""
        return self.algorithm.config if isinstance(self.algorithm, Agent) else self.config

    def with_execution(self, **changes: Any) -> RunDescription:
        """The same carried out in another way."""
        return replace(self, execution=replace(self.execution, **changes))

    def loading(self) -> dict[str, Any]:
        """The arguments of `etude.load`, by name, for a run that goes on as this says. What is left open stays as it
        was saved."""
        own = {"agent": self.algorithm} if isinstance(self.algorithm, Agent) else {"config": self.config}
        given = {name: getattr(self.execution, name) for name in EXECUTION}
        left_open = {"engine": "auto", "environments": None}
        given = {name: value for name, value in given.items() if name not in left_open or value != left_open[name]}
        return {**own, "env": self.environment, **given}

    def options(self) -> dict[str, Any]:
        """What differs from the defaults, by the names of arguments; but algorithm, environment, config and seed."""
        of_environment = {name: getattr(self.environment, own) for name, own in OF_ENVIRONMENT.items()}
        given = {name: getattr(self, name) for name in OWN if name != "config"} | of_environment
        given |= {name: value for name, value in self.execution.given().items() if name != "seed"}
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def of(
        cls, algorithm: Any, env: Any, given: Mapping[str, Any], saved: Callable[[], Any] | None = None
    ) -> RunDescription:
        """From the arguments of a run by their names: fields of this, of `Execution` and of `Environment`, or fields of
        the config. Raises ConfigError for other names. saved: see `with_hyperparameters`."""
        rest = dict(given)

        def taken(names: Iterable[str]) -> dict[str, Any]:
            return {name: rest.pop(name) for name in names if name in rest}

        execution = rest.pop("execution", None) or Execution()
        if not isinstance(execution, Execution):
            raise ConfigError(f"execution = {execution!r}; expected an etude.Execution, such as Execution(workers=2).")
        execution = replace(execution, **taken(EXECUTION))
        environment = env if isinstance(env, Environment) else Environment(env)
        made = {OF_ENVIRONMENT[name]: value for name, value in taken(OF_ENVIRONMENT).items()}
        own = taken(OWN)
        if TRAIN_ONLY in rest:
            learning, policies = rest.pop(TRAIN_ONLY), own.get("policies")
            if learning is not None or isinstance(policies, Policies):  # None of saved policies: all learn again
                own["policies"] = replace(Policies.given(policies), train_only=learning)
        config = own.pop("config", None)
        own["config"] = with_hyperparameters(algorithm, preset_name(environment.env), config, rest, saved)
        return cls(algorithm, replace(environment, **made), **own, execution=execution)


EXECUTION = tuple(each.name for each in fields(Execution))
OWN = tuple(each.name for each in fields(RunDescription) if each.default is not MISSING)[:-1]
ARGUMENTS = (*OWN, "run_dir", TRAIN_ONLY, "execution", *OF_ENVIRONMENT, *EXECUTION)  # what is no hyperparameter

_OF_RUN, _OF_EXECUTION = (
    [each.name for each in fields(kind) if each.metadata.get("learned")] for kind in (RunDescription, Execution)
)
LEARNED_FROM = (
    _OF_RUN[0], *_OF_EXECUTION, *_OF_RUN[1:], "learners", TRAIN_ONLY, "environment_args", *list(OF_ENVIRONMENT)[1:],
)  # fmt: skip
"""By their names in plain data, what decides what is learned, and does not differ from seed to seed."""


def advise(caller: str, forms: Mapping[str, Sequence[str]], level: int = 3) -> None:
    """Warn of arguments that are fields of an object now. forms: how the objects are given, and which fields of each.
    level: on the stack, of who has called."""
    forms = {form: names for form, names in forms.items() if names}
    if forms:
        old = ", ".join(f"{OLD.get(name, name)}=..." for names in forms.values() for name in names)
        first = {"env=etude.Environment": "ENV, ", "policies=etude.Policies": "POLICIES, "}
        new = ", ".join(
            f"{form}({first.get(form, '')}{', '.join(f'{name}=...' for name in names)})"
            for form, names in forms.items()
        )
        warnings.warn(f"{caller}({old}) goes in the next version. Write {new}.", DeprecationWarning, stacklevel=level)


OLD = {own: name for name, own in OF_ENVIRONMENT.items()}


def forms_of_run(given: Collection[str]) -> dict[str, Sequence[str]]:
    """For `advise`, the arguments of a run among these that are fields of an object now."""
    return {
        "execution=etude.Execution": [name for name in given if name in EXECUTION and name not in BY_ITSELF],
        "env=etude.Environment": [OF_ENVIRONMENT[name] for name in given if name in OF_ENVIRONMENT],
        "policies=etude.Policies": [name for name in given if name == TRAIN_ONLY],
    }


def config_for(algorithm: str, environment: Any = None, /, **changes: Any) -> Any:
    """The preset config of an algorithm for an environment id, or its default config, with these fields changed."""
    _, config_class = find(algorithm)
    name = named(algorithm)
    preset = presets.lookup(name, environment) if isinstance(environment, str) else None
    return config_class(**{**(preset.config if preset else {}), **changes})


def with_hyperparameters(
    algorithm: str | Agent | Mapping[str, Any],
    env: Any,
    config: Any,
    changes: dict[str, Any],
    saved: Callable[[], Any] | None = None,
) -> Any:
    """The config of a run: `config`, or the preset or the defaults with these fields changed. ConfigError for names
    that are no fields, and where there is a config already. saved: returns what is changed in their place."""
    if not changes:
        return config
    if isinstance(algorithm, Mapping):
        raise ConfigError(
            f"{', '.join(changes)}= is of one algorithm, or unknown; give each policy an agent with its own config: "
            'Run({"left": PPO(config), ...}, env).'
        )
    given = type(algorithm.config) if isinstance(algorithm, Agent) else find(algorithm)[1]
    of_config = [field.name for field in fields(given) if field.init]
    if unknown := changes.keys() - set(of_config):
        of_train = {"callbacks", *(field.name for field in fields(Schedule))}
        if misplaced := sorted(unknown & of_train):
            raise ConfigError(
                f"Run takes no {', '.join(misplaced)}. Give train what a run reports and when it evaluates and saves: "
                f"run.train(100_000, {', '.join(f'{name}=...' for name in misplaced)})."
            )
        raise ConfigError(explain("Run", unknown, [*ARGUMENTS, *of_config]))
    if isinstance(algorithm, Agent) or config is not None:
        where = "The agent" if isinstance(algorithm, Agent) else "config="
        raise ConfigError(
            f"{where} and {', '.join(changes)}= both say what the hyperparameters are. Put them into the config: "
            f"dataclasses.replace(config, {', '.join(f'{name}=...' for name in changes)})."
        )
    return config_for(algorithm, env, **changes) if saved is None else replace(saved(), **changes)
