"""`etude watch`: see a trained agent play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from etude.base import trees
from etude.base.errors import ConfigError
from etude.cli.display import has_display, render_without_display
from etude.cli.options import one_run, parse, split_positionals
from etude.cli.output import say

FPS = 30  # where an environment tells none


@dataclass(frozen=True)
class Watch:
    """See the agent of RUN, a run directory or checkpoint file, play: in a window, or without a display as a video."""

    video: Path | None = None  # write it here, as .mp4 or .gif, instead of opening a window
    episodes: int = 1
    max_steps: int = 5_000  # of all episodes together, for environments that never end
    seed: int = 0  # of the first episode; each further one has the next
    checkpoint: Literal["last", "best"] = "last"  # of a run directory: the newest, or the best evaluated
    env: str | None = None  # another environment than the run's, with the same spaces
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Play."""
    names, rest = split_positionals(arguments)
    options: Watch = parse(Watch, rest, "watch RUN")
    path = one_run(names, "watch")
    if not has_display():
        if options.video is None:
            raise ConfigError(f"There is no display to open a window on. Film it: etude watch {path} --video out.mp4")
        render_without_display()
    return _watch(path, options)


def _watch(path: Path, options: Watch) -> int:
    from etude.cli.runs import trained
    from etude.envs import make_environment

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        mode = "rgb_array" if options.video else "human"
        environment = make_environment(run.environment, render_mode=mode)
        try:
            if options.video is None:
                for _ in play(run, environment, options):
                    pass
            else:
                _film(run, environment, options)
        finally:
            environment.close()
    return 0


def play(run: Any, environment: Any, options: Watch) -> Iterator[None]:
    """Play episodes with the best actions; yields after every reset and step, and tells each return."""
    from etude.rollout.actor import with_state
    from etude.training.build import best_for

    actor, steps, rng = run.actor(), 0, np.random.default_rng(options.seed)
    explorer = best_for(environment.spaces).of(np.zeros(1, int))
    for episode in range(options.episodes):
        observation, total, ended = environment.reset(seed=options.seed + episode), 0.0, False
        memory = np.full((1, explorer.memory), np.nan)
        stateful = with_state(actor, np.zeros((1, actor.memory), np.float32))
        yield
        while not ended and steps < options.max_steps:
            noise = explorer.draw(rng, 1, environment.spaces.action)
            choice = explorer(stateful.act(trees.map(lambda leaf: leaf[None], observation)), noise, 0, memory)
            observation, reward, terminated, truncated, _ = environment.step(choice.action[0])
            total, steps, ended = total + reward, steps + 1, terminated or truncated
            yield
        say(f"episode {episode + 1}: return {total:.1f}" + ("" if ended else f", cut off after {steps:,} steps"))


def _film(run: Any, environment: Any, options: Watch) -> None:
    from etude.report.video import write_film

    assert options.video is not None
    fps = environment.env.metadata.get("render_fps") or FPS
    count = write_film((environment.render() for _ in play(run, environment, options)), options.video, fps)
    say(f"{options.video}: {count} frames, {count / fps:.1f} s at {fps:g} frames per second")
