"""Files of an agent: what they hold, and when training writes them. All have etude's checkpoint format."""

from __future__ import annotations

import dataclasses
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import etude.checkpoint as checkpoint
from etude.base.checks import Stored
from etude.base.errors import CheckpointError, ConfigError
from etude.checkpoint.old_names import present_agent
from etude.protocols import Weights
from etude.solo.engines import (
    load_parameters,
    load_weights,
    numbers,
    parameters,
    take_numbers,
    variables_of,
    weights,
    without_variables,
)
from etude.solo.session import History, state_of


def save(agent: Any, path: str | Path) -> None:
    """Write everything that training continues from: networks, optimizers, pool (with save_data), counters. Of several
    processes that train an agent, the chief writes."""
    own = state_of(agent)
    if not own.chief:
        return
    training = own.pending if own.session is None else own.session.state(own.save_data)
    history = {name: value for name, value in vars(own.history).items() if name != "stop"}
    state = {"kind": "agent", "class": type(agent).__name__, "weights": weights(agent), "history": history}
    state["numbers"] = numbers(agent)
    checkpoint.write(Path(path), {"agent": state, "training": training})


def restore(agent: Any, path: str | Path) -> None:
    """Load what `save` wrote: the networks and numbers at once, the rest when `train` is called."""
    state = present_agent(checkpoint.read(Path(path), expect={"agent", "training"}), weights(agent))
    stored = Stored(state, "").fields(("agent", "training"))  # a session checks the rest: see `Session.restore`
    saved = stored["agent"].fields(("kind", "class", "weights", "history"), ("numbers",))
    saved["weights"].like(weights(agent))
    history = saved["history"].fields(("losses", "rewards", "seconds"), ("best", "files"))
    for name in ("losses", "rewards"):
        for number in history[name].items():
            number.number()
    history["seconds"].number(0)
    if "best" in history and history["best"].value is not None:
        count, mean = history["best"].items(2)
        count.whole(1), mean.number()
    for episode in history["files"].items() if "files" in history else ():
        episode.whole()
    for number in saved["numbers"].table().values() if "numbers" in saved else ():
        number.number()
    if stored["training"].value is not None:
        stored["training"].table()
    load_weights(agent, state["agent"]["weights"])
    take_numbers(agent, state["agent"].get("numbers", {}))
    own = state_of(agent)
    own.history = History(**state["agent"]["history"])
    own.session, own.key, own.pending = None, None, state["training"]


class _OptimizerCopy(NamedTuple):
    """An optimizer without what it has learned, to be made again for a copy of its agent; travels by cloudpickle.

    settings: of Keras, its config; of torch, its own state, with the names of parameters in the place of these.
    """

    kind: Any
    settings: dict[str, Any]

    @staticmethod
    def of(agent: Any, optimizer: Any) -> _OptimizerCopy:
        """ConfigError for what is no optimizer of the agent's framework, and for an optimizer of torch that trains what
        is not the agent's."""
        if agent.framework != "torch":
            return _OptimizerCopy(type(optimizer), optimizer.get_config())
        names = variables_of(agent).names_by_id
        groups = []
        for group in optimizer.param_groups:
            if not all(id(value) in names for value in group["params"]):
                raise ConfigError(
                    f"The {type(optimizer).__name__} optimizer holds parameters that are none of "
                    f"{type(agent).__name__}'s. Make it with those: torch.optim.Adam(agent.param)."
                )
            groups.append({**group, "params": [names[id(value)] for value in group["params"]]})
        return _OptimizerCopy(type(optimizer), {**optimizer.__getstate__(), "state": {}, "param_groups": groups})

    def made_for(self, agent: Any) -> Any:
        """An optimizer of this kind, with these settings, that has learned nothing."""
        if agent.framework != "torch":
            return self.kind.from_config(self.settings)
        variables = variables_of(agent).by_name
        groups = [
            {**group, "params": [variables[name] for name in group["params"]]}
            for group in self.settings["param_groups"]
        ]
        made = self.kind.__new__(self.kind)
        made.__setstate__({**self.settings, "state": defaultdict(dict), "param_groups": groups})
        return made


