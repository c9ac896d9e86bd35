"""How long it takes until a policy that plays CartPole for clients reaches a mean return of 475 over 10 episodes: by
algorithm, by who computes actions, by the number of clients, by seed. Results are kept in a JSON file; what is there
is not measured again.

    python -m benchmarks.serving_learns ppo local 1 --seeds 1 2 3
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym

import etude
from benchmarks.serving import free_port, play_episode
from etude import serving

PLACE = Path(__file__).with_suffix(".json")
GOAL, STEPS, EVERY = 475, {"ppo": 100_000, "dqn": 50_000}, 5_000


def play(url: str, inference: str) -> None:
    """A client in a process of its own, until the run ends."""
    env, client = gym.make("CartPole-v1"), serving.Client(url, inference, patience=300)
    with suppress(ConnectionError):
        while True:
            with suppress(serving.EpisodeLost):  # between two calls of `train` the server is closed
                play_episode(env, client)


def learn(algorithm: str, inference: str, clients: int, seed: int) -> dict[str, float]:
    """Seconds and environment steps until the goal, and the last mean return."""
    address = f"127.0.0.1:{free_port()}"
    begin = time.perf_counter()
    each = [
        multiprocessing.Process(target=play, args=(f"http://{address}", inference), daemon=True) for _ in range(clients)
    ]
    for process in each:
        process.start()
    served = serving.Clients(address, "CartPole-v1")
    with etude.Run(algorithm, served, engine="jax", seed=seed, environments=clients) as run:
        found = 0.0
        while run.step < STEPS[algorithm] and found < GOAL:
            run.train(EVERY, schedule=etude.Schedule(total=STEPS[algorithm]))
            found = run.evaluate(10).mean
        step = run.step
    seconds = time.perf_counter() - begin
    for process in each:
        process.kill()
    return {"return": round(found, 1), "seconds": round(seconds, 1), "steps": step}


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    parser = argparse.ArgumentParser()
    parser.add_argument("algorithm", choices=STEPS)
    parser.add_argument("inference", choices=("remote", "local"))
    parser.add_argument("clients", type=int)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    given = parser.parse_args()
    for seed in given.seeds:
        results = json.loads(PLACE.read_text()) if PLACE.exists() else {}
        name = f"{given.algorithm} {given.inference} {given.clients} seed {seed}"
        if name not in results:
            found = learn(given.algorithm, given.inference, given.clients, seed)
            results = json.loads(PLACE.read_text()) if PLACE.exists() else {}
            PLACE.write_text(json.dumps(results | {name: found}, indent=1) + "\n")
            print(name, found, flush=True)
