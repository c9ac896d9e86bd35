"""How fast clients are served on this machine: one connection, a hundred clients at once, and a client that acts for
itself beside an environment in the run's own process; and the same of a trained policy that is served.

    python -m benchmarks.serving
"""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import resource
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from etude import serving
from etude.base.errors import EtudeError
from etude.engines.numpy import NumpyEngine
from etude.envs import make_environments
from etude.explore import EpsilonGreedy
from etude.export.policy import policies_of
from etude.rollout import InProcess
from etude.serving.clients import Listening
from etude.serving.rollout import ClientRollout
from etude.serving.service import PolicyService

PLACE = Path(__file__).with_suffix(".json")


def rollout_of(count: int) -> ClientRollout:
    """Serves a DQN with its default network for CartPole, which explores."""
    import etude

    clients = serving.Clients(f"127.0.0.1:{free_port()}", "CartPole-v1")
    with etude.Run("dqn", "CartPole-v1", engine="torch") as run:
        spaces, agent = run.engine.spaces, run.agent
    made = ClientRollout(clients, spaces, count, NumpyEngine(agent, spaces), EpsilonGreedy(0.1), 0)
    made.url = f"http://{clients.address}"
    return made


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def ask(url: str, posts: int, length: int, ready: Any, found: multiprocessing.Queue) -> None:
    """A client in a process of its own, which measures how long each action takes."""
    client, taken, errors, rng = serving.Client(url), [], 0, np.random.default_rng(0)
    observation = rng.normal(size=(length + 1, 4)).astype(np.float32)
    ready.wait()
    start = time.time()
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
    found.put((taken, errors, start, time.time()))


def trained_on(clients: int, posts: int) -> dict[str, float]:
    """Actions in a second of a run that trains, over so many clients with so many posts each."""
    rollout = rollout_of(clients)
    threading.Thread(target=collect_all, args=(rollout, 16), daemon=True).start()
    try:
        return measured(rollout.url, clients, posts)
    finally:
        rollout.close()


def served(clients: int, posts: int) -> dict[str, float]:
    """Actions in a second of a trained policy that is served, as `etude serve` does."""
    import etude

    listening = Listening(f"127.0.0.1:{free_port()}")
    with etude.Run("dqn", "CartPole-v1", engine="torch") as run:
        service = PolicyService(listening, {"run": lambda: policies_of(run.policy, run.actor())})
        try:
            return measured(f"http://{listening.address}", clients, posts)
        finally:
            service.close()


def measured(url: str, clients: int, posts: int) -> dict[str, float]:
    """By clients in processes of their own."""
    ready, found = multiprocessing.Barrier(clients), multiprocessing.Queue()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processes = [multiprocessing.Process(target=ask, args=(url, posts, 200, ready, found)) for _ in range(clients)]
    for process in processes:
        process.start()
    each = [found.get() for _ in processes]
    wall = max(end for *_, end in each) - min(start for _, _, start, _ in each)
    for process in processes:
        process.join()
    taken = np.sort(np.concatenate([times for times, *_ in each]))
    return {
        "clients": clients,
        "actions per second": round(len(taken) / wall if clients > 1 else 1 / taken.mean()),
        "p50 ms": round(1e3 * taken[len(taken) // 2], 3),
        "p99 ms": round(1e3 * taken[int(0.99 * len(taken))], 3),
        "errors": sum(errors for _, errors, *_ in each),
        "MB more at the peak": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) // 1024,
    }


def play_episode(env: gym.Env, client: serving.Client) -> int:
    """How many steps it took."""
    observation, _ = env.reset()
    episode, terminated, truncated, played = client.start_episode(), False, False, 0
    while not (terminated or truncated):
        action = client.get_action(episode, observation)
        observation, reward, terminated, truncated, _ = env.step(action)
        client.log_returns(episode, reward)
        played += 1
    client.end_episode(episode, observation, truncated)
    return played


def simulate(url: str, steps: int, found: multiprocessing.Queue) -> None:
    """A client that plays CartPole and acts for itself, in a process of its own: seconds of wall and of processor."""
    env, client, played, start = gym.make("CartPole-v1"), serving.Client(url, "local"), 0, (0.0, 0.0)
    while played < steps:
        if played > steps // 10 and not start[0]:
            start, from_step = (time.perf_counter(), time.process_time()), played
        played += play_episode(env, client)
    ended = time.perf_counter(), time.process_time()
    found.put((played - from_step, *(b - a for a, b in zip(start, ended, strict=True))))


def local(steps: int) -> dict[str, float]:
    """Steps in a second of a client that acts for itself, and of the run's own environment."""
    rollout, found = rollout_of(1), multiprocessing.Queue()
    process = multiprocessing.Process(target=simulate, args=(rollout.url, steps, found))
    process.start()
    threading.Thread(target=collect_all, args=(rollout, 256), daemon=True).start()
    played, wall, processor = found.get()
    rollout.close()
    process.join()
    make = functools.partial(make_environments, "CartPole-v1", run_seed=0)
    own = InProcess(make(np.arange(1)), rollout._actor, EpsilonGreedy(0.1), 0)
    own.collect(256, 0)
    begin, begin_processor = time.perf_counter(), time.process_time()
    for _ in range(steps // 256):
        own.collect(256, 0)
    here, here_processor = time.perf_counter() - begin, time.process_time() - begin_processor
    own.close()
    return {
        "local steps per second": round(played / wall),
        "in process steps per second": round(steps // 256 * 256 / here),
        "share": round(played / wall / (steps // 256 * 256 / here), 2),
        "share by processor time of the client": round(played / processor / (steps // 256 * 256 / here_processor), 2),
    }


def collect_all(rollout: ClientRollout, steps: int) -> None:
    """Until the server is closed."""
    with suppress(EtudeError):
        while True:
            rollout.collect(steps, 0)


if __name__ == "__main__":
    multiprocessing.set_start_method("spawn")
    results = {"machine": f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"}
    results |= {"one connection": trained_on(1, 6000), "100 clients": trained_on(100, 200), "local": local(40_000)}
    results |= {"a policy, one connection": served(1, 6000), "a policy, 100 clients": served(100, 200)}
    PLACE.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results, indent=1))
