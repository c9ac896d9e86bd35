"""What the tests of serving share: clients are threads of this process."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from contextlib import suppress

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

from etude import serving
from etude.base.errors import EtudeError
from etude.base.spaces import Spaces
from etude.explore import Greedy
from etude.serving.rollout import ClientRollout

SPACES = (Box(-np.inf, np.inf, (2,), np.float32), Discrete(3))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def address() -> str:
    return f"127.0.0.1:{free_port()}"


def wait_for(listening: str):
    """Until someone listens there."""
    host, port = listening.split(":")
    for _ in range(500):
        with suppress(OSError), socket.create_connection((host, int(port)), 1):
            return
        time.sleep(0.02)


class Actor:
    """Always wants action 1."""

    state_size = 0

    def __init__(self):
        self.sizes = []  # of the batches

    def act(self, observation):
        self.sizes.append(len(observation))
        return np.tile(np.array([0.0, 1.0, 0.5], np.float32), (len(observation), 1))

    def load(self, weights, version=None): ...


def rollout_of(count=1, actor=None, explorer=None, **more):
    clients = serving.Clients(address(), SPACES, **more)
    spaces = Spaces(*SPACES)
    made = ClientRollout(clients, spaces, count, actor or Actor(), explorer or Greedy(), 0)
    made.url = f"http://{clients.address}"
    return made


def in_thread(function, *arguments):
    def until_the_server_ends():
        with suppress(ConnectionError, EtudeError):
            function(*arguments)

    thread = threading.Thread(target=until_the_server_ends, daemon=True)
    thread.start()
    return thread


def play(url, number, lengths, stop=None):
    """Episodes whose observations are (number of the client and the episode, time step); the reward of step t is t."""
    client = serving.Client(url, patience=5)
    for episode, length in enumerate(lengths):
        name, row = client.start_episode(), 100 * number + episode
        for t in range(length):
            assert client.get_action(name, np.array([row, t], np.float32)) == 1
            client.log_returns(name, t)
        client.end_episode(name, [float(row), float(length)], truncated=episode % 2 == 1)
    client.close()


def check_continuous(steps):
    """Every row is followed by the next observation of its own episode."""
    following = steps.next_observations()
    np.testing.assert_array_equal(following[..., 0], steps.observation[..., 0])
    np.testing.assert_array_equal(following[..., 1], steps.observation[..., 1] + 1)
    np.testing.assert_array_equal(steps.reward, steps.observation[..., 1])


class Wire:
    """A client that says what it wants."""

    def __init__(self, rollout, **headers):
        self.connection = http.client.HTTPConnection(rollout.url[7:], timeout=5)
        self.headers = {"Content-Type": "application/json", **headers}

    def __call__(self, path, body, method="POST", **headers):
        data = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        self.connection.request(method, path, data, {**self.headers, **headers})
        answer = self.connection.getresponse()
        text = answer.read()
        self.connection.close()
        return answer.status, text.decode("latin-1")


def simulate(url, make, inference="remote"):
    """Play until the run ends."""
    env, client, seed = make(), serving.Client(url, inference, patience=30), 0
    while True:
        try:
            observation, info = env.reset(seed=seed)
            name, over, seed = client.start_episode(), False, seed + 1
            while not over:
                action = client.get_action(name, observation, info.get("action_mask"))
                mask = info.get("action_mask")
                assert mask is None or mask[action]
                observation, reward, terminated, truncated, info = env.step(
                    np.asarray(action, np.float32) if isinstance(env.action_space, Box) else action
                )
                client.log_returns(name, reward)
                over = terminated or truncated
            client.end_episode(name, observation, truncated=not terminated)
        except serving.EpisodeLost:
            continue
        except ConnectionError:
            return


class Masked(gym.Env):
    """Sees an image and a number; every other action is forbidden."""

    observation_space = gym.spaces.Dict({"image": Box(0, 255, (8, 8, 3), np.uint8), "x": Box(-1, 1, (1,))})
    action_space = Discrete(4)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), self._info()

    def step(self, action):
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == 5, False, self._info()

    def _info(self):
        return {"action_mask": np.array([1, 0, 1, 0] if self.t % 2 else [0, 1, 0, 1], np.int8)}
