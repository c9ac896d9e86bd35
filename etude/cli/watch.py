"""`etude watch`: see a trained agent play, or read its games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from etude.base.errors import ConfigError
from etude.cli.options import one_run, parse, split_positionals, task
from etude.cli.output import in_colour, say
from etude.report.filming import has_display, render_without_display


@dataclass(frozen=True)
class Watch:
    """Show the agent of RUN, a run directory or checkpoint file, in a window, or record a video (no display needed).
    Games of texts are printed."""

    video: Path | None = None  # write a video here, .mp4 or .gif, instead of opening a window
    episodes: int = 1  # whole episodes
    max_steps: int = 5_000  # step limit of all episodes together
    seed: int = 0  # of the first episode; each further episode adds 1
    task: str | None = None  # of the episodes, such as 60 or "{'distance': 60}"; None: the run's
    checkpoint: Literal["last", "best"] = "last"  # checkpoint of a run directory: newest, or highest evaluated return
    env: str | None = None  # another environment with the same spaces; None: the run's
    agent: str | None = None  # FILE.py:CLASS or MODULE:CLASS, where RUN is the file of an agent of one's own
    trust: bool = False  # import the environment that RUN names, though you did not train it here


def main(arguments: Sequence[str]) -> int:
    """Play."""
    names, rest = split_positionals(arguments)
    options: Watch = parse(Watch, rest, "watch RUN")
    path = one_run(names, "watch")
    if not has_display():
        render_without_display()  # before the environment is imported
    _watch(path, options)
    return 0


def _watch(path: Path, options: Watch) -> None:
    from etude.cli.runs import own_agent, trained
    from etude.report.filming import games, plays_texts, watch

    if options.agent is not None:
        _check_window(path, options)
        earned = own_agent(path, options.agent).animate_agent(options.max_steps, options.video, options.seed)
        say(f"episode 1: return {earned:.1f}")
        return
    lengths: list[int] = []

    def tell(episode: Any) -> None:
        lengths.append(episode.length)
        cut = "" if episode.ended else f", cut off after {sum(lengths):,} steps"
        say(f"episode {len(lengths)}: return {episode.reward:.1f}{cut}")

    with trained(path, options.checkpoint, options.env, trust=options.trust) as run:
        of_episodes = options.episodes, options.max_steps, options.seed, task(options.task)
        if options.video is None and plays_texts(run):
            for text, episode in games(run, *of_episodes, colour=in_colour()):
                say(text.rstrip("\n"))
                tell(episode)
            return
        _check_window(path, options)
        film = watch(run, options.video, *of_episodes, tell)
        if film is not None:
            say(repr(film))


def _check_window(path: Path, options: Watch) -> None:
    if options.video is None and not has_display():
        raise ConfigError(f"There is no display for a window. Record a video: etude watch {path} --video out.gif")
