"""Replay: bytes of a transition, sampling, adding; against Stable-Baselines3 and bare NumPy. Priorities against cpprb,
Tianshou and TorchRL.

`python benchmarks/replay.py --peers PATH_TO_PYTHON --replay-peers PATH_TO_PYTHON` writes replay.json. 17 observations,
6 actions, 100,000 rows of 8 environments (1,000,000 with priorities); batches of 256; stacks of four 84x84 images.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import measure
import numpy as np

ROWS, ENVIRONMENTS, OBSERVATION, ACTION, BATCH = 100_000, 8, 17, 6, 256
PRIORITISED_ROWS = 1_000_000
WANTED = {
    "sample": 45, "add": 10, "bytes": 0.65 * 172, "frame_bytes": 8_000,
    "prioritised draw": 200, "prioritised update": 150,
}  # fmt: skip


def steps_of(time_steps: int, n: int, observation: np.ndarray, action: np.ndarray, ends: bool) -> Any:
    """Steps whose last row ends every column's episode, or none."""
    from etude.base.data import Steps

    terminated = np.zeros((time_steps, n), bool)
    terminated[-1] = ends
    index = np.argwhere(terminated)
    return Steps(
        observation=np.broadcast_to(observation, (time_steps, n, *observation.shape)),
        action=np.broadcast_to(action, (time_steps, n, *action.shape)),
        reward=np.ones((time_steps, n), np.float32),
        terminated=terminated,
        truncated=np.zeros((time_steps, n), bool),
        next_observation=np.broadcast_to(observation, (n, *observation.shape)),
        final_observation=np.broadcast_to(observation, (len(index), *observation.shape)),
        final_index=index,
        columns=np.arange(n),
        restarted=np.zeros(n, bool),
    )


def buffer_of(capacity: int, environments: int, observation: Any, action: Any, **ring: Any) -> Any:
    from etude.base.spaces import Spaces
    from etude.replay import Buffer, OneStep, Ring, Uniform

    kept = Ring(Spaces(observation, action), capacity, environments, {}, **ring)
    return Buffer(kept, Uniform(), OneStep(0.99), np.random.default_rng(0))


