"""A program: learn with a network of this width, and print how many threads the framework computes with. On torch, the
number that it is given before may follow, and how many there are before and after is printed too."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import etude

noted: set[int] = set()


class Noting(etude.algorithms.DQN):
    """Notes how many threads torch has in the loss."""

    def loss(self, batch: Any, noise: Any) -> Any:
        if "torch" in sys.modules:
            noted.add(sys.modules["torch"].get_num_threads())
        return super().loss(batch, noise)


def thread_names() -> list[str]:
    """The names of this process's threads."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):  # threads end meanwhile
            names.append((task / "comm").read_text().strip())
    return names


def main() -> None:
    engine, width, *chosen = sys.argv[1:]
    before = []
    if engine == "torch":
        import torch

        if chosen:
            torch.set_num_threads(int(chosen[0]))
        before.append(torch.get_num_threads())
    agent = Noting(etude.algorithms.DQNConfig(network=etude.Mlp((int(width),) * 2), learning_starts=64))
    with etude.Run(agent, "CartPole-v1", seed=1, engine=engine, execution=etude.Execution(device="cpu")) as run:
        run.train(100)
    if engine == "torch":
        print(*noted, *before, torch.get_num_threads())
    else:
        print(thread_names().count("tf_XLAEigen"))


if __name__ == "__main__":
    main()
