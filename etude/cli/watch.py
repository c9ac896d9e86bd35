"""`etude watch`: see a trained agent play."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude.base.errors import ConfigError
from etude.cli.options import one_run, parse, split_positionals, task
from etude.cli.output import say
from etude.report.display import has_display, render_without_display


@dataclass(frozen=True)
class Watch:
    """Show the agent of RUN, a run directory or checkpoint file, in a window, or record a video (no display needed)."""

    video: Path | None = None  # write a video here, .mp4 or .gif, instead of opening a window
    episodes: int = 1  # whole episodes
    max_steps: int = 5_000  # step limit of all episodes together
    seed: int = 0  # of the first episode; each further episode adds 1
    task: str | None = None  # of the episodes, such as 60 or "{'distance': 60}"; None: the run's
    checkpoint: Literal["last", "best"] = "last"  # checkpoint of a run directory: newest, or highest evaluated return
    env: str | None = None  # another environment with the same spaces; None: the run's
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Play."""
    names, rest = split_positionals(arguments)
    options: Watch = parse(Watch, rest, "watch RUN")
    path = one_run(names, "watch")
    if not has_display():
        if options.video is None:
            raise ConfigError(f"There is no display for a window. Record a video: etude watch {path} --video out.gif")
        render_without_display()
    return _watch(path, options)


def _watch(path: Path, options: Watch) -> int:
    from etude.cli.runs import trained
    from etude.envs import make_environment

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        mode = "rgb_array" if options.video else "human"
        environment = make_environment(run.environment, render_mode=mode)
        try:
            if (given := run.task if options.task is None else task(options.task)) is not None:
                environment.set_task(given)
            if options.video is None:
                for _ in play(run, environment, options):
                    pass
            else:
                _film(run, environment, options)
        finally:
            environment.close()
    return 0


def play(run: Any, environment: Any, options: Watch) -> Iterator[None]:
    """Play episodes with the best actions; yields after every reset and step, and prints each return."""
    from etude.rollout import SingleEpisode
    from etude.training.build import best_for

    actor, left = run.actor(), options.max_steps
    for number in range(options.episodes):
        episode = SingleEpisode(environment, actor, best_for(run.agent, environment.spaces), options.seed + number)
        yield from episode.steps(left)
        left -= episode.length
        cut = "" if episode.ended else f", cut off after {options.max_steps - left:,} steps"
        say(f"episode {number + 1}: return {episode.reward:.1f}{cut}")


def _film(run: Any, environment: Any, options: Watch) -> None:
    from etude.report.video import write_film

    assert options.video is not None
    fps = environment.render_fps
    count = write_film((environment.render() for _ in play(run, environment, options)), options.video, fps)
    say(f"{options.video}: {count} frames, {count / fps:.1f} s at {fps:g} frames per second")
