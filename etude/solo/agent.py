"""The class that an agent of one's own inherits, and the two forms of its `train`.

class DQN(etude.RL):
    def __init__(self):
        super().__init__()
        self.q, self.target = network(), network()
        self.param, self.env, self.gamma = self.q.trainable_variables, "CartPole-v1", 0.98

    def action(self, s): ...                       # what the policy turns into actions
    def __call__(self, s, a, next_s, r, d): ...    # the loss
    def update_param(self): ...                    # the target network follows
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from etude.base import checks
from etude.base.errors import ConfigError
from etude.base.spaces import Discrete, MultiDiscrete
from etude.envs import AdaptedEnvironment
from etude.explore import AsIs, ByAgent, Greedy
from etude.protocols import Explorer
from etude.report import EpisodeLines, draw_episodes, write_film
from etude.rollout import SingleEpisode
from etude.solo import files
from etude.solo.adjusting import AdaptiveMethods
from etude.solo.callbacks import Callbacks
from etude.solo.engines import acting_engine
from etude.solo.environments import EnvironmentDescription, UserEnvironments
from etude.solo.learner import RewardInputsExplorer, conversion_for, learns_rewards
from etude.solo.session import Session, SessionKey, SessionState, build_session, state_of
from etude.solo.settings import Options, StrategyArguments, options_from, settings_from, strategy_arguments
from etude.solo.training import Training
from etude.training.evaluate import Evaluation


class RL(AdaptiveMethods):
    """The base of agents written in Keras, on TensorFlow or JAX.

    In your `__init__` set `self.env` (an environment, a Gymnasium id, a callable, or a list with one for each process)
    and `self.param` (the trainable variables; a list of lists where there are several optimizers). Write

    - `action(s)`: for observations [N, ...], what the policy or the noise turns into actions: values or probabilities
      [N, n], or actions [N, ...]. With several agents `action(s, i)`, for agent i.
    - `__call__(s, a, next_s, r, d)`: the loss of a minibatch: a scalar, a value for each example [B], or one of these
      for each optimizer, each of which then trains its own `param` only. d is 1 where the episode terminated, not where
      it was truncated; with `num_steps` it also carries the discount of the steps between (see the guide).
    - `update_param()`: what target networks do, such as `etude.solo.assign_param(self.target.weights, self.q.weights)`.

    Float attributes (`gamma`, `tau`, `clip`, ...) are hyperparameters: they may change at any time, and nothing is
    compiled again. `seed` (an int) is what all randomness comes from.
    """

    framework: ClassVar[str] = "keras"

    seed: int = 0
    path: str | None = None  # where to save while training
    save_freq: int = 1  # episodes between two saves
    max_save_files: int | None = None  # None: one file that is written over
    save_param_only: bool = False
    save_best_only: bool = False  # of the mean reward over the last trial_count episodes
    env: Any = None
    optimizer: Any = None
    prioritized_replay: Any  # inside `__call__` with PR=True: takes the errors of the batch, and holds its weights
    reward_done_func: Any = None  # for HER: (next_goal, goal) -> (reward, done)
    reward_done_func_ma: Any = None  # for several agents: (rewards, dones) of each -> (reward, done) of the team
    _session_state: SessionState

    def __new__(cls, *arguments: Any, **named: Any) -> RL:
        agent = super().__new__(cls)
        agent._session_state = SessionState(made_with=(arguments, named))
        return agent

    def __getstate__(self) -> dict[str, Any]:
        """Copies, and what pickle writes, hold the state that training goes on from and no session."""
        own = self._session_state
        pending = own.pending if own.session is None else own.session.state(own.save_data)
        history = dataclasses.replace(own.history, losses=list(own.history.losses), rewards=list(own.history.rewards))
        kept = dataclasses.replace(own, session=None, key=None, pending=pending, history=history)
        return {**vars(self), "_session_state": kept}

    def __reduce_ex__(self, protocol: Any) -> Any:
        """In Keras a copy is made again by its class: copies of layers lose their ties to lists of their variables, and
        layers of a user's class have none."""
        if self.framework == "torch":
            return super().__reduce_ex__(protocol)
        state = self.__getstate__()["_session_state"]
        return files.AgentCopy.made, (files.AgentCopy.of(self, self.optimizer, state),)

    # -- what an agent writes ------------------------------------------------------------------------------------------

    def action(self, *s: Any, **named: Any) -> Any:
        """What the policy turns into actions: `action(self, s)`, or `action(self, s, i)` for several agents."""
        raise ConfigError(
            f"{type(self).__name__} has no method action(self, s), or action(self, s, i) for several agents. Write it: "
            "it returns what the policy or the noise turns into actions."
        )

    def __call__(self, s: Any, a: Any, next_s: Any, r: Any, d: Any) -> Any:
        """The loss of a minibatch."""
        raise ConfigError(
            f"{type(self).__name__} has no method __call__(self, s, a, next_s, r, d). Write it: it returns the loss."
        )

    def update_param(self) -> None:
        """Update target networks. An agent without any leaves this as it is."""

    @property
    def param(self) -> Any:
        """What is trained."""
        return self._session_state.param

    @param.setter
    def param(self, value: Any) -> None:
        # `module.parameters()` can be read once only, and optimizers read it before training does.
        nested = isinstance(value, list | tuple) and any(isinstance(part, Iterator) for part in value)
        self._session_state.param = [list(part) for part in value] if nested else list(value)

    # -- configuring ---------------------------------------------------------------------------------------------------

    def set(
        self, policy: Any = None, noise: Any = None, pool_size: int = 10_000, batch: int = 64, **settings: Any
    ) -> None:
        """Configure exploration, the pool and learning; ConfigError for what contradicts itself.

        policy, noise: an explorer of `etude.explore`; a list gives one to each process, or to each agent.
        pool_size, batch: transitions kept, and in a minibatch.
        settings: see `Settings`; MA is another name of MARL.
        """
        given = {"policy": policy, "noise": noise, "pool_size": pool_size, "batch": batch, **settings}
        self._session_state.settings = settings_from(given)

    # -- training ------------------------------------------------------------------------------------------------------

    def train(
        self,
        train_loss: Any = None,
        optimizer: Any = None,
        episodes: int | None = None,
        *,
        pool_network: bool = True,
        processes: int | None = None,
        **options: Any,
    ) -> float:
        """Play and learn `episodes` times (without end where None); returns the mean loss of the last one that learned.

        train_loss: a keras.metrics.Mean that the losses are added to, or None. optimizer: a Keras optimizer, or one for
            each list in `param`; None: those of the last training.
        processes: worker processes that play, each in its own environment; None, or pool_network=False: none.
        options: see `Options`.
        Ctrl-C, SIGTERM and SIGHUP end it after the episode at hand: where `path` is set the agent is saved, then
        KeyboardInterrupt is raised.
        """
        options |= {"pool_network": pool_network, "processes": processes}
        return self._train(train_loss, optimizer, episodes, options)

    def distributed_training(
        self,
        *arguments: Any,
        train_loss: Any = None,
        pool_network: bool = True,
        processes: int | None = None,
        **named: Any,
    ) -> float:
        """Train with the replicas of a strategy of `tf.distribute`, each on an equal part of every minibatch:
        `distributed_training([global_batch_size,] optimizer, strategy, episodes)`.

        global_batch_size: examples in a minibatch, over all replicas; without it, `batch` of `set`.
        strategy: MirroredStrategy, MultiWorkerMirroredStrategy or ParameterServerStrategy, in whose scope the agent and
            the optimizer were made.
        num_episodes: another name of `episodes`. train_loss, other arguments, and what is returned: see `train`.

        ConfigError where a batch cannot be divided equally, or agent or optimizer were made outside of the strategy's
        scope; ReplicaError where a process of the cluster ended.
        """
        given, options = strategy_arguments(arguments, named)
        options |= {"pool_network": pool_network, "processes": processes}
        return self._train(train_loss, given.optimizer, given.episodes, options, given)

    def _train(
        self,
        train_loss: Any,
        optimizer: Any,
        episodes: int | None,
        named: dict[str, Any],
        given: StrategyArguments | None = None,
    ) -> float:
        if train_loss is not None and not callable(getattr(train_loss, "update_state", None)):
            raise ConfigError(
                f"train: train_loss is a {type(train_loss).__name__}; expected a keras.metrics.Mean, or None. The "
                "optimizer comes second."
            )
        checks.whole_number("train: episodes", episodes, none=True)
        options = options_from(self, named)
        self.optimizer = self.optimizer if optimizer is None else optimizer
        session, state = self._session(options, given), self._session_state
        state.save_data = options.save_data
        callbacks = list(options.callbacks)
        if options.p != 0 and session.chief:
            callbacks.append(EpisodeLines(episodes, options.p))
        saver = files.Saver(self, state.history, _warn)
        follows = getattr(self.update_param, "__func__", None) is not RL.update_param
        training = Training(session, state.history, Callbacks(callbacks, self), saver.save_if_due, _warn, follows)
        training.run(episodes, options)
        loss = state.history.losses[-1] if state.history.losses else float("nan")
        if train_loss is not None:
            train_loss.update_state(loss)
        return loss

    def _session(self, options: Options, given: StrategyArguments | None) -> Session:
        """The session of the last training, or a new one where its key has changed."""
        state = self._session_state
        key = SessionKey.of(self, options, given)
        if state.session is None or key != state.key:
            before, held = None, 0
            if state.session is not None and state.key is not None:
                held = len(state.session.learner.buffer)
                before = state.session.state(state.key.settings.pool_folder is None)
                state.session.learner.buffer.close()  # the next one may use the same folder
            session = build_session(self, key, self.seed, _warn)
            try:
                if state.pending is not None:
                    session.go_on_from_file(state.pending, _warn)
                elif before and state.key and (reason := session.go_on(before, state.key, key)) and held:
                    _warn(
                        f"The pool of {held} transitions is dropped, and training goes on with an empty one: {reason}."
                    )
            except Exception:
                session.learner.buffer.close()
                raise
            state.session, state.key, state.pending = session, key, None
        return state.session

    # -- what happened so far ------------------------------------------------------------------------------------------

    @property
    def loss_list(self) -> list[float]:
        """The mean loss of every episode that was learned from."""
        return self._session_state.history.losses

    @property
    def reward_list(self) -> list[float]:
        """The reward of every episode; with several environments, the mean over one episode of each."""
        return self._session_state.history.rewards

    @property
    def total_episode(self) -> int:
        """Episodes so far."""
        return self._session_state.history.episodes

    @property
    def time(self) -> float:
        """Seconds of training so far."""
        return self._session_state.history.seconds

    @property
    def stop_training(self) -> bool:
        """Set it to True, in a callback, and training ends after the episode at hand."""
        return self._session_state.history.stop

    @stop_training.setter
    def stop_training(self, stop: bool) -> None:
        self._session_state.history.stop = stop

    def visualize_loss(self, path: str | Path | None = None) -> Any:
        """A figure of the losses; shown, or written to `path`. Returns the matplotlib figure."""
        return draw_episodes({"loss": self.loss_list}, path)

    def visualize_reward(self, path: str | Path | None = None) -> Any:
        """A figure of the rewards; shown, or written to `path`."""
        return draw_episodes({"reward": self.reward_list}, path)

    def visualize_reward_loss(self, path: str | Path | None = None) -> Any:
        """A figure of both; shown, or written to `path`."""
        return draw_episodes({"reward": self.reward_list, "loss": self.loss_list}, path)

    def animate_agent(self, max_steps: int, path: str | Path | None = None, seed: int = 0) -> float:
        """Play one episode of at most so many steps with the best actions, in a window, or as a gif or mp4 at `path`.
        Returns its reward."""
        with _playing(self, "human" if path is None else "rgb_array") as (environment, begin):
            episode = begin(seed)
            frames = (environment.render() for _ in episode.steps(max_steps))
            if path is None:
                for _ in frames:
                    pass
            else:
                write_film(frames, Path(path), environment.render_fps)
            return episode.reward

    def evaluate(self, episodes: int = 20, seed: int = 0, max_steps: int = 10_000) -> Evaluation:
        """Play whole episodes with the best actions, on an environment of their own. seed: of the first episode; each
        further one adds 1. max_steps: at which an episode is cut off."""
        ends = []
        with _playing(self) as (_, begin):
            for number in range(episodes):
                episode = begin(seed + number)
                for _ in episode.steps(max_steps):
                    pass
                ends.append(episode)
        cut_off = sum(not episode.ended for episode in ends)
        return Evaluation(tuple(end.reward for end in ends), tuple(end.length for end in ends), cut_off)

    # -- saving --------------------------------------------------------------------------------------------------------

    save, restore = files.save, files.restore
    save_param, restore_param = files.save_param, files.restore_param


