"""Whole runs beside those of other libraries: the tables of README.md and benchmarks.md, from whole_run.json."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from markdown_table import table, title
from measured import NOT_MEASURED, read, results

LIBRARIES = {"sb3": "Stable-Baselines3", "sb3_contrib": "Stable-Baselines3", "sbx": "SBX", "cleanrl": "CleanRL"}
COLUMNS = tuple(dict.fromkeys(LIBRARIES.values()))
AS_CLEANRL = " as CleanRL"


class Row(NamedTuple):
    """One algorithm with one set of hyperparameters, by etude and by the libraries that run it."""

    algorithm: str
    environment: str
    steps: int
    speed: float  # environment steps per second of etude, compilation included
    ratios: dict[str, dict[str, float]]  # by library: how many times as fast etude is (median, lowest, highest)
    as_cleanrl: bool  # CleanRL's hyperparameters; those of RL Baselines3 Zoo otherwise
    returns: dict[str, list[float]]  # of each repetition, by library, after training


def rows(threads: str = "one") -> list[Row]:
    """The runs that were measured with one thread, or with each library's own number of threads ("default")."""
    found = []
    for name, held in results("whole_run").items():
        task, _, given = name.partition(", threads: ")
        if given == threads:
            algorithm = task.removesuffix(AS_CLEANRL)
            ratios = {LIBRARIES[library]: ratio for library, ratio in held["times_as_fast"]["jax"].items()}
            returns = {LIBRARIES.get(library, "etude"): values for library, values in held["return"].items()}
            speed = held["steps_per_second"]["jax"]["median"]
            about = held["environment"], held["steps"], speed, ratios, algorithm != task, returns
            found.append(Row(title(algorithm), *about))
    return sorted(found, key=lambda row: (row.environment, row.algorithm, row.as_cleanrl))


def summary() -> str:
    """One row for each algorithm: its speed, and how many times as fast it is as in each library."""
    merged: dict[tuple[str, str], tuple[float, dict[str, float]]] = {}
    for row in rows():
        speed, ratios = merged.get((row.algorithm, row.environment), (row.speed, {}))
        ratios = ratios | {library: ratio["median"] for library, ratio in row.ratios.items()}
        merged[row.algorithm, row.environment] = (speed, ratios)
    lines = [
        [f"{algorithm}, {environment}", f"{speed:,.0f}",
         *(f"{ratios[library]:.3g} x" if library in ratios else "" for library in COLUMNS)]
        for (algorithm, environment), (speed, ratios) in merged.items()
    ]  # fmt: skip
    return table(["algorithm, environment", "etude, steps per second", *COLUMNS], lines) if lines else NOT_MEASURED


def in_full() -> str:
    """Every whole run that was measured, with the spread of the ratios and the returns."""
    lines = [
        [row.algorithm, row.environment, "CleanRL" if row.as_cleanrl else "zoo", threads, f"{row.steps:,}",
         f"{row.speed:,.0f}", "; ".join(_ratio(library, ratio) for library, ratio in row.ratios.items()),
         "; ".join(f"{library} {_mean(values)}" for library, values in row.returns.items())]
        for threads in ("one", "default")
        for row in rows(threads)
    ]  # fmt: skip
    head = ["algorithm", "environment", "hyperparameters", "threads", "steps", "etude, steps per second",
            "times as fast as", "mean return after training"]  # fmt: skip
    return table(head, lines) if lines else NOT_MEASURED


def agilerl() -> str:
    """MADDPG on the speaker-listener task, by etude and by AgileRL, after as many environment steps."""
    task = "simple_speaker_listener_v4"
    own = [cell["return"] for key, cell in read("multi_agent").get("cells", {}).items()
           if key.startswith(f"maddpg/mpe2:{task}/jax/")]  # fmt: skip
    other = [cell["score"] for key, cell in results("peers_maddpg").items() if key.startswith(task)]
    if not (own and other):
        return ""
    return (
        f"MADDPG on `{task}` after 10,000 environment steps: mean return {statistics.mean(own):.1f} over {len(own)} "
        f"seeds; AgileRL's MADDPG with one gradient step per environment step: {statistics.mean(other):.1f} over "
        f"{len(other)}.\n"
    )


def _ratio(library: str, ratio: dict[str, Any]) -> str:
    spread = f" ({ratio['lowest']:g} to {ratio['highest']:g})" if ratio["repeats"] > 1 else ""
    return f"{library} {ratio['median']:g}{spread}"


def _mean(values: list[float]) -> str:
    return f"{statistics.mean(values):.4g}"
