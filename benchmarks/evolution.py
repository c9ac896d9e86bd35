"""What evolution finds, and what it costs, against fixed runs, AgileRL and searches over trials.

`python benchmarks/evolution.py` adds to evolution.json, cell by cell, and draws evolution.svg of what is there; that is
not measured again.
`--only bad`, `--only peers`, `--only searches` measures one part, `--jobs 2` two cells at a time, each in a process
with one thread.

bad: DQN and PPO on CartPole-v1 with a network of one layer of four units, and a learning rate that is the preset's, a
    tenth, or ten times of it: a population that starts there, and a run that keeps these hyperparameters and takes as
    many steps as all members of the population together.
peers: populations of four by etude, with its presets, in one process and with two members at a time (`jobs=2`), and by
    AgileRL (`--peers PYTHON`, an environment with `agilerl==2.58.0 peft transformers torch==2.13.0`), with the values
    of its `dqn.yaml` and `ppo.yaml`, its environments in processes as its documentation has them, and in one: the same
    environments, widths, lengths of a generation, mutations and episodes of evaluation: seconds and environment steps,
    those of evaluations included, until an evaluation of a member reaches the target, and the peak of the memory of all
    processes (proportional set size).
searches: PPO on CartPole-v1 by evolution, PBT, ASHA, Optuna's TPE and random search, over the same ranges, with the
    same number of environment steps, those of evaluations included: the steps until an evaluation reaches the target.

Seeds from 1 to 5 are those that are reported; the mutations were chosen on seeds from 101 up.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure

from etude.report.pictures import finish, legend, picture

ENV, TARGET = "CartPole-v1", 475.0
DRAWN_REACHED = {"marker": "o", "color": "C0", "label": "target reached"}
DRAWN_MISSED = {"marker": ">", "color": "C3", "fillstyle": "none", "label": "not reached until then"}
PARTS = {"bad": "From bad hyperparameters", "peers": "Beside AgileRL", "searches": "Beside searches"}
CHECKED, CHECK_SEED = 50, 1_000_000  # episodes of the best member on seeds that nothing was selected by

BAD = {"population": 6, "every": 4_096, "steps": 98_304, "evaluate_episodes": 20}
OFF = (1.0, 0.1, 10.0)  # times the preset's learning rate
TINY = (4,)

# Of both libraries. AgileRL's: the values of its files, each under etude's name; see `peers_evolution.py`.
SHARED = {"population": 4, "environments": 16, "every": 10_240, "batch_limits": [8, 512]}
OFF_POLICY = {
    **SHARED, "widths": (256, 128, 256), "limits": [6.25e-5, 1e-2],
    "agilerl": {
        "learning_rate": 6.3e-4, "batch_size": 128, "gamma": 0.99, "buffer_size": 50_000, "learning_starts": 0,
        "steps_per_update": 4, "tau": 1e-3, "epsilon_end": 0.1, "epsilon_decay": 0.99,
    },
}  # fmt: skip
ON_POLICY = {
    **SHARED, "widths": (64, 64, 64), "limits": [1e-4, 1e-2],
    "agilerl": {
        "learning_rate": 3e-4, "batch_size": 128, "gamma": 0.99, "rollout_length": 128, "epochs": 4,
        "gae_lambda": 0.95, "clip": 0.2, "entropy": 0.01,
    },
}  # fmt: skip
PEERS = {
    "dqn/CartPole-v1": {**OFF_POLICY, "target": 475, "steps": 102_400},
    "dqn/LunarLander-v3": {**OFF_POLICY, "target": 200, "steps": 307_200},
    "ppo/LunarLander-v3": {**ON_POLICY, "target": 200, "steps": 614_400},
}
LIBRARIES = ("etude", "etude in two processes", "agilerl", "agilerl in one process")

RANGES = {"learning_rate": (1e-5, 1e-1), "minibatch_size": (16, 512), "entropy_coefficient": (1e-5, 1e-1)}
SEARCHES = ("evolution", "pbt", "asha", "tpe", "random")
SEARCH = {"members": 8, "every": 4_096, "steps": 49_152, "evaluate_episodes": 5}
BUDGET = SEARCH["members"] * SEARCH["steps"]  # environment steps, those of evaluations included


class Watch:
    """Watches a study: when an evaluation first reaches the target. budget: steps after which the study ends."""

    def __init__(self, target: float, budget: float = math.inf):
        self.target, self.budget, self.began = target, budget, time.perf_counter()
        self.found: dict[str, Any] = {"reached": False, "steps": None, "seconds": None}

    def __call__(self, study: Any) -> None:
        steps = study.steps + sum(score.cost for trial in study.trials for score in trial.scores)
        best = max((score.mean for trial in study.trials for score in trial.scores), default=-math.inf)
        if best >= self.target and not self.found["reached"]:
            seconds = round(time.perf_counter() - self.began, 1)
            self.found = {"reached": True, "steps": steps, "seconds": seconds}
        if self.found["reached"] or steps >= self.budget:
            study.stop()
        self.found |= {"best": best if math.isfinite(best) else None, "steps_taken": steps}


def tuned(algorithm: str, env: str = ENV, widths: tuple[int, ...] | None = None) -> Any:
    """The preset's config for an environment, with rates that do not depend on the length of a run. widths: of its
    network; None: the preset's."""
    from etude.base import schedules
    from etude.presets import lookup
    from etude.training.description import config_for

    config = config_for(algorithm, env)
    changes: dict[str, Any] = {"learning_rate": schedules.at(config.learning_rate, 0, 1)}
    if algorithm == "dqn":
        steps = round(config.epsilon.fraction * lookup(algorithm, env).steps)
        changes["epsilon"] = dataclasses.replace(config.epsilon, fraction=1.0, steps=steps)
    if widths is not None:
        changes["network"] = dataclasses.replace(config.network, widths=widths)
    return dataclasses.replace(config, **changes)


