"""A program: learn once with a network of this width, and print how many threads XLA computes with."""

from __future__ import annotations

import sys
from pathlib import Path

import etude


def main() -> None:
    engine, width = sys.argv[1], int(sys.argv[2])
    config = etude.DQNConfig(network=etude.Mlp((width, width)), warmup=64)
    with etude.Run("dqn", "CartPole-v1", config=config, seed=1, engine=engine, device="cpu") as run:
        run.train(100)
    names = [(task / "comm").read_text().strip() for task in Path("/proc/self/task").iterdir()]
    print(names.count("tf_XLAEigen"))


if __name__ == "__main__":
    main()
