"""What is called while an agent trains: objects with the methods of a Keras callback, or functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from etude.base.errors import ConfigError
from etude.base.events import Adjusted, Collected, Event, Learned, Saved, WorkerReplaced

EVENT_HOOKS: dict[type, str] = {  # called with the event
    Collected: "on_steps_collected", Learned: "on_update", Adjusted: "on_adjusted", Saved: "on_save",
    WorkerReplaced: "on_worker_replaced",
}  # fmt: skip
HOOKS = (
    "on_train_begin", "on_episode_begin", "on_batch_begin", "on_batch_end", "on_episode_end", "on_train_end",
    *EVENT_HOOKS.values(),
)  # fmt: skip

OF_KERAS = {
    "on_epoch_begin": "on_episode_begin", "on_epoch_end": "on_episode_end", "on_train_batch_begin": "on_batch_begin",
    "on_train_batch_end": "on_batch_end",
}  # fmt: skip  # what callbacks of Keras call these
RATES = ("ReduceLROnPlateau", "LearningRateScheduler")  # callbacks of Keras that set the learning rate
WORKING = (
    "Callback", "LambdaCallback", "EarlyStopping", "CSVLogger", "RemoteMonitor", "TerminateOnNaN", "History", *RATES
)  # fmt: skip  # callbacks of Keras that work with an agent
INSTEAD = {
    "ModelCheckpoint": "agent.path, and save_best_only", "OrbaxCheckpoint": "agent.path, and save_freq",
    "BackupAndRestore": "agent.path, and agent.restore", "ProgbarLogger": "p, episodes between two lines",
}  # fmt: skip

Logs = dict[str, float]  # "loss" and "reward", where there are any yet


class EndTraining(Exception):
    """Raised by a callback: training ends at once, in the middle of a learning phase. For training that is undone."""


class AgentCallback:
    """The base of callbacks of `RL.train`, as `etude.solo.Callback`: override what is wanted. `agent` is the agent that
    trains."""

    agent: Any = None

    def set_model(self, agent: Any) -> None:
        """Get to know the agent that trains."""
        self.agent = agent

    def on_train_begin(self, logs: Logs) -> None:
        """Before the first episode."""

    def on_episode_begin(self, episode: int, logs: Logs) -> None:
        """Before an episode is played; episodes count from 0."""

    def on_batch_begin(self, batch: int, logs: Logs) -> None:
        """Before a minibatch is learned; minibatches count from 0 in each episode."""

    def on_batch_end(self, batch: int, logs: Logs) -> None:
        """After a minibatch was learned, with its loss."""

    def on_episode_end(self, episode: int, logs: Logs) -> None:
        """After an episode was played and learned from, with the loss and the reward."""

    def on_train_end(self, logs: Logs) -> None:
        """After the last episode."""

    def on_steps_collected(self, event: Collected) -> None:
        """After every environment has ended an episode, before `on_episode_end`. `event.steps` are read-only arrays,
        valid during the call."""

    def on_update(self, event: Learned) -> None:
        """After a learning phase, with its losses; after `on_episode_end` of the last episode that it learned from."""

    def on_adjusted(self, event: Adjusted) -> None:
        """After `on_update` of the learning phase for which a hyperparameter was adjusted, or was to be: see
        `event.reason`."""

    def on_save(self, event: Saved) -> None:
        """After a checkpoint was written."""

    def on_worker_replaced(self, event: WorkerReplaced) -> None:
        """After a worker process died or hung and was replaced."""


Callback = AgentCallback


class LambdaCallback(AgentCallback):
    """A callback made of functions, by the names of the methods that they stand for."""

    def __init__(self, **functions: Callable[..., None]):
        unknown = sorted(set(functions) - set(HOOKS))
        if unknown:
            raise ConfigError(f"LambdaCallback takes {', '.join(HOOKS)}; got {', '.join(unknown)}.")
        for name, function in functions.items():
            setattr(self, name, function)


class Callbacks:
    """Several callbacks, called one after the other."""

    def __init__(self, callbacks: Iterable[Any], agent: Any):
        self._methods: dict[str, list[Callable[..., None]]] = {name: [] for name in HOOKS}
        for callback in callbacks:
            methods = {}
            for name in (*HOOKS, *OF_KERAS):
                method = getattr(callback, name, None)
                if callable(method) and not _does_nothing(method, name):
                    methods[name] = method
            if not methods and not isinstance(callback, AgentCallback):
                raise ConfigError(
                    f"A {type(callback).__name__} is no callback: it has none of {', '.join(HOOKS)}. Derive it from "
                    "etude.solo.Callback, or give a LambdaCallback."
                )
            if callable(tell := getattr(callback, "set_model", None)):  # what Keras calls its callbacks with
                tell(agent)
            if type(callback).__module__.startswith("keras."):
                _check_of_keras(callback, agent)
            for name, method in methods.items():
                self._methods[OF_KERAS.get(name, name)].append(method)

    @property
    def want_batches(self) -> bool:
        """Whether some callback is called for every minibatch."""
        return bool(self._methods["on_batch_begin"] or self._methods["on_batch_end"])

    def call(self, hook: str, *numbers: int, **logs: float) -> None:
        """Call a hook: `call("on_episode_end", episode, loss=..., reward=...)`."""
        for method in self._methods[hook]:
            method(*numbers, logs)

    def report(self, event: Event) -> None:
        """Call the hook of an event, where it has one."""
        hook = EVENT_HOOKS.get(type(event))
        for method in self._methods[hook] if hook is not None else ():
            method(event)


def _does_nothing(method: Callable[..., None], name: str) -> bool:
    """Whether a method is that of a base class, this one's or Keras's: calls at every minibatch are not free."""
    function = getattr(method, "__func__", method)
    return function is getattr(AgentCallback, name, None) or function.__module__ == "keras.src.callbacks.callback"


def _check_of_keras(callback: Any, agent: Any) -> None:
    """Raise ConfigError for a callback of Keras that needs a `keras.Model`, which an agent is not."""
    kind, optimizer = type(callback).__name__, getattr(agent, "optimizer", None)
    monitored, problem = getattr(callback, "monitor", "loss"), ""
    if kind not in WORKING:
        instead = INSTEAD.get(kind, "CSVLogger, or a callback with on_episode_end")
        problem = f"needs a keras.Model, and {type(agent).__name__} is an agent. Use {instead}"
    elif monitored not in ("loss", "reward"):
        problem = f"monitors {monitored!r}; an agent reports loss, reward. Give one of them, reward with mode='max'"
    elif getattr(callback, "restore_best_weights", False):
        problem = "cannot put weights of an agent back: leave restore_best_weights off, and use agent.save_best_only"
    elif kind in RATES and getattr(optimizer, "learning_rate", None) is None:
        problem = f"sets the learning rate of one optimizer of Keras; the agent's is a {type(optimizer).__name__}. Set "
        problem += "the rates in a callback with on_episode_end"
    if problem:
        raise ConfigError(f"{kind} of Keras {problem}.")