def bad_config(algorithm: str, off: float) -> Any:
    """A learning rate that is so many times the preset's, and a tiny network."""
    config = tuned(algorithm, widths=TINY)
    return dataclasses.replace(config, learning_rate=config.learning_rate * off)


def bad(key: str) -> dict[str, Any]:
    """A cell ALGORITHM/OFF/KIND/SEED."""
    import etude
    from etude.tuning.evolution import ArchitectureLimits

    algorithm, off, kind, seed = key.split("/")
    given = {"config": bad_config(algorithm, float(off)), "seed": int(seed), "engine": "torch", "device": "cpu"}
    if kind == "fixed":
        return fixed(algorithm, given)
    mutations = etude.Mutations(
        none=0.2, architecture=0.4, new_layer=0.2, parameters=0.0, hyperparameters=0.4, select=["learning_rate"],
        step=1.6, limits={"learning_rate": (1e-6, 1.0)}, network=ArchitectureLimits(layers=(1, 3), units=(4, 256)),
    )  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="etude-evolution-") as folder:
        study = etude.tuning.evolution.Evolution(
            algorithm, ENV, **BAD, target=TARGET, mutations=mutations, folder=Path(folder) / "study", **given
        )
        return evolved(study, Watch(TARGET))


def evolved(study: Any, watch: Watch) -> dict[str, Any]:
    """Carry an evolution out; its best member is evaluated again."""
    with study:
        study.run(watch)
        best = study.best
        with best.load() as run:
            checked = run.evaluate(CHECKED, seed=CHECK_SEED).mean
        config = best.genome.config
        chosen = {"learning_rate": measure.significant(config.learning_rate), "widths": list(config.network.widths)}
        return {**watch.found, "member_steps": best.step, "checked": measure.significant(checked), **chosen}


def fixed(algorithm: str, given: dict[str, Any]) -> dict[str, Any]:
    """One run with these hyperparameters, for the steps of a whole population."""
    import etude

    run, best = etude.Run(algorithm, ENV, **given), -math.inf
    began, steps = time.perf_counter(), BAD["population"] * BAD["steps"]
    with run:
        for event in run.steps(
            steps, evaluate_every=BAD["every"], evaluate_episodes=BAD["evaluate_episodes"], target=TARGET
        ):
            if isinstance(event, etude.base.events.Evaluated):
                best = max(best, statistics.fmean(event.returns))
        reached = best >= TARGET
        checked = run.evaluate(CHECKED, seed=CHECK_SEED).mean
    seconds = round(time.perf_counter() - began, 1)
    found = {"steps": run.step if reached else None, "seconds": seconds if reached else None, "steps_taken": run.step}
    return {"reached": reached, **found, "best": best, "checked": measure.significant(checked)}