class RL_pytorch(RL):
    """The base of agents written in PyTorch. See `RL`; `param` may be what `module.parameters()` returns."""

    framework: ClassVar[str] = "torch"

    def train(  # type: ignore[override]
        self,
        optimizer: Any = None,
        episodes: int | None = None,
        third: int | None = None,
        *,
        train_loss: Any = None,
        pool_network: bool = True,
        processes: int | None = None,
        **options: Any,
    ) -> float:
        """Play and learn `episodes` times; see `RL.train`. optimizer: a torch optimizer, or one for each list in
        `param`. third: `train(train_loss, optimizer, episodes)`, as agents in Keras are trained, is the same."""
        if third is not None:
            train_loss, optimizer, episodes = optimizer, episodes, third
        options |= {"pool_network": pool_network, "processes": processes}
        return self._train(train_loss, optimizer, episodes, options)

    def distributed_training(self, *arguments: Any, **named: Any) -> float:
        """Not for PyTorch: raises ConfigError."""
        raise ConfigError(
            f"distributed_training trains agents in Keras with strategies of tf.distribute; {type(self).__name__} is "
            "written in PyTorch. Train it with train, or write it in Keras, from etude.RL."
        )


def _warn(message: str) -> None:
    warnings.warn(message, stacklevel=4)


@contextmanager
def _playing(
    agent: Any, render_mode: str | None = None
) -> Iterator[tuple[AdaptedEnvironment, Callable[[int], SingleEpisode]]]:
    """An environment, and what begins an episode of the agent in it from a seed."""
    environments = UserEnvironments.of(agent.env, agent.seed, agent.reward_done_func_ma)
    described = environments.describe()
    environment = environments.single(render_mode)
    try:
        agents = None if described.agents is None else len(described.agents)
        engine: Any = acting_engine(agent, described.spaces, conversion_for(described.spaces.observation), agents)
        explorer = best_actions(described)
        if learns_rewards(agent, state_of(agent).settings):
            explorer = RewardInputsExplorer(explorer)
        yield environment, lambda seed: SingleEpisode(environment, engine, explorer, seed)
    finally:
        environment.close()


def best_actions(described: EnvironmentDescription) -> Explorer:
    """The best of values or probabilities where actions are discrete; what the agent returns where they are not."""
    discrete = isinstance(described.spaces.action, Discrete | MultiDiscrete)
    one: Explorer = Greedy() if discrete else AsIs()
    return one if described.agents is None else ByAgent([one], tuple(described.agents.values()))
