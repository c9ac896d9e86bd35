"""Environments of EnvPool: its own steps, and what of them is left behind etude's contract; Gymnasium's loop beside.

`python benchmarks/envpool_steps.py` needs envpool in its environment and writes envpool_steps.json: microseconds of an
environment step with random actions, all kinds in turns, and etude's steps a second as a share of EnvPool's own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measure
import numpy as np

from etude.envs import make_environments

CASES = [("CartPole-v1", 64), ("HalfCheetah-v5", 16), ("Pong-v5", 16)]


def stepping(task: str, n: int) -> dict[str, Callable[[], Any]]:
    """What steps all environments once, by kind."""
    import envpool

    rng, pool = np.random.default_rng(0), envpool.make_gymnasium(task, num_envs=n, seed=1)
    pool.reset()
    space = pool.action_space
    discrete = not space.shape
    drawn = [rng.integers(space.n, size=n) if discrete else rng.uniform(-1, 1, (n, *space.shape)) for _ in range(64)]
    actions = [each if discrete else each.astype(np.float32) for each in drawn]
    turn = iter(range(10**12))
    kinds: dict[str, Callable[[], Any]] = {"EnvPool": lambda: pool.step(actions[next(turn) % 64])}
    for kind, name in {"etude on EnvPool": f"envpool:{task}", "etude's loop": task}.items():
        if kind == "etude's loop" and task == "Pong-v5":
            continue  # Gymnasium's has other observations
        environments = make_environments(name, np.arange(n), 1, "auto" if ":" in name else "loop")
        environments.reset()
        kinds[kind] = lambda own=environments: own.step(actions[next(turn) % 64])  # type: ignore[misc]
    return kinds


def main() -> None:
    options = measure.arguments(__doc__).parse_args()
    results: dict[str, Any] = {}
    for task, n in CASES:
        found = measure.interleaved(stepping(task, n), options.repeats)
        title = f"{task}, {n} environments"
        results[title] = {name: measure.summary([t / n * 1e6 for t in each]) for name, each in found.items()}
        measure.show(title, results[title], "us of an environment step")
        results[title]["etude's share"] = measure.ratio(found["EnvPool"], found["etude on EnvPool"])
    measure.write(__file__, results)


if __name__ == "__main__":
    main()