def peers(key: str) -> dict[str, Any]:
    """A cell ALGORITHM/ENVIRONMENT/LIBRARY/SEED of etude; those of AgileRL are measured by `peers_evolution.py`."""
    import etude

    algorithm, env, library, seed = key.split("/")
    spec = PEERS[f"{algorithm}/{env}"]
    batch = "batch_size" if algorithm == "dqn" else "minibatch_size"
    # The probabilities of AgileRL's README.
    mutations = etude.Mutations(
        none=0.4, architecture=0.2, new_layer=0.2, parameters=0.2, activation=0.0, hyperparameters=0.2, strength=0.1,
        select=["learning_rate", batch],
        limits={"learning_rate": tuple(spec["limits"]), batch: tuple(spec["batch_limits"])},
    )  # fmt: skip
    watch = Watch(spec["target"])
    with tempfile.TemporaryDirectory(prefix="etude-evolution-") as folder, measure.PeakMemory() as memory:
        study = etude.tuning.evolution.Evolution(
            algorithm,
            env,
            population=spec["population"],
            every=spec["every"],
            steps=spec["steps"],
            target=spec["target"],
            mutations=mutations,
            config=tuned(algorithm, env, spec["widths"]),
            environments=spec["environments"],
            seed=int(seed),
            engine="jax",
            device="cpu",
            folder=Path(folder) / "study",
            jobs=1 if library == "etude" else 2,
            training=etude.tuning.TrialTraining(evaluate_episodes=spec["environments"]),
        )  # fmt: skip
        found = evolved(study, watch)
    return {**found, "megabytes": memory.peak}


def searches(key: str) -> dict[str, Any]:
    """A cell SEARCH/SEED."""
    import numpy as np

    import etude
    from etude.tuning import ASHA, PBT, Log, OptunaSearch
    from etude.tuning.evolution import Evolution

    search, seed = key.split("/")[0], int(key.split("/")[1])
    watch, config = Watch(TARGET, BUDGET), tuned("ppo")
    given = {"engine": "torch", "device": "cpu", "evaluate_episodes": SEARCH["evaluate_episodes"], "seed": seed}
    with tempfile.TemporaryDirectory(prefix="etude-evolution-") as folder:
        given["folder"] = Path(folder) / "study"
        if search == "evolution":  # starts from one draw: what random search tries first is as good
            rng = np.random.default_rng(seed)
            start = {name: math.exp(rng.uniform(math.log(low), math.log(high))) for name, (low, high) in RANGES.items()}
            start["minibatch_size"] = round(start["minibatch_size"])
            mutations = etude.Mutations(
                none=0.2, architecture=0.0, parameters=0.0, hyperparameters=0.8, step=0.8, select=list(RANGES),
                limits=dict(RANGES),
            )  # fmt: skip
            return evolved(
                Evolution(
                    "ppo", ENV, population=SEARCH["members"], every=SEARCH["every"], steps=SEARCH["steps"],
                    mutations=mutations, config=dataclasses.replace(config, **start), **given,
                ),
                watch,
            )  # fmt: skip
        how: dict[str, dict[str, Any]] = {
            "pbt": {"scheduler": PBT(every=SEARCH["every"]), "trials": SEARCH["members"]},
            "asha": {"scheduler": ASHA(), "trials": 1_000},
            "tpe": {"search": OptunaSearch("tpe"), "trials": 1_000},
            "random": {"trials": 1_000},
        }
        space = {name: Log(*limits) for name, limits in RANGES.items()}
        with etude.Study(
            "ppo",
            ENV,
            space,
            config=config,
            seeds=[seed],
            steps=SEARCH["steps"],
            training=etude.tuning.TrialTraining(evaluate_every=SEARCH["every"], evaluate_seed=seed),
            **how[search],
            **given,
        ) as study:  # fmt: skip
            study.run(watch)
    return watch.found


MEASURE: dict[str, Callable[[str], dict[str, Any]]] = {"bad": bad, "peers": peers, "searches": searches}


def wanted(part: str, seeds: list[int], with_peers: bool) -> list[str]:
    """The cells of a part, seed by seed."""
    if part == "bad":
        return [
            f"{part}/{algorithm}/{off}/{kind}/{seed}"
            for seed in seeds for algorithm in ("ppo", "dqn") for off in OFF for kind in ("evolved", "fixed")
        ]  # fmt: skip
    if part == "peers":
        libraries = LIBRARIES if with_peers else LIBRARIES[:2]
        return [f"{part}/{task}/{library}/{seed}" for seed in seeds for task in PEERS for library in libraries]
    return [f"{part}/{search}/{seed}" for seed in seeds for search in SEARCHES]


