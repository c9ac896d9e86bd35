"""Prioritised replays of other libraries, measured in an environment of their own. Prints JSON.

`PYTHON peers_priorities.py REPEATS`; replay.py runs it with the Python of --replay-peers, into which
`pip install torch==2.13.0 cpprb tianshou torchrl` went. Libraries that do not work are left out, with the reason.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import answer, seconds_per_call

ROWS, OBSERVATION, ACTION, BATCH = 1_000_000, 17, 6, 256
ALPHA, BETA = 0.6, 0.4
Functions = dict[str, Callable[[], Any]]  # draw: rows and weights alone; sample: the batch as well; update


def cpprb(errors: np.ndarray, drawn: list[np.ndarray]) -> Functions:
    import cpprb

    shapes = {"obs": OBSERVATION, "act": ACTION, "rew": 1, "next_obs": OBSERVATION, "done": 1}
    buffer = cpprb.PrioritizedReplayBuffer(ROWS, {name: {"shape": size} for name, size in shapes.items()}, alpha=ALPHA)
    for part in np.array_split(errors, 100):
        arrays = {name: np.zeros((len(part), size), np.float32) for name, size in shapes.items()}
        buffer.add(**arrays, priorities=part)
    turn = itertools.cycle(drawn)
    return {
        "sample": lambda: buffer.sample(BATCH, beta=BETA),
        "update": lambda: buffer.update_priorities(next(turn), errors[:BATCH]),
    }


def tianshou(errors: np.ndarray, drawn: list[np.ndarray]) -> Functions:
    from tianshou.data import Batch, PrioritizedReplayBuffer

    buffer = PrioritizedReplayBuffer(ROWS, alpha=ALPHA, beta=BETA)
    observation, flags = np.zeros((ROWS, OBSERVATION), np.float32), np.zeros(ROWS, bool)
    buffer.set_batch(
        Batch(
            obs=observation, act=np.zeros((ROWS, ACTION), np.float32), rew=np.zeros(ROWS), terminated=flags,
            truncated=flags, done=flags, obs_next=observation, info=Batch(),
        )
    )  # fmt: skip
    buffer._size = ROWS  # as its own `from_data` does: adding a million steps one by one takes minutes
    buffer.update_weight(np.arange(ROWS), errors)
    turn = itertools.cycle(drawn)
    return {
        "draw": lambda: buffer.get_weight(buffer.sample_indices(BATCH)),
        "sample": lambda: buffer.sample(BATCH),
        "update": lambda: buffer.update_weight(next(turn), errors[:BATCH]),
    }


def torchrl(errors: np.ndarray, drawn: list[np.ndarray]) -> Functions:
    import torch
    from tensordict import TensorDict
    from torchrl.data import LazyTensorStorage, TensorDictPrioritizedReplayBuffer

    torch.set_num_threads(1)
    shapes = {"observation": OBSERVATION, "action": ACTION, "reward": 1, "next_observation": OBSERVATION, "done": 1}
    storage = LazyTensorStorage(ROWS)
    buffer = TensorDictPrioritizedReplayBuffer(alpha=ALPHA, beta=BETA, storage=storage, batch_size=BATCH)
    buffer.extend(TensorDict({name: torch.zeros(ROWS, size) for name, size in shapes.items()}, [ROWS]))
    priorities = torch.as_tensor(errors, dtype=torch.float32)
    buffer.update_priority(torch.arange(ROWS), priorities)
    turn = itertools.cycle([torch.as_tensor(rows) for rows in drawn])
    return {
        "draw": lambda: buffer.sampler.sample(storage, BATCH),
        "sample": lambda: buffer.sample(),
        "update": lambda: buffer.update_priority(next(turn), priorities[:BATCH]),
    }


def main(repeats: str) -> None:
    rng = np.random.default_rng(0)
    errors = rng.exponential(size=ROWS)
    drawn = list(rng.integers(0, ROWS, (64, BATCH)))
    found: dict[str, Any] = {"versions": {}, "missing": {}}
    for library in (cpprb, tianshou, torchrl):
        name = library.__name__
        try:
            functions = library(errors, drawn)
            for function in functions.values():
                function()
        except Exception as error:  # whatever a library that was built for another system raises
            found["missing"][name] = f"{type(error).__name__}: {error}".splitlines()[0]
            continue
        found["versions"][name] = importlib.metadata.version(name)
        found[name] = {
            what: [seconds_per_call(function) for _ in range(int(repeats))] for what, function in functions.items()
        }
    answer(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
