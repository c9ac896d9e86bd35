"""N environments stepped in a Python loop, the hot path of collecting.

Every episode starts from a seed of its own (`seeding.episode_seed`), and the actions since then are kept, so that an
open episode can be replayed after a resume without pickling an environment."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from etude.base import trees
from etude.base.errors import EnvironmentFault, SpaceError
from etude.base.forks import when_dropped
from etude.base.seeding import RunSeed, environment_name, episode_seed
from etude.base.spaces import Origins, Spaces
from etude.base.trees import Tree
from etude.envs.actions import ActionScaling, NormalisedActions, Rewards, WrongValue
from etude.envs.adapter import GiveTask, SpaceConversion, Translation, task_giver, translation_of
from etude.envs.faults import (
    RAISED,
    FaultLocation,
    cause_of,
    close_all,
    explain_flag,
    explain_reset,
    explain_step,
    text_of,
)
from etude.envs.observations import Mismatch, mask_size, origins_in

STATISTICS = "episode"  # the key of Gymnasium's RecordEpisodeStatistics


class KeptInfo:
    """Reads these numbers from the infos of a step: [n, K] float32, NaN where one is missing.

    A dot in a name leads into a dict of `info`: "left.score" of `info["left"]["score"]`. note: takes the warning about
    a name that is missing.
    """

    def __init__(self, names: Sequence[str], note: Callable[[str], None]):
        self.names: tuple[str, ...] = tuple(names)
        self._note = note

    def of_infos(self, infos: Sequence[Mapping[str, Any]]) -> np.ndarray:
        """From one dict for each environment. Raises WrongValue."""
        names = self.names
        try:
            found = np.array([[info[name] for name in names] for info in infos], np.float32)
        except (KeyError, TypeError, ValueError):
            found = None
        if found is None or found.shape != (len(infos), len(names)):
            found = np.array([[self._number(i, info, name) for name in names] for i, info in enumerate(infos)])
        return found.astype(np.float32, copy=False)

    def of_simulator(self, infos: Mapping[str, Any], ended: np.ndarray) -> np.ndarray:
        """From the arrays of a vectorised simulator, which says with `_name` for which environments they are; for those
        that ended within the step, from `final_info`, and what RecordEpisodeStatistics of Gymnasium puts beside it."""
        last = infos.get("final_info")
        found = self._of_arrays(infos, len(ended), last is None)
        if isinstance(last, Mapping) and ended.any():
            beside = {STATISTICS: infos[STATISTICS]} if STATISTICS in infos else {}
            found[ended] = self._of_arrays({**beside, **last}, len(ended), True)[ended]
        return found

    def _of_arrays(self, infos: Mapping[str, Any], n: int, note: bool) -> np.ndarray:
        found = np.full((n, len(self.names)), np.nan, np.float32)
        for k, name in enumerate(self.names):
            values: Any = _look_up(infos, name)
            if values is None:
                if note:
                    self._missing(name, infos)
                continue
            try:
                numbers = np.asarray(values, np.float32)
            except (TypeError, ValueError):
                numbers = None
            if numbers is None or numbers.shape != (n,):
                raise WrongValue(0, f"info[{name!r}] is {str(values)[:80]}; expected {n} numbers, for keep_info")
            found[:, k] = np.where(_present(infos, name), numbers, np.nan)
        return found

    def _number(self, position: int, info: Mapping[str, Any], name: str) -> float:
        value = _look_up(info, name)
        if value is None:
            self._missing(name, info)
            return np.nan
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            return float(np.asarray(value, np.float64).reshape(()))
        except (TypeError, ValueError):
            text = f"info[{name!r}] is {str(value)[:80]}, a {type(value).__name__}; expected one number, for keep_info"
            raise WrongValue(position, text) from None

    def _missing(self, name: str, info: Mapping[str, Any]) -> None:
        known = ", ".join(sorted(str(key) for key in info if not str(key).startswith("_"))) or "nothing"
        self._note(
            f"info holds no {name!r}, which keep_info names; it is NaN there. At this step info holds: {known[:200]}."
        )


def _present(infos: Any, name: str) -> Any:
    """For which environments the arrays of a simulator hold a value, [n] or one for all: flags are beside each key."""
    first, _, rest = (name, "", "") if name in infos else name.partition(".")
    own = np.asarray(infos.get(f"_{first}", True), bool)
    return own & _present(infos[first], rest) if rest else own


def _look_up(info: Any, name: str) -> Any:
    if isinstance(info, Mapping) and name in info:
        return info[name]
    first, dot, rest = name.partition(".")
    return _look_up(info.get(first), rest) if dot and isinstance(info, Mapping) else None


CALLS = 4  # of `reset` and of `step` that are watched

_IN_PLACE_OF = {
    gym.wrappers.NormalizeObservation: "normalize_observation=True",
    gym.wrappers.NormalizeReward: "normalize_reward=True",
}
_CONSEQUENCE = (
    "A resumed run, or one with another number of workers, gets other episodes from the same seeds without noticing"
)


def statistics_in(env: Any) -> list[str]:
    """A note for every wrapper whose running statistics go on from episode to episode."""
    found = []
    while isinstance(env, gym.Wrapper):
        for kind, setting in _IN_PLACE_OF.items():
            if isinstance(env, kind) and env.update_running_mean:  # type: ignore[attr-defined]
                found.append(
                    f"The wrapper {kind.__name__} keeps running statistics from episode to episode, which are in no "
                    f"checkpoint. {_CONSEQUENCE}. Leave it out and set {setting} in the algorithm's config."
                )
        env = env.env
    return found


class Generators:
    """Where the global generators of Python and NumPy are, to be compared with later."""

    def __init__(self) -> None:
        self._before = _states()

    def note(self) -> str | None:
        """What to tell where they are elsewhere than when this was made."""
        moved = [name for name, state in _states().items() if state != self._before[name]]
        if not moved:
            return None
        return (
            f"It draws from or seeds a global generator ({', '.join(moved)}), which all environments of a process "
            f"share. {_CONSEQUENCE}. Draw from self.np_random, which super().reset(seed=seed) seeds."
        )


class _FirstCalls:
    """A function of an environment, with an eye on the global generators at its first calls.

    note: told of what is seen. Where the function stands in `functions`, at `place`, it stands alone again afterwards.
    """

    def __init__(self, functions: list[Callable[..., Any]], place: int, note: Callable[[str], None]):
        self._functions, self._place, self._note = functions, place, note
        self._function, self._left = functions[place], CALLS
        functions[place] = self

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """What the function returns."""
        self._left -= 1
        if not self._left:
            self._functions[self._place] = self._function
        generators = Generators()
        result = self._function(*arguments, **keywords)
        seen = generators.note()
        if seen is not None:
            self._note(seen)
        return result


def _states() -> dict[str, Any]:
    # Only looked at, never drawn from.
    return {"random": random.getstate(), "numpy.random": pickle.dumps(np.random.get_state(legacy=False))}  # noqa: NPY002


_NOTHING: np.ndarray = np.empty(0)  # for what cannot be put in one array; it has no right shape


class NotingEnvironments:
    """The base of environments that take notes for the user, each told once."""

    name: str

    def __init__(self) -> None:
        self._notes: dict[str, bool] = {}  # what a user should know, and whether it was told

    def _note(self, text: str) -> None:
        self._notes.setdefault(f"{self.name}: {text}", False)

    def warnings(self) -> list[str]:
        """Signs that episodes do not follow from their seeds, and names of `keep_info` that are missing: those that are
        new since the last call."""
        new = [text for text, told in self._notes.items() if not told]
        self._notes.update(dict.fromkeys(new, True))
        return new


class LoopEnvironments(NotingEnvironments):
    """Environments that are stepped one after the other and reset at once where an episode ends.

    Implements `protocols.Environments`. The arrays that `step` and `reset` return are new at every call; observations
    are compared after a resume, so do not write to them.
    """

    native = False

    def __init__(
        self,
        factory: Callable[[], gym.Env[Any, Any]],
        columns: np.ndarray,
        run_seed: RunSeed,
        name: str = "environment",
        scaling: ActionScaling = NormalisedActions,
        rewards: Rewards | None = None,
        spaces: Spaces | None = None,
        replayable: bool = True,
        keep_info: Sequence[str] = (),
        masks: bool = False,
        origins: Origins = (),
    ):
        """`factory` makes one environment; `columns` are their numbers in the run, which seed the episodes.

        scaling: of Box actions, `NormalisedActions` or `RawActions`. rewards: their layout; None for one number each.
        spaces: as agents see them, where the environment's own do not tell all, as with several agents.
        replayable: whether actions are kept for `state`; without, an episode of any length takes no memory.
        keep_info: names of numbers of `info` that `info` holds after each step. masks: whether an info holds an action
        mask at some step, also where that of the first reset holds none. origins: see `with_origins`.
        """
        super().__init__()
        self.columns: np.ndarray = np.asarray(columns, np.int64)
        self.name: str = name
        self._run_seed = run_seed
        count = len(self.columns)
        self._envs = [factory() for _ in range(count)]
        when_dropped(self, close_all, self._envs, name)
        self._numbers_in_run = self.columns.tolist()
        self._step_functions: list[Callable[..., Any]] = [env.step for env in self._envs]
        self._reset_functions: list[Callable[..., Any]] = [env.reset for env in self._envs]
        self.info_names: tuple[str, ...] = tuple(keep_info)
        self.info: np.ndarray = _NOTHING
        self._kept_info = KeptInfo(self.info_names, self._note)
        for functions in (self._step_functions, self._reset_functions):
            _FirstCalls(functions, 0, self._note)
        for text in statistics_in(self._envs[0]):
            self._note(text)
        self._episode = [-1] * count
        # Of the open episodes, or of the first ones; a restored episode may have begun under another seed of the run.
        self._seeds = [episode_seed(self._run_seed, number, 0) for number in self._numbers_in_run]
        self._task: Any = None  # of the episodes that begin from now on; None: none was set
        self._tasks: list[Any] = [None] * count  # of the open episodes
        self._givers: list[GiveTask] = []  # made with the first task
        self._replayable = replayable
        self._actions = [bytearray() for _ in range(count)]  # of the open episodes, one after the other
        self._length = [0] * count  # of the open episodes, in steps
        self._rewards = rewards or Rewards()
        self.reward_shape: tuple[int, ...] = self._rewards.shape
        self.scores: np.ndarray = np.zeros(count, np.float32)
        first = self._envs[0]
        _, info = self._raw_reset(0, None)  # spaces do not tell whether infos hold an action mask
        flags = mask_size(first.action_space, info, masks) if spaces is None else 0
        self.masks: bool = masks or flags > 0
        self._layout = SpaceConversion.of(first.observation_space, first.action_space, flags, scaling, origins)
        actions = self._layout.actions
        self._each = actions.convert if actions.rows else actions.each
        self.spaces: Spaces = self._layout.spaces if spaces is None else spaces
        action = self.spaces.action
        self._none = np.empty((0, *(action.shape or ())), action.dtype)
        self._observation: Tree = None
        for env in self._envs[1:]:
            if env.observation_space != first.observation_space or env.action_space != first.action_space:
                raise SpaceError(
                    f"{self.name} makes environments with different spaces; all of a run must have the same."
                )

    def translation(self) -> Translation:
        """What translates for one of these environments, also after they were closed."""
        return translation_of(self._envs[0], self._layout)

    def origins(self) -> Origins:
        """Those of the first environment, from the first observation of an episode; see `origins_in`."""
        return origins_in(self._envs[0].observation_space, self._begin(0)[0])

    def reset(self) -> Tree:
        """Start a new episode everywhere; observations [N, ...]."""
        return self._observed([self._begin(i) for i in range(len(self._envs))])

    def set_task(self, task: Any) -> None:
        """Give this task to the episodes that begin from now on. ConfigError where an environment takes none."""
        self._giver(0)
        self._task = task

    def step(
        self, action: np.ndarray, at: Sequence[int] | None = None
    ) -> tuple[Tree, np.ndarray, np.ndarray, np.ndarray, dict[int, Tree]]:
        """Step the first len(action) environments, or those at these positions. See `protocols.Environments`."""
        n = len(action)
        places: Sequence[int] = range(n) if at is None else tuple(at)
        functions = self._step_functions if at is None else [self._step_functions[place] for place in at]
        raws: list[Any] = [None] * n
        infos: list[Any] = [None] * n
        rewards: list[Any] = [0.0] * n
        terminated: list[Any] = [False] * n
        truncated: list[Any] = [False] * n
        final: dict[int, Tree] = {}
        last: dict[int, Any] = {}  # the infos of the steps that ended an episode
        legal = self._each(action)
        taken = action.astype(self._none.dtype, copy=False).tobytes() if self._replayable else b""
        size = len(taken) // n
        for k, place in enumerate(places):
            self._length[place] += 1
            self._actions[place] += taken[k * size : (k + 1) * size]
        i, result = 0, None
        try:
            for i, (step, act) in enumerate(zip(functions, legal)):  # noqa: B905 (a part may be stepped)
                result = None
                result = step(act)
                raws[i], rewards[i], terminated[i], truncated[i], infos[i] = result
                # Most flags are the False itself, which costs least to see; whatever else it is, it is checked.
                if (terminated[i] is not False or truncated[i] is not False) and self._ended(places[i], result):
                    final[i], last[i] = self._end(places[i], result), infos[i]
                    raws[i], infos[i] = self._begin(places[i])
        except EnvironmentFault:
            raise
        except RAISED as problem:
            raise self._explain(places[i], result, problem) from cause_of(problem)
        try:
            observation = self._layout.observations.gather(raws, infos)
            numbers, self.scores = self._rewards.gather(rewards)
            if self.info_names:
                self.info = self._kept_info.of_infos([last.get(i, info) for i, info in enumerate(infos)])
        except Mismatch as problem:
            raise self._where(places[problem.position]).mismatch(problem) from None
        except WrongValue as problem:
            raise self._where(places[problem.position]).fault(str(problem)) from None
        if n == len(self._envs):
            self._observation = observation
        else:
            self._observation = trees.map(np.copy, self._observation)
            trees.put(self._observation, list(places), observation)
        if not final:
            return observation, numbers, np.zeros(n, bool), np.zeros(n, bool), final
        return observation, numbers, np.array(terminated, bool), np.array(truncated, bool), final

    def state(self) -> list[dict[str, Any]]:
        """For each environment its episode, seed and actions so far, and the leaves of the observation to compare; its
        task, where it was given one."""
        assert self._replayable, "nothing was kept to replay"
        leaves = [] if self._observation is None else trees.leaves(self._observation)
        return [
            {
                "episode": self._episode[i],
                "seed": self._seeds[i],
                "actions": self._actions_of(i),
                "observation": [np.array(leaf[i]) for leaf in leaves],
                **({} if self._tasks[i] is None else {"task": self._tasks[i]}),
            }
            for i in range(len(self._envs))
        ]

    def restore(self, state: list[dict[str, Any]]) -> tuple[Tree, list[int]]:
        """Replay the open episodes; where a replay differs, begin the next one. See `protocols.Environments`."""
        begun, differs = [], []
        for i, saved in enumerate(state):
            self._episode[i] = saved["episode"]
            if saved["episode"] < 0:  # it was saved before the first reset
                begun.append(self._begin(i))
                continue
            replayed = self._replay(i, saved) if "seed" in saved else None
            if replayed is None:
                differs.append(i)
                replayed = self._begin(i)
            begun.append(replayed)
        return self._observed(begun), differs

    def close(self) -> None:
        """Close every environment, with a warning where that fails. May be called twice."""
        close_all(self._envs, self.name)

    def _begin(self, i: int) -> tuple[Any, dict[str, Any]]:
        self._episode[i] += 1
        self._tasks[i] = self._task
        self._actions[i], self._length[i] = bytearray(), 0
        self._seeds[i] = episode_seed(self._run_seed, self._numbers_in_run[i], self._episode[i])
        return self._raw_reset(i, self._seeds[i])

    def _raw_reset(self, i: int, seed: int | None) -> tuple[Any, dict[str, Any]]:
        try:
            options = {} if self._tasks[i] is None else self._giver(i)(self._tasks[i])
            result = self._reset_functions[i](seed=seed, **options)
        except EnvironmentFault:
            raise
        except RAISED as problem:
            raise self._where(i).raised(problem) from cause_of(problem)
        wrong = explain_reset(result)
        if wrong is not None:
            raise self._where(i).fault(wrong)
        return result

    def _giver(self, i: int) -> GiveTask:
        """What gives an environment its task."""
        if not self._givers:
            self._givers = [task_giver(env, self.name) for env in self._envs]
        return self._givers[i]

    def _ended(self, i: int, result: tuple[Any, ...]) -> bool:
        """Whether the episode ended with this step; EnvironmentFault where its flags do not say."""
        _, _, terminated, truncated, _ = result
        wrong = explain_flag("terminated", terminated) or explain_flag("truncated", truncated)
        if wrong is not None:
            raise self._where(i).fault(wrong)
        return bool(terminated or truncated)

    def _end(self, i: int, result: tuple[Any, ...]) -> Tree:
        """The final observation. All is checked now: once the next episode has begun, the step would be unknown."""
        observation, reward, _, _, info = result
        if (wrong := self._rewards.explain(reward)) is not None:
            raise self._where(i).fault(wrong)
        try:
            if self.info_names:
                self._kept_info.of_infos([info])
            return self._layout.observations.gather_final(observation, info)
        except WrongValue as problem:
            raise self._where(i).fault(str(problem)) from None
        except Mismatch as problem:
            raise self._where(i).mismatch(problem) from None

    def _observed(self, begun: list[tuple[Any, dict[str, Any]]]) -> Tree:
        """The observations of all environments, from the first ones of their episodes and the infos beside."""
        try:
            self._observation = self._layout.observations.gather([raw for raw, _ in begun], [info for _, info in begun])
        except Mismatch as problem:
            raise self._where(problem.position).mismatch(problem) from None
        return self._observation

    def _explain(self, i: int, result: Any, problem: BaseException) -> EnvironmentFault:
        if result is None and problem.__traceback__ is not None and problem.__traceback__.tb_next is not None:
            return self._where(i).raised(problem)
        if isinstance(result, tuple) and len(result) == 5:
            return self._where(i).fault(f"step returned an observation that cannot be used: {text_of(problem)}")
        return self._where(i).fault(explain_step(result))

    def _where(self, i: int) -> FaultLocation:
        number, episode = self._numbers_in_run[i], self._episode[i]
        seed = None if episode < 0 else self._seeds[i]
        place = environment_name(self._run_seed, number)
        return FaultLocation(self.name, place, episode, self._length[i], seed, self._tasks[i])

    def _actions_of(self, i: int) -> np.ndarray:
        """Those of its open episode, [length, ...]."""
        none, held = self._none, self._actions[i]
        return np.frombuffer(held.copy(), none.dtype).reshape(-1, *none.shape[1:]) if held else none

    def _replay(self, i: int, saved: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        """The observation and info that the saved actions lead to; None where they lead elsewhere."""
        actions = np.asarray(saved["actions"], self._none.dtype)
        self._actions[i], self._length[i] = bytearray(actions.tobytes()), len(actions)
        self._tasks[i] = saved.get("task")
        self._seeds[i] = int(saved["seed"])
        raw, info = self._raw_reset(i, self._seeds[i])
        try:
            for action in self._layout.actions.each(actions):
                raw, _, terminated, truncated, info = self._step_functions[i](action)
                if terminated or truncated:
                    return None
            leaves = trees.leaves(self._layout.observations.gather([raw], [info]))
        except RAISED:  # it differs, whatever it raised; a fault of the environment shows again in the next episode
            return None
        same = all(np.array_equal(leaf[0], before) for leaf, before in zip(leaves, saved["observation"], strict=True))
        return (raw, info) if same else None
