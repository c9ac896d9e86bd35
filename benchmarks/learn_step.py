"""`engine.learn` against a bare loop of the same framework, the same network and the same batches.

`python benchmarks/learn_step.py --peers PATH_TO_PYTHON` writes learn_step.json: microseconds per gradient step, from
batches in NumPy to losses and errors in NumPy. Each framework has a process of its own; engine and bare loop take turns
in it. The peers' figures are of their `train`, which also samples.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
from collections.abc import Callable
from typing import Any

import measure
from cases import (
    AGENTS,
    ATOMS,
    CASES,
    CLIP,
    CQL_ACTIONS,
    ENTROPY,
    EVERY,
    GAMMA,
    HIGHEST,
    LOWEST,
    QUANTILES,
    RATE,
    RECURRENT,
    TAU,
    UNITS,
    Case,
    batches,
)

MODULES = {"jax": "bare_jax", "tensorflow": "bare_tensorflow", "torch": "bare_torch", "torch, compiled": "bare_torch"}
AT_MOST = {"jax": 1.25, "tensorflow": 1.25, "torch": 1.25, "torch, compiled": 1.5}
TANH = ("ppo", "recurrent_ppo", "mappo", "gail", "airl", "reinforce", "a2c", "impala", "appo")  # hidden layers
EXTRAS = ("log_prob", "advantage", "return", "goes_on", "active", "first", "mask", "recurrent_state")
PEERS = {"sb3": "torch", "sbx": "jax"}


def engine_for(case: Case, framework: str, device: str = "cpu") -> Any:
    """An engine of etude with the networks and hyperparameters of the bare loop."""
    from etude import engines
    from etude.algorithms import find
    from etude.training.assembly.agents import multi_agent_for

    kind, config = find(case.algorithm)
    names = {field.name for field in dataclasses.fields(config)}
    same = {
        "learning_rate": RATE, "gamma": GAMMA, "tau": TAU, "target_update_every": EVERY, "clip_range": CLIP,
        "entropy_coefficient": ENTROPY,
        "network": network_for(case), "max_gradient_norm": case.rules.largest_norm,
        "double": case.algorithm == "rainbow", "normalize_observation": False,
        "atoms": ATOMS, "v_min": LOWEST, "v_max": HIGHEST, "quantiles": QUANTILES, "samples": CQL_ACTIONS,
    }  # fmt: skip
    agent = kind(config(**{name: value for name, value in same.items() if name in names}))
    spaces = spaces_of(case)
    if spaces.agents is not None:
        agent = multi_agent_for(agent, spaces, None)
    name, _, compiled = framework.partition(", ")
    return engines.create(name, agent, spaces, seed=0, device=device, compiled=bool(compiled))


def network_for(case: Case) -> Any:
    """The spec of the networks, as most of them have it by default."""
    from etude.networks import Conv, Mlp, Recurrent

    if case.algorithm == "rainbow":
        return Mlp(case.widths, dueling=True, noisy=0.5)
    tanh = case.algorithm in TANH
    if isinstance(case.observation, tuple):
        return Conv(widths=case.widths, activation="tanh" if tanh else "relu")
    network = Mlp(case.widths, "tanh", "orthogonal") if tanh else Mlp(case.widths)
    return Recurrent(network, UNITS) if case.algorithm in RECURRENT else network


def spaces_of(case: Case) -> Any:
    """What is observed and done."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete

    from etude.base.spaces import Spaces
    from etude.multi_agent.joint import joined_spaces

    box = Box(-1, 1, (case.actions,), np.float32)
    action = Discrete(case.actions) if case.rules.discrete else box
    if isinstance(case.observation, tuple):
        observation = Box(0, 255, case.observation, np.uint8)
    else:
        observation = Box(-np.inf, np.inf, (case.observation,), np.float32)
    spaces = Spaces(observation, action)
    return joined_spaces(dict.fromkeys(AGENTS, spaces)) if case.algorithm in ("maddpg", "mappo") else spaces


