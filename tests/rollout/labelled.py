"""Small environments, actors and explorers whose numbers can be worked out by hand."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pickle
import signal
import stat
import sys
import time

import numpy as np

from etude.base.data import INITIAL_VERSION, Choice, PolicyVersion
from etude.base.seeding import episode_seed
from etude.base.spaces import Box, Discrete, Spaces

SPACES = Spaces(Box(-np.inf, np.inf, (3,), np.float32), Discrete(1000))


class Labelled:
    """Environments whose observation is (environment, episode, t) and whose reward is the action.

    The episode of environment c and number e has 2 + (c + e) % 3 steps; every other one terminates.
    """

    spread = 1  # times (c + e) % 3
    native = False
    spaces = SPACES
    reward_shape: tuple[int, ...] = ()
    info_names: tuple[str, ...] = ()

    def __init__(self, columns, run_seed: int = 0, forgets=()):
        self.columns = np.asarray(list(columns), np.int64)
        self.episode = np.full(len(columns), -1)
        self.t = np.zeros(len(columns), int)
        self.actions: list[list[int]] = [[] for _ in columns]
        self.run_seed, self.forgets, self.closed = run_seed, list(forgets), False

    def label(self, i: int) -> np.ndarray:
        return np.array([self.columns[i], self.episode[i], self.t[i]], np.float32)

    def observe(self, at) -> np.ndarray:
        return np.stack([self.label(i) for i in at])

    def begin(self, i: int) -> None:
        self.episode[i], self.t[i], self.actions[i] = self.episode[i] + 1, 0, []

    def reset(self) -> np.ndarray:
        for i in range(len(self.columns)):
            self.begin(i)
        return self.observe(range(len(self.columns)))

    def step(self, action: np.ndarray, at=None):
        n, final = len(action), {}
        self.scores = action.astype(np.float32)
        at = range(n) if at is None else at
        terminated, truncated = np.zeros(n, bool), np.zeros(n, bool)
        for k, i in enumerate(at):
            self.t[i] += 1
            self.actions[i].append(int(action[k]))
            kind = int(self.columns[i] + self.episode[i])
            if self.t[i] == 2 + self.spread * (kind % 3):
                terminated[k], truncated[k] = kind % 2 == 0, kind % 2 == 1
                final[k] = self.label(i)
                self.begin(i)
        return self.observe(at), action.astype(np.float32), terminated, truncated, final

    def state(self) -> list[dict]:
        return [
            {
                "episode": int(e),
                "seed": episode_seed(self.run_seed, int(c), int(e)),
                "actions": np.array(actions, np.int64),
            }
            for c, e, actions in zip(self.columns, self.episode, self.actions, strict=True)
        ]

    def restore(self, state: list[dict]):
        for i, saved in enumerate(state):
            self.episode[i], self.t[i] = saved["episode"], len(saved["actions"])
            self.actions[i] = [int(action) for action in saved["actions"]]
        for i in self.forgets:
            self.begin(i)
        return self.observe(range(len(self.columns))), self.forgets

    def warnings(self):
        return []

    def close(self) -> None:
        self.closed = True


class Native(Labelled):
    """The same as one simulator that can only step everything."""

    native = True

    def step(self, action: np.ndarray, at=None):
        assert len(action) == len(self.columns)
        assert at is None
        return super().step(action)


class Long(Labelled):
    """The same with episodes of 2, 202 and 402 steps."""

    spread = 200


class Adder:
    """Acts with one weight: preferences are the observation's sum plus that weight."""

    state_size = 0

    def __init__(self, weight: float = 0.0):
        self.weight = np.float32(weight)

    def act(self, observation: np.ndarray) -> np.ndarray:
        return observation.sum(-1) + self.weight

    def weights(self) -> dict[str, np.ndarray]:
        return {"weight": self.weight}

    def load(self, weights: dict[str, np.ndarray], version: PolicyVersion = INITIAL_VERSION) -> None:
        self.weight = weights["weight"] + np.float32(version.gradient_steps)


class Noisy:
    """Actions are integers that encode the preference, the noise and the schedule's step."""

    state_size = 0

    def of(self, columns: np.ndarray) -> Noisy:
        return self

    def draw(self, rng: np.random.Generator, steps: int, action_space) -> np.ndarray:
        return rng.random((steps, 1), np.float32)

    def __call__(self, output: np.ndarray, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        action = (output + 100 * noise[:, 0] + step).astype(np.int64) % 1000
        return Choice(action, {"log_prob": noise[:, 0].copy(), "at": np.full(len(output), step, np.int64)})


class Counting:
    """Remembers how many steps of the episode it has acted in, and which environment it is for."""

    state_size = 1

    def __init__(self, columns: np.ndarray = np.arange(100)):  # noqa: B008
        self.columns = columns

    def of(self, columns: np.ndarray) -> Counting:
        return Counting(np.asarray(columns))

    def draw(self, rng: np.random.Generator, steps: int, action_space) -> np.ndarray:
        return rng.random((steps, 1), np.float32)

    def __call__(self, output: np.ndarray, noise: np.ndarray, step: int, state: np.ndarray) -> Choice:
        state[:, 0] = np.where(np.isnan(state[:, 0]), 0, state[:, 0] + 1)
        extras = {"t": state[:, 0].copy(), "column": self.columns[: len(output)].copy()}
        return Choice((1000 * noise[:, 0]).astype(np.int64), extras)


class Faulty(Labelled):
    """Does something at step number `after` of environment 1, until the file `flag` exists ("": always)."""

    def __init__(self, columns, fault, flag: str, after: int = 5):
        super().__init__(columns)
        self.fault, self.flag, self.left = fault, flag, after

    def step(self, action: np.ndarray, at=None):
        if 1 in self.columns:
            self.left -= 1
            if self.left == 0 and not (self.flag and os.path.exists(self.flag)):
                if self.flag:
                    open(self.flag, "w").close()
                self.fault()
        return super().step(action, at)


def exit_at_once() -> None:
    os._exit(3)


def segfault() -> None:
    faulthandler._sigsegv()


def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def sleep_for_ever() -> None:
    time.sleep(1000)


def raise_an_error() -> None:
    raise ValueError("the door is stuck")


def raise_end_of_file() -> None:
    raise EOFError("the user's own pipe")


def write_everywhere(data: bytes) -> None:
    """Into every pipe and socket that this process can write to, and not into the memory that it shares."""
    for descriptor in range(3, 4096):
        with contextlib.suppress(OSError):
            kind = os.fstat(descriptor).st_mode
            if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):
                os.write(descriptor, data)


def write_no_message() -> None:
    write_everywhere(b"\0\0\0\5hello")


def write_another_message() -> None:
    data = pickle.dumps(3)
    write_everywhere(len(data).to_bytes(4, "big") + data)


def write_less_than_it_says() -> None:
    write_everywhere(b"\0\1\0\0half")


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error cannot be printed")


def raise_unprintable() -> None:
    raise Unprintable


def raise_megabytes() -> None:
    raise ValueError("the door" + "!" * 5_000_000 + "is stuck")


def exit_by_sys() -> None:
    sys.exit("that was all")
