"""Connect Four by self-play: PPO against a league of its earlier copies, tested against one-move lookahead.

`python benchmarks/connect_four.py` trains with five seeds and writes connect_four.json and
docs/figures/connect_four.svg; a cell that is there is not run again. `--only lines/1` takes what holds the text.

The test opponent wins if it can, blocks if it must, and draws its move otherwise; the league never meets it. 100 games
as the side that begins and 100 as the other, with the most probable moves; the bar is 90 % of games won, by each seed.
While training, 50 games as each side. Two kinds of observations: `lines`, the board with counts of open lines through
the cells that a move could reach, read by `ByEmbedding`; and `board`, the board alone, read by a convolution of 4 x 4.
Hyperparameters were chosen with seeds from 101 on.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from pathlib import Path
from typing import Any

import measure

import etude
from etude.algorithms import PPO, PPOConfig
from etude.checkpoint.config_json import to_json
from etude.examples.connect_four import AGENTS, ConnectFour, look_ahead
from etude.networks import ActorCritic, ByEmbedding, Conv, Mlp
from etude.report.pictures import COLOURS, GREY, finish, legend, picture

STEPS, EVERY, ENVIRONMENTS = 200_000, 20_000, 64
TESTED, FOLLOWED = 100, 50  # games as each side, in the end and while training
TEST_SEED, BAR = 10_000, 0.9
FIGURE = Path(__file__).parents[1] / "docs" / "figures" / "connect_four.svg"
LEAGUE = etude.multi_agent.League("learner", every=8_192, size=20)
POLICIES = {"player": "learner", "opponent": "other"}
SHARED: dict[str, Any] = {
    "rollout_length": 64,
    "minibatch_size": 1_024,
    "epochs": 4,
    "learning_rate": 1e-3,
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "entropy_coefficient": 0.02,
    "normalize_observation": False,
    "normalize_reward": False,
}
BY_LINES = ActorCritic(
    ByEmbedding("columns", Mlp((128, 64), "relu", "orthogonal")), Mlp((128, 64), "relu", "orthogonal")
)
CONFIGS = {
    "lines": PPOConfig(network=BY_LINES, **SHARED),
    "board": PPOConfig(network=Conv(((128, 4, 1),), (128,)), **SHARED),
}


def opponent_run(kind: str, begins: str) -> etude.Run:
    """A run whose other player looks one move ahead, to be evaluated with weights of the learner."""
    env = functools.partial(ConnectFour, line_counts=kind == "lines", begins=begins)
    members = {"learner": PPO(CONFIGS[kind]), "other": look_ahead}
    return etude.Run(
        members, env, policies=POLICIES, environments=1, engine="torch", execution=etude.Execution(device="cpu")
    )


def results(tests: dict[str, etude.Run], run: etude.Run, games: int) -> dict[str, dict[str, float]]:
    """Shares of games won and drawn against the player that looks ahead, by which side begins."""
    found = {}
    for begins, test in tests.items():
        test.engine.of["learner"].load(run.engine.of["learner"].weights())
        returns = test.evaluate(episodes=games, seed=TEST_SEED).returns_by_agent[AGENTS[0]]
        found[begins] = {"won": sum(r > 0 for r in returns) / games, "drawn": sum(r == 0 for r in returns) / games}
    return found


def trained(kind: str, seed: int, steps: int) -> dict[str, Any]:
    """One cell."""
    env = functools.partial(ConnectFour, line_counts=kind == "lines")
    members = {"learner": PPO(CONFIGS[kind]), "other": LEAGUE}
    settings: dict[str, Any] = {"environments": ENVIRONMENTS, "seed": seed, "engine": "torch", "device": "cpu"}
    tests, curve, seconds = {begins: opponent_run(kind, begins) for begins in AGENTS}, [], 0.0
    with etude.Run(members, env, policies=POLICIES, **settings) as run:
        for _ in range(0, steps, EVERY):
            began = time.perf_counter()
            run.train(EVERY)
            seconds += time.perf_counter() - began
            won = statistics.mean(found["won"] for found in results(tests, run, FOLLOWED).values())
            elo = run.learner.leagues["other"].elo
            curve.append({"step": run.step, "won": round(won, 3), "elo": round(elo)})
        sides = results(tests, run, TESTED)
        table = [{**row, "elo": round(row["elo"])} for row in run.learner.leagues["other"].table()]
    won = measure.significant(statistics.mean(found["won"] for found in sides.values()))
    return {"won": won, "reached": won >= BAR, "by_side": sides, "seconds": round(seconds), "curve": curve,
            "copies": len(table), "oldest": table[0], "newest": table[-1]}  # fmt: skip


def summary(cells: dict[str, dict]) -> dict[str, dict]:
    """By kind of observation: the share of games won, over the seeds."""
    found = {}
    for kind in CONFIGS:
        those = [cell for key, cell in sorted(cells.items()) if key.startswith(f"{kind}/")]
        if those:
            won = [cell["won"] for cell in those]
            reached = sum(cell["reached"] for cell in those)
            found[kind] = {"won": won, "mean": measure.significant(statistics.mean(won)), "reached": reached}
    return found


def draw(cells: dict[str, dict]) -> None:
    """Shares of games won, and Elo ratings, over training."""
    with picture(FIGURE, columns=2) as figure:
        won, elo = figure.subplots(1, 2)
        for kind, colour in zip(CONFIGS, (COLOURS[0], GREY), strict=True):
            label = "with counts of lines" if kind == "lines" else "the board alone"
            for curve in [cell["curve"] for key, cell in sorted(cells.items()) if key.startswith(f"{kind}/")]:
                steps = [point["step"] for point in curve]
                for panel, name in ((won, "won"), (elo, "elo")):
                    panel.plot(steps, [point[name] for point in curve], color=colour, linewidth=1, label=label)
        won.axhline(BAR, color="0.3", linestyle=":", linewidth=1)
        finish(won, "Against one-move lookahead", "environment steps", "share of games won")
        won.set_ylim(-0.03, 1.03)
        finish(elo, "Against the league", "environment steps", "Elo rating")
        legend(figure, "Connect Four by self-play, a line for each seed; dotted: the bar")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--only", nargs="+", default=["lines/"], help="parts of names such as board/1")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args()
    held, configs = measure.read(__file__), {kind: to_json(config) for kind, config in CONFIGS.items()}
    same = [kind for kind in CONFIGS if held.get("configs", {}).get(kind) == configs[kind]]
    cells = {key: cell for key, cell in held.get("cells", {}).items() if key.split("/")[0] in same}
    for kind in CONFIGS:
        for seed in options.seeds:
            key = f"{kind}/{seed}" if options.steps == STEPS else f"{kind}/{seed}/{options.steps}"
            if key not in cells and any(part in key for part in options.only):
                cells[key] = trained(kind, seed, options.steps)
                print(key, cells[key]["won"], cells[key]["by_side"], f"{cells[key]['seconds']} s", flush=True)
                measure.write(
                    __file__, {"configs": configs, "summary": summary(cells), "cells": dict(sorted(cells.items()))}
                )
    draw(cells)


if __name__ == "__main__":
    main()