def learn_call(case: Case, framework: str, device: str = "cpu") -> Callable[[], Any]:
    """One learn call of an engine on the batches of a case."""
    import numpy as np

    from etude.base.data import Batch
    from etude.base.schedules import at

    engine, given = engine_for(case, framework, device), batches(case)
    extras = {name: given[name] for name in EXTRAS if name in given}
    expert = {name.removeprefix("expert_"): x for name, x in given.items() if name.startswith("expert_")}
    if expert:
        extras["expert"] = expert
    seen = {name: given.get(name) for name in ("observation", "next_observation")}
    if case.algorithm in ("maddpg", "mappo"):
        extras.setdefault("active", np.ones_like(given["reward"]))
        status = extras["active"].astype(np.int8)  # 1: it acts
        seen = {
            name: x if x is None else {"agents": {a: x[:, :, i].copy() for i, a in enumerate(AGENTS)}, "status": status}
            for name, x in seen.items()
        }
    names = ("action", "reward", "discount", "weight")
    batch = Batch(
        **{name: given[name] for name in names},
        **seen,
        index=np.zeros(given["weight"].shape[:2], np.int64),
        extras=extras,
    )
    config = engine.layout.agent.config
    hyper = {name: at(getattr(config, name), 0, 1) for name in engine.layout.hyper}
    return lambda: engine.learn(batch, hyper)


def measured(framework: str, names: list[str], repeats: int) -> dict:
    """Seconds per gradient step of the engine and of the bare loop, for each case."""
    bare_module, found = importlib.import_module(MODULES[framework]), {}
    for name in names:
        case = CASES[name]
        compiled = framework.endswith("compiled")
        if compiled and (case.rules.delayed or case.algorithm in RECURRENT):
            continue
        kind = (case, True) if compiled else (case,)
        bare, given = bare_module.bare(*kind), batches(case)
        functions = {"etude": learn_call(case, framework), "bare": lambda bare=bare, given=given: bare(given)}
        taken = measure.interleaved(functions, repeats, 0.3)
        found[name] = {who: [s / case.k for s in seconds] for who, seconds in taken.items()}
    return found


def main() -> None:
    parser = measure.arguments(__doc__)
    parser.add_argument("--frameworks", choices=MODULES, nargs="+", default=list(MODULES))
    parser.add_argument("--cases", choices=CASES, nargs="+", default=list(CASES))
    options = parser.parse_args()
    if options.cell:
        measure.answer(measured(options.cell, options.cases, options.repeats))
        return
    for threads in options.threads:
        for framework in options.frameworks:
            one_framework(options, framework, threads)
        if options.peers:
            peers(options, threads)


def one_framework(options: Any, framework: str, threads: str) -> None:
    """Measure all cases in one process; print, and add to the JSON file."""
    command = measure.script("learn_step.py", "--cell", framework, "--repeats", str(options.repeats))
    backend = {"KERAS_BACKEND": framework} if framework in ("jax", "tensorflow") else {}
    found = measure.process([*command, "--cases", *options.cases], threads, **backend)
    for name, seconds in found.items():
        micro = {who: measure.summary([1e6 * s for s in values]) for who, values in seconds.items()}
        against = {**measure.ratio(seconds["etude"], seconds["bare"]), "wanted": AT_MOST[framework]}
        title = f"{framework}, {name}, threads: {threads}"
        measure.show(title, {**micro, "etude / bare, a ratio": against}, "us per gradient step")
        measure.write(__file__, {title: {"microseconds": micro, "etude / bare": against}})


def peers(options: Any, threads: str) -> None:
    """The same networks in Stable-Baselines3 and SBX."""
    for name in {CASES[case].algorithm for case in options.cases}:
        found = {}
        for library in PEERS:
            command = measure.script("peers.py", "learn", library, name, str(options.repeats), python=options.peers)
            found[library] = measure.summary([1e6 * s for s in measure.process(command, threads)["seconds"]])
        measure.show(f"peers, {name}, threads: {threads}", found, "us per gradient step, sampling included")
        measure.write(__file__, {f"peers, {name}, threads: {threads}": found}, options.peers)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main()
