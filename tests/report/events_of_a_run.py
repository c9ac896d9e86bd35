"""The events of a made-up run, to try reporters on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from etude.base.data import EpisodeEnd, Estimate
from etude.base.events import Collected, Estimated, Evaluated, Event, Finished, Learned, Saved, Saving, Started


def started(
    step: int = 0,
    total: int = 10_000,
    algorithm: str = "dqn",
    env: str = "CartPole-v1",
    seed: int = 0,
    steps: str = "environment",
    config: dict | None = None,
    made_from: dict | None = None,
) -> Started:
    run = {"algorithm": algorithm, "environment": env, "engine": "jax", "setup": {"seed": seed}, "steps": steps}
    return Started(step, {**run, **(made_from or {}), "config": config or {}, "total": total})


def collected(step: int, *returns: float) -> Collected:
    return Collected(step, tuple(EpisodeEnd(0, i, 10, total, False) for i, total in enumerate(returns)), 0.01)


def of_two(step: int, *returns: tuple[float, float]) -> Collected:
    """Episodes of ann and bob, with what each of them earned."""
    episodes = (
        EpisodeEnd(0, i, 10, ann + bob, False, {"ann": ann, "bob": bob}) for i, (ann, bob) in enumerate(returns)
    )
    return Collected(step, tuple(episodes), 0.01)


def estimated(step: int, value: float = 30.0) -> Estimated:
    """An estimate of one method, of a behaviour whose value is 20."""
    return Estimated(step, {"wis": Estimate("wis", value, value - 5, value + 5, 20.0, value / 20, 12.5, 3.0)}, ("far",))


def evaluated_of_two(step: int, *returns: tuple[float, float]) -> Evaluated:
    """An evaluation of ann and bob."""
    ann, bob = zip(*returns, strict=True)
    sums = tuple(a + b for a, b in returns)
    return Evaluated(step, sums, (10,) * len(sums), True, returns_by_agent={"ann": ann, "bob": bob})


def a_run(until: int = 10_000, start: int = 0, seed: int = 0, save_every: int = 3_500, **about: Any) -> Iterator[Event]:
    """Steps of 250; an evaluation every 2,000; a save every `save_every` and at the end.

    Every number is a function of the step and the seed, as in a run that resumes exactly.
    """
    yield started(start, seed=seed, **about)
    for step in range(start + 250, until + 1, 250):
        rng = np.random.default_rng([seed, step])
        yield collected(step, *rng.normal(step / 100, 5, 3).tolist())
        yield Learned(step, step // 4, {"q": 1000 / step}, {"td_error": float(rng.random())}, 0.01)
        if step % 2_000 == 0:
            yield Evaluated(step, tuple(rng.normal(step / 90, 5, 5).tolist()), (10,) * 5, True)
        if step % save_every == 0 or step == until:
            yield Saving(step, "last")
            yield Saved(step, f"step_{step}.etude", "last")
    yield Finished(until, "steps", 1.5, {"episodes": 120})
