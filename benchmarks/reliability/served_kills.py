"""A run that learns from what two clients play, one of which acts for itself, is killed, or a client is (kill -9), at
random moments, again and again; each time it goes on. No row may be followed by another episode's, and no row be
counted twice.

    python -m benchmarks.reliability.served_kills --times 100
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

PLACE = Path(__file__).with_suffix(".json")
SERVER = """
import sys
import numpy as np
from pathlib import Path
from gymnasium.spaces import Box, Discrete
import etude
from etude import serving
path, address, rows = Path(sys.argv[1]), sys.argv[2], open(sys.argv[3], "a")
spaces = (Box(-np.inf, np.inf, (3,), np.float64), Discrete(2))
clients = serving.Clients(address, spaces, limits=serving.ClientLimits(silence=2.0))
fields = {"learning_starts": 64, "train_every": 16, "gradient_steps": 1, "network": etude.Mlp((8,)), "environments": 2}
def seen(steps):
    following = steps.next_observations()
    for n in range(steps.shape[1]):
        for t in range(steps.shape[0]):
            print(*steps.observation[t, n].tolist(), *following[t, n].tolist(), steps.reward[t, n], file=rows)
    rows.flush()
    return 0.0
there = (path / "checkpoints").is_dir() and any((path / "checkpoints").iterdir())
run = etude.load(path, env=clients) if there else etude.Run("dqn", clients, engine="torch", run_dir=path, **fields)
with run:
    run.metric("rows", seen)
    for event in run.steps(10**7, save_every=128):
        pass
"""
CLIENT = """
import sys, time
from client import Client, EpisodeLost
number, episode = int(sys.argv[2]), 0
client = Client(sys.argv[1], sys.argv[3], patience=60)
while True:
    try:
        episode += 1
        name = client.start_episode()
        for t in range(7):
            client.get_action(name, [number, episode, t])
            client.log_returns(name, t)
        client.end_episode(name, [number, episode, 7], truncated=episode % 2 == 0)
    except EpisodeLost:
        continue
"""


def faults(rows: Path) -> dict[str, int]:
    """How many rows there are, are followed by others than their own, and are there twice."""
    complete = rows.read_text().split("\n")[:-1]  # the last line may be cut off
    found = np.array([line.split() for line in complete if len(line.split()) == 7], float)
    same = (found[:, :2] == found[:, 3:5]).all(1) & (found[:, 5] == found[:, 2] + 1) & (found[:, 6] == found[:, 2])
    return {
        "rows": len(found),
        "joined": int((~same).sum()),
        "twice": len(found) - len(np.unique(found[:, :3], axis=0)),
    }


def main(times: int, seed: int) -> dict[str, int]:
    rng, killed = random.Random(seed), {"server": 0, "remote client": 0, "local client": 0}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    with TemporaryDirectory() as folder:
        import etude.serving.client

        Path(folder, "client.py").write_bytes(Path(etude.serving.client.__file__).read_bytes())
        rows, number = Path(folder, "rows"), 0

        def start(who: str) -> subprocess.Popen:
            nonlocal number
            number += 1
            if who == "server":
                return subprocess.Popen([sys.executable, "-c", SERVER, f"{folder}/run", address, rows])
            inference = who.split()[0]
            command = [sys.executable, "-c", CLIENT, f"http://{address}", str(number), inference]
            return subprocess.Popen(command, cwd=folder)

        running, stuck = {who: start(who) for who in killed}, 0
        for _ in range(times):
            size = rows.stat().st_size if rows.exists() else 0
            until = time.monotonic() + 60
            while (rows.stat().st_size if rows.exists() else 0) <= size + 2000 and time.monotonic() < until:
                time.sleep(0.05)
            stuck += time.monotonic() >= until
            time.sleep(rng.random())
            who = rng.choice(list(killed))
            running[who].send_signal(signal.SIGKILL)
            running[who].wait()
            killed[who] += 1
            running[who] = start(who)
        for process in running.values():
            process.kill()
            process.wait()
        return {**killed, "times that it did not go on": stuck, **faults(rows)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    found = main(given.times, given.seed)
    PLACE.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
