"""An environment with one fault: what it does, and when, is in environment variables, so that workers see it, too."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np

LATER_RESET, LATER_STEP, LENGTH = 4, 50, 10


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("this error cannot be printed")


def raises() -> None:
    raise ValueError("the gripper fell off")


def raises_unprintable() -> None:
    raise Unprintable


def raises_huge() -> None:
    raise ValueError("the gripper fell off" + "!" * 5_000_000 + "the end")


def exits_by_sys() -> None:
    sys.exit("that was all")


def exits_at_once() -> None:
    os._exit(3)


def segfaults() -> None:
    ctypes.string_at(0)


def hangs() -> None:
    time.sleep(100_000)


def writes_garbage() -> None:
    """Into every socket of the process, of which its pipe to the parent is one."""
    for descriptor in range(3, 64):
        try:
            if stat.S_ISSOCK(os.fstat(descriptor).st_mode):
                os.write(descriptor, bytes(range(7)))
        except OSError:
            continue


def starts_thread() -> None:
    threading.Thread(target=hangs, name="the user's thread").start()


def starts_process() -> None:
    _note(subprocess.Popen(["sleep", "100000"]).pid)


SAID = {  # what of each fault has to be read where it ends the run
    raises: "the gripper fell off (",
    raises_unprintable: "no text: its __str__ raised RuntimeError",
    raises_huge: "characters left out",
    exits_by_sys: "SystemExit: that was all",
}
SURVIVED = (starts_thread, starts_process)
REPLACED = {  # what of each fault has to be read where it costs a worker
    exits_at_once: "exited with code 3",
    segfaults: "ended by SIGSEGV",
    hangs: "took no time step for",
    writes_garbage: "replaced, its open episodes dropped",
}
WRONG = {  # what is returned in the place of an observation, and what has to be read of it
    "shape": (np.zeros(3, np.float32), "has shape (3,)"),
    "dtype": (np.zeros(2, complex), "has dtype complex128"),
    "nan": (np.full(2, np.nan, np.float32), "is nan"),
    "nothing": (None, "is a NoneType"),
}
DONE = {function.__name__: function for function in (*SAID, *SURVIVED, *REPLACED)}


class Faulty(gymnasium.Env):
    """Episodes of ten steps."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.resets, self.steps = 0, 0
        _note(os.getpid())
        self.fail("make")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.resets += 1
        self.time = 0
        # The first is only looked at for a mask.
        moment = {1: "first reset", 2: "first reset", LATER_RESET: "later reset"}.get(self.resets)
        return self.fail(moment), {}

    def step(self, action):
        self.steps += 1
        self.time += 1
        observation = self.fail("step" if self.steps == LATER_STEP else None)
        return observation, 1.0, False, self.time == LENGTH, {}

    def close(self) -> None:
        self.fail("close")

    def fail(self, moment: str | None):
        """The observation; where this is the moment, something else happens, or comes."""
        fault, elsewhere = os.environ["FAULT"], multiprocessing.parent_process() is None
        if moment != os.environ["MOMENT"] or (os.environ["PLACE"] == "two workers" and elsewhere):
            return np.zeros(2, np.float32)
        if fault in WRONG:
            return WRONG[fault][0]
        if DONE[fault] in REPLACED and not _first_time():
            return np.zeros(2, np.float32)
        DONE[fault]()
        return np.zeros(2, np.float32)


def _note(pid: int) -> None:
    with open(Path(os.environ["FOLDER"]) / "processes", "a") as file:
        file.write(f"{pid}\n")


def _first_time() -> bool:
    try:
        (Path(os.environ["FOLDER"]) / "done").mkdir()
    except FileExistsError:
        return False
    return True
