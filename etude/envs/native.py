"""Vectorised simulators (gymnasium.vector.VectorEnv) behind the contract of `protocols.Environments`.

A row must be a transition of every environment, and never a reset. Gymnasium has three ways to start the next episode:

- SAME_STEP: the simulator resets within the step and hands over the last observation as `info["final_obs"]`.
- DISABLED: whoever steps resets what ended, with `reset(options={"reset_mask": ended})`; done here, within the step.
- NEXT_STEP: the simulator spends the next step on the reset and ignores the action, while the others take a real step:
  that row could neither be kept nor dropped. So the reset is done within the step here too, by `reset_mask`, where the
  simulator honours it (which is tried once, at the start); Gymnasium's CartPole, which does not, is restarted in place.
  Any other simulator is refused, with what to do.

A simulator has one generator for all its environments: episodes cannot be replayed, and their seeds depend on how many
environments one simulator holds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from etude.base import trees
from etude.base.errors import ConfigError, SpaceError
from etude.base.forks import when_dropped
from etude.base.seeding import RunSeed, episode_seed
from etude.base.spaces import ACTION_MASK, Origins, Spaces
from etude.base.trees import Tree
from etude.envs.actions import WrongValue
from etude.envs.adapter import AgentTranslation, SpaceConversion, Translation
from etude.envs.faults import RAISED, FaultLocation, cause_of, check_reset, close_all, explain_flag, explain_step
from etude.envs.observations import Mismatch, mask_of, mask_size, origins_in
from etude.envs.vector import KeptInfo, NotingEnvironments

# (simulator, ended [N]) -> observations, infos
Restart = Callable[[VectorEnv[Any, Any, Any], np.ndarray], tuple[Any, dict[str, Any]]]


class NativeEnvironments(NotingEnvironments):
    """The environments of one vectorised simulator. Implements `protocols.Environments`."""

    native = True
    reward_shape: tuple[int, ...] = ()

    def __init__(
        self,
        simulator: VectorEnv[Any, Any, Any],
        columns: np.ndarray,
        run_seed: RunSeed,
        name: str = "simulator",
        max_steps: int | None = None,
        keep_info: Sequence[str] = (),
        masks: bool = False,
        origins: Origins = (),
    ):
        """max_steps: after which an episode is truncated, unless the simulator resets itself; None: never. keep_info:
        names of numbers of `info` that `info` holds after each step. masks, origins: see `LoopEnvironments`.

        Raises ConfigError for a simulator whose ended environments cannot be restarted within the step.
        """
        super().__init__()
        self.columns: np.ndarray = np.asarray(columns, np.int64)
        if simulator.num_envs != len(self.columns):
            raise ConfigError(f"{name} holds {simulator.num_envs} environments; {len(self.columns)} were asked for.")
        self.name: str = name
        self._simulator, self._run_seed = simulator, run_seed
        self._open = [simulator]  # nothing, once it is closed
        when_dropped(self, close_all, self._open, name)
        self._same_step, self._restart = restart_of(simulator, name)
        self._max_steps = max_steps if max_steps is not None and not self._same_step else np.inf
        self._episode = np.full(len(self.columns), -1, np.int64)
        self._length = np.zeros(len(self.columns), np.int64)
        self._resets = 0
        self.info_names: tuple[str, ...] = tuple(keep_info)
        self.info: np.ndarray = np.empty((0, len(self.info_names)), np.float32)
        self._kept_info = KeptInfo(self.info_names, self._note)
        self.scores: np.ndarray = np.zeros(len(self.columns), np.float32)
        _, infos = self._raw_reset(0)
        action, shown = simulator.single_action_space, map(partial(_row, infos), range(len(self.columns)))
        flags = mask_size(action, next(filter(None, shown), {}), masks)
        self.masks: bool = masks or flags > 0
        self._layout = SpaceConversion.of(simulator.single_observation_space, action, flags, origins=origins)
        self.spaces: Spaces = self._layout.spaces

    def translation(self) -> Translation:
        """What translates for one of these environments, also after they were closed."""
        return AgentTranslation(self._layout)

    def origins(self) -> Origins:
        """See `LoopEnvironments`."""
        first = trees.rows(self._raw_reset(0)[0], 0)
        return origins_in(self._simulator.single_observation_space, first)

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""
        seed = episode_seed(self._run_seed, int(self.columns[0]), self._resets)
        self._resets += 1
        self._episode += 1
        self._length[:] = 0
        return self._observe(*self._raw_reset(seed))

    def set_task(self, task: Any) -> None:
        """Raises ConfigError: its episodes begin within its own step."""
        raise ConfigError(
            f"task = {task!r}: {self.name} is stepped as one vectorised simulator, which begins the episodes of its "
            "environments by itself and takes no tasks. Use vectorization='loop'."
        )

    def step(
        self, action: np.ndarray, at: Sequence[int] | None = None
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Tree]]:
        """Step all environments, whatever `at` says. See `protocols.Environments`."""
        if len(action) != len(self.columns):
            raise SpaceError(
                f"{self.name} steps all its {len(self.columns)} environments at once; got {len(action)} actions."
            )
        legal = self._layout.actions.convert(action)
        self._length += 1
        try:
            result = self._simulator.step(legal)
        except RAISED as problem:
            raise self._somewhere().raised(problem) from cause_of(problem)
        if not isinstance(result, tuple) or len(result) != 5:
            raise self._somewhere().fault(explain_step(result))
        observation, reward, terminated, truncated, infos = result
        numbers = self.scores = self._numbers(reward)
        flags = self._flags("terminated", terminated), self._flags("truncated", truncated)
        flags[1][self._length >= self._max_steps] = True
        ended = flags[0] | flags[1]
        if self.info_names:
            try:
                self.info = self._kept_info.of_simulator(infos, ended)
            except WrongValue as problem:
                raise self._somewhere().fault(str(problem)) from None
        if ended.any():
            final, observation, infos = self._end(ended, observation, infos)
        else:
            final = {}
        return self._observe(observation, infos), numbers, *flags, final

    def state(self) -> list[dict[str, Any]]:
        """The number of each open episode; a simulator cannot replay more."""
        return [{"episode": int(episode)} for episode in self._episode]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Start new episodes everywhere, numbered on from those of `state`."""
        self._episode[:] = [saved["episode"] for saved in state]
        self._resets = int(self._episode.max()) + 1  # no seed that a reset has had before
        return self.reset(), list(range(len(state)))

    def close(self) -> None:
        """Close the simulator, with a warning where that fails. May be called twice."""
        close_all(self._open, self.name)

    def _end(
        self, ended: np.ndarray, observation: Any, infos: dict[str, Any]
    ) -> tuple[dict[int, Tree], Any, dict[str, Any]]:
        """The final observations by position, and the observations and infos of all with the next episodes begun."""
        final = {}
        for i in np.flatnonzero(ended).tolist():
            try:
                final[i] = self._layout.observations.gather_final(*self._last(i, observation, infos))
            except Mismatch as problem:
                raise self._where(i).mismatch(problem) from None
        if not self._same_step:
            try:
                observation, fresh = self._restart(self._simulator, ended)
            except RAISED as problem:
                raise self._somewhere().raised(problem) from cause_of(problem)
            if ACTION_MASK in fresh or ACTION_MASK in infos:  # of those that were restarted, and of the others
                infos = {ACTION_MASK: [mask_of(fresh if again else infos, i) for i, again in enumerate(ended)]}
        self._episode[ended] += 1
        self._length[ended] = 0
        return final, observation, infos

    def _last(self, i: int, observation: Any, infos: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if not self._same_step:
            return trees.rows(observation, i), _row(infos, i)
        if "final_obs" not in infos:
            raise self._where(i).fault(
                "SAME_STEP autoreset without info['final_obs'], the last observation of the episode"
            )
        last = infos["final_obs"]
        return trees.rows(last, i) if isinstance(last, dict | tuple) else last[i], _row(infos.get("final_info", {}), i)

    def _observe(self, observation: Any, infos: dict[str, Any]) -> Tree:
        try:
            return self._layout.observations.batch(observation, infos)
        except Mismatch as problem:
            raise self._where(problem.position).mismatch(problem) from None

    def _numbers(self, reward: Any) -> np.ndarray:
        if np.asarray(reward).dtype.kind in "SU":
            raise self._somewhere().fault(f"the rewards are texts: {str(reward)[:80]}; expected numbers")
        numbers = np.array(reward, np.float32)
        if numbers.shape != self.columns.shape:
            raise self._somewhere().fault(f"the rewards have shape {numbers.shape}; expected {self.columns.shape}")
        if not np.isfinite(numbers).all():
            i = int(np.argmin(np.isfinite(numbers)))
            raise self._where(i).fault(f"the reward is {numbers[i]}; expected a finite float32 number")
        return numbers

    def _flags(self, name: str, value: Any) -> np.ndarray:
        try:
            array = np.asarray(value)
        except ValueError as problem:  # rows of different lengths
            raise self._somewhere().fault(f"{name} is no array: {problem}") from None
        if array.shape != self.columns.shape:
            raise self._somewhere().fault(f"{name} has shape {array.shape}; expected {self.columns.shape}")
        for i, flag in enumerate(array.flat) if array.dtype != bool else ():
            wrong = explain_flag(name, flag)
            if wrong is not None:
                raise self._where(i).fault(wrong)
        return array.astype(bool)

    def _raw_reset(self, seed: int) -> tuple[Any, dict[str, Any]]:
        try:
            result = self._simulator.reset(seed=seed)
        except RAISED as problem:
            raise self._somewhere().raised(problem) from cause_of(problem)
        return check_reset(result, self._somewhere())

    def _where(self, i: int) -> FaultLocation:
        return FaultLocation(self.name, int(self.columns[i]), int(self._episode[i]), int(self._length[i]))

    def _somewhere(self) -> FaultLocation:
        """For what concerns the simulator as a whole; episode and step are those of its first environment."""
        where = self._where(0)
        return FaultLocation(self.name, f"one of {self.columns[0]} to {self.columns[-1]}", where.episode, where.step)


def restart_of(simulator: VectorEnv[Any, Any, Any], name: str) -> tuple[bool, Restart]:
    """(whether the simulator resets within the step itself, how to restart what ended where it does not)."""
    try:
        mode = AutoresetMode(simulator.metadata.get("autoreset_mode"))
    except ValueError:
        raise ConfigError(
            f"{name} does not say how it resets: metadata['autoreset_mode'] is "
            f"{simulator.metadata.get('autoreset_mode')!r}; set it to a gymnasium.vector.AutoresetMode."
        ) from None
    if mode is AutoresetMode.SAME_STEP:
        return True, _by_mask
    if type(simulator) is CartPoleVectorEnv:
        return False, _restart_cartpole
    # Without shared memory, Gymnasium's workers forget that a reset by mask has been done, and reset once more.
    forgetful = isinstance(simulator.unwrapped, AsyncVectorEnv) and not simulator.unwrapped.shared_memory
    if honours_mask(simulator) and not (forgetful and mode is AutoresetMode.NEXT_STEP):
        return False, _by_mask
    raise ConfigError(
        f"{name} resets with {mode.name} and ignores reset(options={{'reset_mask': ...}}), so a reset could not be "
        "told from a step. Make it reset with AutoresetMode.SAME_STEP, let it honour reset_mask, or use "
        "vectorization='loop'."
    )


def honours_mask(simulator: VectorEnv[Any, Any, Any]) -> bool:
    """Whether a reset of one environment leaves the others where they are; tried after a few random steps."""
    if simulator.num_envs == 1:
        return True
    only = np.zeros(simulator.num_envs, bool)
    only[0] = True
    simulator.action_space.seed(0)
    start, _ = simulator.reset(seed=0)
    for _ in range(10):
        before, _, terminated, truncated, _ = simulator.step(simulator.action_space.sample())
        if not _same_but_first(start, before) or np.any(terminated) or np.any(truncated):
            break
    before = trees.map(np.array, before)
    try:
        after, _ = simulator.reset(options={"reset_mask": only})
    except Exception:  # it does not know the option
        return False
    return _same_but_first(before, after)


def _same_but_first(a: Tree, b: Tree) -> bool:
    pairs = zip(trees.leaves(a), trees.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x)[1:], np.asarray(y)[1:]) for x, y in pairs)


