"""Runs from what was saved of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from etude.agent import Agent
from etude.base.checks import Stored
from etude.base.errors import ConfigError
from etude.checkpoint import trust as trust_
from etude.checkpoint.old_names import present_state
from etude.checkpoint.run_directory import RunDirectory, read_run
from etude.envs import counted_from
from etude.rollout.state import given_up
from etude.run.run import COMPONENTS, Run
from etude.run.shared_rows import with_rows
from etude.training.assembly import exploration
from etude.training.assembly.described import (
    built_as_described,
    check_description,
    config_from,
    environment_from,
    members_from,
    policies_from,
    taken_from,
)
from etude.training.assembly.replicas import resumed_directory
from etude.training.description import (
    ARGUMENTS,
    OF_ENVIRONMENT,
    Environment,
    Execution,
    RunDescription,
    with_hyperparameters,
)
from etude.training.sources import sources_from

PER_ENVIRONMENT = ("returns", "waiting", "playing", "inverse")  # arrays in states: of scales of rewards, leagues, E3B


def load(
    path: str | Path,
    env: Any = None,
    config: Any = None,
    agent: Agent | Mapping[str, Any] | None = None,
    *,
    trust: bool = False,
    **changed: Any,
) -> Run:
    """The run in a checkpoint file, or in the newest complete one of a run directory, ready to go on.

    path: also `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`, of Hugging Face's hub; such a run acts.
    env, config: needed again where they were not names and numbers (a callable, a network of your own).
    agent: needed again where the run was given an agent of your own; of several policies, a dict of those that are
        needed, such as functions.
    trust: import the environment that the file names, and write to the replay folder that it names, also where you did
        not train the run on this machine; else UntrustedError says what that would be.
    changed: what differs now, by name: arguments of `Run`, such as workers or seed; fields of `Execution` and
        `Environment`, such as device (of `execution`, those that are not at their defaults); and fields of the config,
        such as learning_rate=1e-4 or buffer_size=50_000: the newest steps of a replay stay. Explorer, wrappers and
        rewrite are needed again where they were your own. Devices and strategy are a single device where they are not
        given, however many the run was trained on. With another number of environments, open episodes begin anew.
        Networks stay as they were: CheckpointError lists what differs.
    """
    loaded = read_run(Path(path), COMPONENTS)
    for note in loaded.notes:
        warnings.warn(note, stacklevel=2)
    state = with_rows(loaded.state, loaded.path)
    if "replay" in loaded.state and "replay" not in state:
        warnings.warn(
            f"{loaded.path} names a replay that is shared with others, and is not in the folder of a study: the run "
            "acts, and cannot train on.",
            stacklevel=2,
        )
    run = from_state(state, env, config, agent, trust=trust, **changed)
    folder = loaded.path.absolute().parent
    if folder.name == "checkpoints":  # of a run directory
        run.history.metrics = folder.with_name("metrics.jsonl")
        run.history.begin(run.step)
    return run


def resume(
    path: str | Path, env: Any = None, config: Any = None, agent: Any = None, *, trust: bool = False, **changed: Any
) -> Run:
    """The run in a run directory, from its newest complete checkpoint, to go on with there: `train` saves in the
    directory again, and `close` lets others write to it. As a context manager, it closes itself.

    Other arguments: see `load`, which reads a run without writing to where it was. trust: also write through links.
    """
    run = resumed(path, trust=trust, env=env, config=config, agent=agent, **changed)
    assert run.directory is not None
    for note in run.directory.notes:
        warnings.warn(note, stacklevel=2)
    run.use_directory(run.directory, own=True)
    return run


def resumed(path: str | Path, *, trust: bool = False, devices: Any = None, **changed: Any) -> Run:
    """The same, whose directory is closed by the caller and has the notes of what was passed over."""
    if Path(path).is_file():
        read_run(Path(path), COMPONENTS, ("replay",))  # says what else it may be
        raise ConfigError(f"{path} is a file. Give the run directory that it is in; etude.load reads a file alone.")
    directory = resumed_directory(Path(path), trust, devices)
    try:
        loaded = directory.load(COMPONENTS)
        directory.notes += loaded.notes
        given = changed if devices is None else {**changed, "devices": devices}
        run = from_state(with_rows(loaded.state, loaded.path), run_dir=directory, trust=trust, **given)
    except BaseException:
        directory.close()
        raise
    run.history.metrics = directory.metrics
    run.history.begin(run.step)
    return run


def from_state(
    state: dict[str, Any],
    env: Any = None,
    config: Any = None,
    agent: Agent | Mapping[str, Any] | None = None,
    run_dir: RunDirectory | None = None,
    *,
    trust: bool = False,
    fit: Callable[[Run, dict[str, Any]], dict[str, Any]] | None = None,
    **setup: Any,
) -> Run:
    """A run that continues from `Run.state`; see `load`. Without the component `replay` it acts and cannot train.

    fit: called with the run and the state before this is restored, where the config has other networks than the run
        that was saved; returns the state that fits them.
    """
    if setup.get("start_from") is not None:
        raise ConfigError(
            "start_from= is for new runs: a loaded run goes on with its own weights. Make a Run, or load weights into "
            "this one: run.engine.load(weights)."
        )
    if changed := {"data", "policies"} & setup.keys():
        raise ConfigError(
            f"{min(changed)}= is for new runs: a loaded run goes on as it was saved. To start another one from its "
            "weights, give a new Run start_from=."
        )
    setup = {**setup.pop("execution", Execution()).given(), **setup}
    if isinstance(env, Environment):
        held = {name: getattr(env, own) for name, own in OF_ENVIRONMENT.items()}
        env, setup = env.env, {**{name: value for name, value in held.items() if value is not None}, **setup}
    state = present_state(state)
    described, rest_given = check_description(state), config is not None or agent is not None or bool(setup)
    if "replay" not in state:
        setup["replay_folder"], setup["rewrite"] = None, None  # they belong to the run that trains
    own, made_with = environment_from(described, env, setup)
    if not trust:
        trust_.require(described, *taken_from(described, env, made_with, setup))
    if "learners" in described:
        agent = members_from(described, agent)
    fields = {name: setup.pop(name) for name in setup.keys() - set(ARGUMENTS)}
    if fields:
        trained = described["learners"] if "learners" in described else agent or described["algorithm"]
        config = with_hyperparameters(trained, env, config, fields, lambda: config_from(described, fields))
    elif agent is None and config is None:
        config = config_from(described)
    if "explorer" not in setup:
        setup["explorer"] = exploration.explorer_from(described.get("explorer"))
    if "rewrite" not in setup:
        setup["rewrite"] = exploration.rewriters_from(described)
    saved = {**described["setup"], "devices": None, "engine": described["engine"]}
    given = {"config": config, "policies": policies_from(described), "data": sources_from(described.get("data"))}
    with built_as_described(env is not None, rest_given):
        made = RunDescription.of(
            described["algorithm"] if agent is None else agent,
            counted_from(own, described.get("origins", ())),
            {**given, **saved, **setup, **made_with},
        )
        run = Run.of(made, run_dir)
    try:
        state = _with_environments(run, state)
        run.restore(state if fit is None else fit(run, state))
    except BaseException:
        run.close()
        raise
    return run


def _with_environments(run: Run, state: dict[str, Any]) -> dict[str, Any]:
    """The state of a run with another number of environments as one that this run restores: all of them begin their
    next episodes, and what is counted of open ones begins anew. A replay restores itself."""
    count = run.execution.environments or 1
    if state["rollout"] is None or len(state["rollout"]["environments"]) == count:
        return state
    held = Stored(state, "").fields(("progress", "rollout"), state)
    saved = held["rollout"].table()["environments"].table().items()
    episodes = {name: column.fields(("episode",), column.table())["episode"].whole(-1) for name, column in saved}
    left = np.array([episodes.get(str(i), -1) for i in range(count)])
    if "waiting" in state:
        warnings.warn(
            f"The run had {len(episodes)} environments and has {count}: the steps of a rollout that was not complete "
            "are not learned from.",
            stacklevel=2,
        )
    own = run.learner.state()
    changed: dict[str, Any] = {
        name: _of(own[name], state[name]) for name in ("scale", "leagues", "rewriters") if name in own and name in state
    }
    changed |= {name: _counted_from_here(held[name]) for name in ("progress", "learners") if name in held}
    step = changed["progress"]["step"]
    changed["rollout"] = given_up(left, run.execution.seed, step, run.engine.spaces)
    return {name: part for name, part in state.items() if name != "waiting"} | changed


def _counted_from_here(saved: Stored) -> Any:
    """A `RunProgress` as plain data, or what holds some, for which time steps are counted from its step on."""
    held = saved.table()
    if "step" in held:
        return {**saved.value, "since": held["step"].whole()}
    parts = {name: _counted_from_here(part) for name, part in held.items() if isinstance(part.value, dict)}
    return saved.value | parts


def _of(own: Any, saved: Any) -> Any:
    """What is saved, with what is kept of each environment as the run has it."""
    if not isinstance(own, dict) or not isinstance(saved, dict):
        return saved
    kept = {name: own[name] for name in PER_ENVIRONMENT if isinstance(own.get(name), np.ndarray)}
    return {name: _of(own.get(name), part) for name, part in saved.items()} | kept
