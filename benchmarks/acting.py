"""One observation to an action, a 4-128-2 network: etude, bare NumPy, torch and jitted JAX, and the peers' `predict`.

`python benchmarks/acting.py --peers PATH_TO_PYTHON` writes acting.json.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import measure
import numpy as np

SIZES = (4, 128, 2)
WANTED = {"etude, greedy": 10}


def etude_acts() -> dict[str, Callable[[], Any]]:
    """From an observation of one environment to its action, as a rollout does it."""
    from gymnasium.spaces import Box, Discrete

    import etude
    from etude.base.spaces import Spaces
    from etude.engines.numpy import NumpyEngine
    from etude.explore import EpsilonGreedy, Greedy

    spaces = Spaces(Box(-np.inf, np.inf, (SIZES[0],), np.float32), Discrete(SIZES[-1]))
    actor = NumpyEngine(etude.algorithms.DQN(etude.algorithms.DQNConfig(etude.Mlp(SIZES[1:-1]))), spaces)
    observation, noise = np.ones((1, SIZES[0]), np.float32), np.full((1, 2), 0.5, np.float32)
    greedy, explorer, state = Greedy(), EpsilonGreedy(0.1, total=1), np.empty((1, 0))
    return {
        "etude, greedy": lambda: greedy(actor.act(observation), noise, 0, state).action,
        "etude, epsilon-greedy": lambda: explorer(actor.act(observation), noise, 0, state).action,
        "etude, the network alone": lambda: actor.act(observation),
    }


def bare_acts() -> dict[str, Callable[[], Any]]:
    """The least that each library takes, an array in and a number out."""
    import jax
    import torch

    rng = np.random.default_rng(0)
    w1, w2 = (rng.standard_normal(shape).astype(np.float32) for shape in zip(SIZES, SIZES[1:], strict=False))
    b1, b2 = np.zeros(SIZES[1], np.float32), np.zeros(SIZES[2], np.float32)
    x = np.ones((1, SIZES[0]), np.float32)
    network = torch.nn.Sequential(torch.nn.Linear(*SIZES[:2]), torch.nn.ReLU(), torch.nn.Linear(*SIZES[1:]))
    jitted = jax.jit(lambda weights, x: (jax.nn.relu(x @ weights[0]) @ weights[1]).argmax())
    on_device = (jax.device_put(w1), jax.device_put(w2))

    def in_torch() -> int:
        with torch.no_grad():
            return int(network(torch.from_numpy(x)).argmax())

    return {
        "bare NumPy": lambda: int((np.maximum(x @ w1 + b1, 0) @ w2 + b2).argmax()),
        "bare torch": in_torch,
        "bare JAX, jitted": lambda: int(jitted(on_device, x)),
    }


def main() -> None:
    options = measure.arguments(__doc__).parse_args()
    if options.cell:
        measure.answer(measure.interleaved({**etude_acts(), **bare_acts()}, options.repeats))
        return
    found = measure.process(measure.script("acting.py", "--cell", "all", "--repeats", str(options.repeats)), "one")
    if options.peers:
        command = measure.script("peers.py", "acting", str(options.repeats), python=options.peers)
        peers = measure.process(command, "one")
        found |= {f"{library}, predict": seconds for library, seconds in peers.items()}
    rows = {name: measure.summary([1e6 * s for s in seconds]) for name, seconds in found.items()}
    measure.show("One observation to an action, one thread", rows, "us")
    for name, most in WANTED.items():
        rows[name]["wanted"] = most
    measure.write(__file__, {"microseconds": rows}, options.peers)


if __name__ == "__main__":
    main()