class AgentCopy(NamedTuple):
    """An agent to be made again by its class, with the arguments that it was made with, and then given attributes, its
    state, optimizers and weights; travels by cloudpickle.

    names: of all its attributes. state: a `SessionState` without a session. optimizers: None, one, or a list. weights:
    by name; the others stay as they are made.
    """

    kind: Any
    names: frozenset[str]
    attributes: dict[str, Any]
    state: Any
    optimizers: Any
    weights: Weights

    @staticmethod
    def of(agent: Any, optimizer: Any, state: Any, attributes: dict[str, Any] | None = None) -> AgentCopy:
        """attributes: those that it is given; None: all, and the weights. ConfigError for an optimizer that cannot be
        made again."""
        several = isinstance(optimizer, list | tuple)
        copies = [one and _OptimizerCopy.of(agent, one) for one in (optimizer if several else [optimizer])]
        values = weights(agent) if attributes is None else {}
        names = frozenset(vars(agent).keys() - {"optimizer", "_session_state"})
        given = {name: x for name, x in (attributes or without_variables(agent)).items() if name in names}
        state = dataclasses.replace(state, param=None)
        return AgentCopy(type(agent), names, given, state, copies if several else copies[0], values)

    def made(self) -> Any:
        """The agent. ConfigError where it had something else since it was made."""
        arguments, named = self.state.made_with
        agent = self.kind(*arguments, **named)
        vars(agent).update(self.attributes)
        if lost := sorted(self.names - vars(agent).keys()):
            raise ConfigError(
                f"{', '.join(lost)} of {self.kind.__name__} was set after the agent was made, and a copy, as in a "
                "worker process, is made again by its class. Set it in __init__; finders with jobs=1 need no copy."
            )
        agent._session_state = dataclasses.replace(self.state, param=agent.param)
        several = isinstance(self.optimizers, list)
        made = [one and one.made_for(agent) for one in (self.optimizers if several else [self.optimizers])]
        agent.optimizer = made if several else made[0]
        load_weights(agent, self.weights)
        return agent


def save_param(agent: Any, path: str | Path) -> None:
    """Write what is trained, and nothing else. Of several processes that train an agent, the chief writes."""
    if not state_of(agent).chief:
        return
    checkpoint.write(Path(path), {"param": parameters(agent)})


def restore_param(agent: Any, path: str | Path) -> None:
    """Load what `save_param` wrote."""
    load_parameters(agent, read_param(path))


def read_param(path: str | Path) -> dict[str, Any]:
    """What `save_param` wrote, as arrays by name."""
    return checkpoint.read(Path(path), expect={"param"})["param"]


class Saver:
    """Writes checkpoints of an agent while it trains, as its attributes `path`, `save_freq`, `max_save_files`,
    `save_param_only` and `save_best_only` say."""

    def __init__(self, agent: Any, history: History, warn: Callable[[str], None]):
        self._agent, self._history, self._warn = agent, history, warn
        self._last = -1  # episodes at the last checkpoint

    def save_if_due(self, ending: bool) -> tuple[str, str] | None:
        """Write a checkpoint where one is due; returns its path, and "best" or "last". ending: whether training
        ends."""
        agent, episodes = self._agent, self._history.episodes
        if agent.path is None or episodes == self._last or not state_of(agent).chief:
            return None
        best = self._history.best
        due = self._is_best() if agent.save_best_only else ending or episodes % agent.save_freq == 0
        if due:
            self._last = episodes
            try:
                return str(self._write(Path(agent.path))), "best" if agent.save_best_only else "last"
            except CheckpointError as error:
                self._history.best = best
                self._warn(f"Training goes on without this checkpoint. {error}")
        return None

    def _is_best(self) -> bool:
        """Whether the mean reward over the last trial_count episodes is the highest so far; it is kept then."""
        history, count = self._history, state_of(self._agent).settings.trial_count or 1
        if history.episodes < count:
            return False
        mean, best = statistics.mean(history.rewards[-count:]), history.best
        if best is not None and best[0] == count and mean <= best[1]:
            return False
        history.best = count, mean
        return True

    def _write(self, path: Path) -> Path:
        agent, history, plain = self._agent, self._history, path
        numbered = agent.max_save_files is not None and not agent.save_best_only
        if numbered:
            path = plain.with_stem(f"{plain.stem}-{history.episodes}")
            history.files = [number for number in history.files if number != history.episodes] + [history.episodes]
        if agent.save_param_only:
            save_param(agent, path)
        else:
            save(agent, path)
        if numbered:
            others = history.files[: -agent.max_save_files]
            checkpoint.discard(plain.with_stem(f"{plain.stem}-{number}") for number in others)
            history.files = history.files[-agent.max_save_files :]
        return path
