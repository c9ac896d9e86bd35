"""How fast clients are served on this machine: one connection, a hundred clients at once, and a client that acts for
itself beside an environment in the run's own process.

    python -m benchmarks.serving
"""

from __future__ import annotations

import json
import multiprocessing
import resource
import socket
import sys
import threading
import time
from pathlib import Path

import numpy as np

from etude import serving
from etude.engines.numpy import NumpyEngine
from etude.explore import EpsilonGreedy
from etude.serving.rollout import ClientRollout

PLACE = Path(__file__).with_suffix(".json")


def rollout_of(count: int) -> ClientRollout:
    """Serves a DQN with its default network for CartPole, which explores."""
    import etude

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    clients = serving.Clients(f"127.0.0.1:{port}", "CartPole-v1")
    with etude.Run("dqn", "CartPole-v1", engine="torch") as run:
        spaces, agent = run.engine.spaces, run.agent
    made = ClientRollout(clients, spaces, count, NumpyEngine(agent, spaces), EpsilonGreedy(0.1), 0)
    made.url = f"http://127.0.0.1:{port}"
    return made


def ask(url: str, posts: int, length: int, found: multiprocessing.Queue) -> None:
    """A client in a process of its own, which measures how long each action takes."""
    client, taken, errors, rng = serving.Client(url), [], 0, np.random.default_rng(0)
    observation = rng.normal(size=(length + 1, 4)).astype(np.float32)
    try:
        while len(taken) < posts:
            episode = client.start_episode()
            for t in range(length):
                begin = time.perf_counter()
                client.get_action(episode, observation[t])
                taken.append(time.perf_counter() - begin)
                client.log_returns(episode, 1.0)
            client.end_episode(episode, observation[length])
    except (ValueError, ConnectionError, serving.EpisodeLost):
        errors += 1
    found.put((taken, errors))


def served(clients: int, posts: int) -> dict[str, float]:
    """Actions in a second, over so many clients with so many posts each."""
    rollout, found = rollout_of(clients), multiprocessing.Queue()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processes = [multiprocessing.Process(target=ask, args=(rollout.url, posts, 200, found)) for _ in range(clients)]
    for process in processes:
        process.start()
    ended = threading.Event()

    def collect() -> None:
        while not ended.is_set():
            rollout.collect(16, 0)

    threading.Thread(target=collect, daemon=True).start()
    begin = time.perf_counter()
    each = [found.get() for _ in processes]
    wall = time.perf_counter() - begin
    ended.set()
    rollout.close()
    for process in processes:
        process.join()
    taken = np.sort(np.concatenate([times for times, _ in each]))
    return {
        "clients": clients,
        "actions per second": round(len(taken) / wall if clients > 1 else 1 / taken.mean()),
        "p50 ms": round(1e3 * taken[len(taken) // 2], 3),
        "p99 ms": round(1e3 * taken[int(0.99 * len(taken))], 3),
        "errors": sum(errors for _, errors in each),
        "MB more at the peak": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024,
    }


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    print(json.dumps(served(1, int(sys.argv[1]) if len(sys.argv) > 1 else 6000)))