def _by_mask(simulator: VectorEnv[Any, Any, Any], ended: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """A reset of what ended. Gymnasium's simulators take the mask out of the options before statistics around them have
    read it, which then begin anew for all environments: those of the others are put back."""
    counted, layer = [], simulator
    while isinstance(layer, VectorWrapper):
        if isinstance(layer, RecordEpisodeStatistics):
            counted.append((vars(layer), {k: own for k, own in vars(layer).items() if isinstance(own, np.ndarray)}))
        layer = layer.env
    result = simulator.reset(options={"reset_mask": ended})
    for statistics, before in counted:
        statistics.update({name: np.where(ended, statistics[name], value) for name, value in before.items()})
    return result


def _restart_cartpole(simulator: Any, ended: np.ndarray) -> tuple[Any, dict[str, Any]]:
    """What CartPoleVectorEnv does with those that ended, at the end of the step and not of the next one."""
    size = (4, int(ended.sum()))
    simulator.state[:, ended] = simulator.np_random.uniform(low=simulator.low, high=simulator.high, size=size)
    simulator.steps[ended] = 0
    simulator.prev_done[ended] = False
    return simulator.state.T.astype(np.float32), {}


def _row(infos: dict[str, Any], i: int) -> dict[str, Any]:
    """What of the infos etude reads, for one environment."""
    mask = mask_of(infos, i)
    return {} if mask is None else {ACTION_MASK: mask}