def held(thing: Any, seen: set[int] | None = None) -> int:
    """Bytes of every array that an object reaches, each counted once."""
    seen = set() if seen is None else seen
    if id(thing) in seen:
        return 0
    seen.add(id(thing))
    if isinstance(thing, np.ndarray):
        return thing.nbytes if thing.base is None else held(thing.base, seen)
    if isinstance(thing, dict):
        return sum(held(part, seen) for part in thing.values())
    if isinstance(thing, list | tuple):
        return sum(held(part, seen) for part in thing)
    parts = [getattr(thing, name, None) for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
    return sum(held(part, seen) for part in [*parts, *getattr(thing, "__dict__", {}).values()])


def vectors() -> dict[str, Any]:
    """Functions that sample and add, in etude and in bare NumPy, and bytes of a transition."""
    from etude.base.spaces import Box

    box, actions = Box(-np.inf, np.inf, (OBSERVATION,), np.float32), Box(-1, 1, (ACTION,), np.float32)
    rng = np.random.default_rng(0)
    observation, action = rng.standard_normal(OBSERVATION, np.float32), np.zeros(ACTION, np.float32)
    buffer = buffer_of(ROWS, ENVIRONMENTS, box, actions)
    chunk = steps_of(500, ENVIRONMENTS, observation, action, ends=True)
    for _ in range(ROWS // len(chunk)):
        buffer.add(chunk)
    one = steps_of(1, ENVIRONMENTS, observation, action, ends=False)
    bare_sample, bare_add = bare(rng)
    return {
        "bytes": held(buffer.ring) / ROWS,
        "sample": {"etude": lambda: buffer.sample(1, BATCH), "bare": bare_sample},
        "sample 64 batches": {"etude": lambda: buffer.sample(64, BATCH)},
        "add": {"etude": lambda: buffer.add(one), "bare": bare_add},
    }


def priorities() -> dict[str, dict[str, Callable]]:
    """Functions that draw rows by priority, sample batches of them, and report their errors."""
    from etude.base.spaces import Box, Spaces
    from etude.replay import Buffer, OneStep, Prioritised, Ring

    box, actions = Box(-np.inf, np.inf, (OBSERVATION,), np.float32), Box(-1, 1, (ACTION,), np.float32)
    rng = np.random.default_rng(0)
    ring = Ring(Spaces(box, actions), PRIORITISED_ROWS, ENVIRONMENTS)
    selector = Prioritised(ring.rows, alpha=0.6, beta=0.4)
    buffer = Buffer(ring, selector, OneStep(0.99), rng)
    chunk = steps_of(500, ENVIRONMENTS, np.zeros(OBSERVATION, np.float32), np.zeros(ACTION, np.float32), ends=True)
    for _ in range(PRIORITISED_ROWS // len(chunk)):
        buffer.add(chunk)
    everything = ring.locate(np.arange(len(ring)))[None]
    selector.update(everything, rng.exponential(size=everything.shape))
    one = steps_of(1, ENVIRONMENTS, chunk.observation[0, 0], chunk.action[0, 0], ends=False)
    errors = rng.exponential(size=(1, BATCH))
    turn = itertools.cycle([selector.select(ring, 1, BATCH, rng)[0] for _ in range(64)])

    def update() -> None:
        selector.update(next(turn), errors)
        selector.refresh()  # otherwise left to the next draw

    def cycle() -> None:
        buffer.add(one)
        buffer.update(buffer.sample(1, BATCH), errors)

    return {
        "prioritised draw": {"etude": lambda: selector.select(ring, 1, BATCH, rng)},
        "prioritised sample": {"etude": lambda: buffer.sample(1, BATCH)},
        "prioritised update": {"etude": update},
        "prioritised add, sample and update": {"etude": cycle},
    }


def bare(rng: np.random.Generator) -> tuple[Callable, Callable]:
    """Preallocated arrays that hold both observations of every transition."""
    shapes = {"observation": (OBSERVATION,), "next": (OBSERVATION,), "action": (ACTION,), "reward": (), "done": ()}
    arrays = {name: np.zeros((ROWS, *shape), np.float32) for name, shape in shapes.items()}
    rows = {name: np.ones((ENVIRONMENTS, *shape), np.float32) for name, shape in shapes.items()}
    position = 0

    def sample() -> Any:
        index = rng.integers(0, ROWS, BATCH)
        return {name: array[index] for name, array in arrays.items()}

    def add() -> None:
        nonlocal position
        for name, array in arrays.items():
            array[position : position + ENVIRONMENTS] = rows[name]
        position = (position + ENVIRONMENTS) % ROWS

    return sample, add


def frame_bytes() -> float:
    """Bytes of a transition of four stacked frames, episodes of 500 steps."""
    from etude.base.spaces import Box, Discrete

    stack = Box(0, 255, (4, 84, 84), np.uint8)
    rows, observation = 10_000, np.zeros((4, 84, 84), np.uint8)
    buffer = buffer_of(rows, 1, stack, Discrete(4), frame_stack=4)
    chunk = steps_of(500, 1, observation, np.zeros((), np.int64), ends=True)
    for _ in range(rows // 500):
        buffer.add(chunk)
    return held(buffer.ring) / rows


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--replay-peers", help="a Python that has cpprb, tianshou or torchrl")
    options = parser.parse_args()
    if options.cell:
        parts = vectors() | priorities()
        found: dict[str, Any] = {"bytes": parts.pop("bytes"), "frame_bytes": frame_bytes()}
        measure.answer(found | {n: measure.interleaved(functions, options.repeats) for n, functions in parts.items()})
        return
    command = measure.script("replay.py", "--cell", "all", "--repeats", str(options.repeats))
    found = measure.process(command, "one")
    bytes_ = {name: {"etude": found.pop(name)} for name in ("bytes", "frame_bytes")}
    if options.peers:
        command = measure.script("peers.py", "replay", str(options.repeats), python=options.peers)
        peers = measure.process(command, "one")
        for name in ("bytes", "frame_bytes"):
            bytes_[name]["sb3"] = peers[name]
        for name in ("sample", "add"):
            found[name]["sb3"] = peers[name]
    result: dict[str, Any] = {}
    if options.replay_peers:
        command = measure.script("peers_priorities.py", str(options.repeats), python=options.replay_peers)
        peers = measure.process(command, "one")
        result["priorities"] = about = {name: peers.pop(name) for name in ("versions", "missing")}
        print(f"priorities of other libraries: {about}")
        for library, seconds in peers.items():
            for name, values in seconds.items():
                found[f"prioritised {name}"][library] = values
    for name, seconds in found.items():
        rows = {who: measure.summary([1e6 * s for s in values]) for who, values in seconds.items()}
        measure.show(f"{name} (wanted of etude: {WANTED.get(name, '-')})", rows, "us")
        result[f"{name}, microseconds"] = {**rows, "wanted": WANTED.get(name)}
    for name, held_ in bytes_.items():
        print(f"{name} of a transition: {held_}, wanted {WANTED[name]}")
        result[f"{name} of a transition"] = {**held_, "wanted": WANTED[name]}
    measure.write(__file__, result, options.peers)


if __name__ == "__main__":
    main()