def measured(key: str, python: str | None) -> dict:
    """A cell, in a process of its own."""
    if "/agilerl" not in key:
        return measure.cell("evolution.py", key)
    _, algorithm, env, library, seed = key.split("/")
    spec = {**PEERS[f"{algorithm}/{env}"], "algorithm": algorithm, "env": env, "seed": int(seed)}
    spec |= {**spec.pop("agilerl"), "processes": library == "agilerl"}
    command = measure.script("peers_evolution.py", json.dumps(spec), python=python or "")
    return measure.process(command, timeout=6 * 3600, **dict.fromkeys(measure.LIMITS, "1"))


def summary(cells: dict[str, dict]) -> dict[str, Any]:
    """By cell without its seed: on how many seeds the target was reached, and medians; of seeds below 100."""
    groups: dict[str, list[dict]] = {}
    for key, cell in cells.items():
        name, _, seed = key.rpartition("/")
        if int(seed) < 100:
            groups.setdefault(name, []).append(cell)
    found: dict[str, Any] = {}
    for name, group in sorted(groups.items()):
        steps = [math.inf if cell["steps"] is None else cell["steps"] for cell in group]
        seconds = [math.inf if cell["seconds"] is None else cell["seconds"] for cell in group]
        medians = {"median_steps": statistics.median(steps), "median_seconds": statistics.median(seconds)}
        found[name] = {"reached": f"{sum(cell['reached'] for cell in group)} of {len(group)}"}
        found[name] |= {what: value if math.isfinite(value) else None for what, value in medians.items()}
        if "megabytes" in group[0]:
            found[name]["most_megabytes"] = max(cell["megabytes"] for cell in group)
    return found


def draw(cells: dict[str, dict]) -> None:
    """Every seed's environment steps until the target, a panel for each part."""
    from matplotlib import ticker

    drawn: dict[str, dict[str, list[dict]]] = {part: {} for part in PARTS}
    for key, cell in sorted(cells.items(), reverse=True):
        part, _, rest = key.partition("/")
        if int(key.rpartition("/")[2]) < 100:
            drawn[part].setdefault(rest.rpartition("/")[0], []).append(cell)
    with picture(Path(__file__).with_suffix(".svg"), columns=2, rows=2) as figure:
        panels = figure.subplots(len(PARTS), 1, height_ratios=[len(groups) + 1 for groups in drawn.values()])
        for panel, (part, groups) in zip(panels, drawn.items(), strict=True):
            for reached, style in ((True, DRAWN_REACHED), (False, DRAWN_MISSED)):
                found = [(cell, y) for y, group in enumerate(groups.values()) for cell in group]
                shown = [(cell["steps"] or cell["steps_taken"], y) for cell, y in found if cell["reached"] == reached]
                panel.plot(*zip(*shown, strict=True), linestyle="", alpha=0.8, **style)
            finish(panel, PARTS[part], steps=False)
            panel.set(xscale="log", yticks=range(len(groups)), yticklabels=list(groups))
            panel.xaxis.set_major_locator(ticker.LogLocator(subs=(1, 3)))
            panel.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
            panel.xaxis.set_minor_formatter(ticker.NullFormatter())
            panel.margins(y=0.1)
        panels[-1].set_xlabel("environment steps of all members, a point for each seed")
        legend(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, nargs="+", default=list(PARTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--peers", help="a Python that has AgileRL; without it, its cells are left out")
    parser.add_argument("--containing", default="", help="only cells whose name contains this")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.cell:
        part, _, key = options.cell.partition("/")
        measure.answer(MEASURE[part](key))
        return
    cells = measure.read(__file__).get("cells", {})
    keys = [key for part in options.only for key in wanted(part, options.seeds, bool(options.peers))]
    keys = [key for key in keys if key not in cells and options.containing in key]

    def keep(key: str, found: dict) -> None:
        print(key, found, flush=True)
        held = {**measure.read(__file__).get("cells", {}), key: found}  # another process may have added some
        measure.write(__file__, {"cells": held, "summary": summary(held)})

    failed = measure.run_cells(keys, options.jobs, lambda key: measured(key, options.peers), keep)
    draw(measure.read(__file__)["cells"])
    if failed:
        raise SystemExit(f"Failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
