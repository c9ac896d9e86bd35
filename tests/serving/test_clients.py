"""Training on what clients play. The clients here are threads of this process, but for the one that is copied."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import etude
from etude import serving
from etude.base.errors import ConfigError, EnvironmentFault
from etude.base.seeding import generator
from etude.base.spaces import Spaces
from etude.explore import EpsilonGreedy, Greedy
from etude.serving.rollout import ClientRollout

SPACES = (Box(-np.inf, np.inf, (2,), np.float32), Discrete(3))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


def address() -> str:
    return f"127.0.0.1:{free_port()}"


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
        with suppress(ConnectionError):
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


def test_one_client_fills_a_column_with_its_episodes():
    rollout = rollout_of()
    in_thread(play, rollout.url, 0, [3, 2, 4])
    first, second = rollout.collect(4, 0), rollout.collect(4, 4)
    for steps in (first, second):
        check_continuous(steps)
        assert not steps.restarted.any() and (steps.action == 1).all()
    assert first.terminated[:, 0].tolist() == [False, False, True, False]
    assert second.truncated[:, 0].tolist() == [True, False, False, False]
    (end,), (cut,) = first.episodes, second.episodes
    assert (end.length, end.total, end.truncated, end.episode) == (3, 3.0, False, 0)
    assert (cut.length, cut.total, cut.truncated, cut.episode) == (2, 1.0, True, 1)
    assert first.next_observation.tolist() == [[1.0, 1.0]] and second.next_observation.tolist() == [[2.0, 3.0]]
    rollout.close()


def test_columns_are_filled_by_as_many_clients_as_there_are():
    actor = Actor()
    alone = rollout_of(3, actor)
    in_thread(play, alone.url, 0, [100])
    first, second = alone.collect(4, 0), alone.collect(4, 12)
    assert sorted(first.observation[0, :, 1].tolist()) == [0, 4, 8] and not first.restarted.any()
    assert second.restarted.tolist() == [True, True, False]  # the last one goes on where it was
    check_continuous(first)
    check_continuous(second)
    alone.close()
    several = rollout_of(3, actor)
    for i in range(5):  # two of them wait for an episode of the others to end
        in_thread(play, several.url, i, [6] * 8)
    seen = set()
    for t in range(6):
        steps = several.collect(8, 24 * t)
        check_continuous(steps)
        seen |= set((steps.observation[..., 0] // 100).ravel().tolist())
    assert seen == {0, 1, 2, 3, 4}
    assert max(actor.sizes) > 1  # those that wait are one forward pass
    several.close()


def test_parts_of_a_time_step_and_whole_episodes():
    rollout = rollout_of(2)
    for i in range(2):
        in_thread(play, rollout.url, i, [5, 5, 5])
    for t in range(3):
        for part in (range(1), range(1, 2)):
            steps = rollout.collect(1, 2 * t, part)
            check_continuous(steps)
            assert steps.columns.tolist() == list(part)
    parts = rollout.collect_episodes(6)
    assert [part.columns.tolist() for part in parts] == [[0], [1]]
    for part in parts:
        check_continuous(part)
        assert len(part.episodes) == 1 and (part.terminated | part.truncated)[-1, 0]
    rollout.close()


def test_a_client_that_vanishes_loses_its_open_episode_alone():
    rollout = rollout_of(limits=serving.ClientLimits(silence=0.3))
    client = serving.Client(rollout.url)

    def vanish():
        play(rollout.url, 0, [2])
        name = client.start_episode()
        for t in range(3):  # the outcome of the last is not known
            client.get_action(name, [7.0, float(t)])
            client.log_returns(name, t)
        time.sleep(1)
        with pytest.raises(serving.EpisodeLost, match="410"):
            client.get_action(name, [7.0, 3.0])
        play(rollout.url, 1, [9])

    in_thread(vanish)
    steps = rollout.collect(6, 0)
    check_continuous(steps)
    assert steps.observation[:, 0, 0].tolist() == [0, 0, 7, 7, 100, 100]
    assert steps.truncated[:, 0].tolist() == [False, False, False, True, False, False]
    assert [end.total for end in steps.episodes] == [1.0]
    assert "1 open episode of clients did not go on for 0.3 seconds" in rollout.warnings()[0] and not rollout.warnings()
    rollout.close()


def test_own_actions_are_stored_as_they_were_executed():
    rollout, tasks = rollout_of(limits=serving.ClientLimits(silence=0.3)), []
    rollout.set_task({"gravity": 3})

    def log():
        client = serving.Client(rollout.url)
        tasks.append(client._ask("POST", "/v1/episodes", {})["task"])
        name = client.start_episode()
        for t, action in enumerate([2, 0]):
            client.log_action(name, [0.0, float(t)], action)
            client.log_returns(name, t)
        with pytest.raises(ValueError, match=r"422.*action: 3 is outside of Discrete\(3\)"):
            client.log_action(name, [0.0, 2.0], 3)

    in_thread(log)
    steps = rollout.collect(1, 0)
    assert steps.action.tolist() == [[2]] and tasks == [{"gravity": 3}]
    check_continuous(steps)
    rollout.close()


def test_algorithms_that_learn_from_probabilities_want_those_of_own_actions():
    space = Box(-2, 2, (1,), np.float32)
    clients = serving.Clients(address(), (SPACES[0], space))
    got = []

    def log(url):
        client = serving.Client(url, patience=5)
        name = client.start_episode()
        try:
            client.log_action(name, [0.0, 0.0], [1.0])
        except ValueError as error:
            got.append(str(error))
        name = client.start_episode()
        for t in range(9):
            client.log_action(name, [0.0, float(t)], [1.0], log_prob=-0.5)

    collected = []
    with etude.Run("ppo", clients, engine="torch", environments=1, rollout_length=4, epochs=1) as run:
        run.metric("kept", lambda steps: collected.append(steps) or 0.0)
        in_thread(log, f"http://{clients.address}")
        run.train(4)
    assert "422" in got[0] and "log_prob" in got[0]
    assert collected[0].action.ravel().tolist() == collected[0].extras["sampled_action"].ravel().tolist() == [0.5] * 4
    assert collected[0].extras["log_prob"].ravel().tolist() == [-0.5] * 4


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


def test_a_repeated_post_is_answered_and_counts_once():
    rollout = rollout_of()
    answers = []

    def repeat():
        ask = Wire(rollout)
        for body in ({"episode": "a"}, {"episode": "a"}):
            answers.append(ask("/v1/episodes", body))
        post = {"number": 1, "observation": [0, 0]}
        answers.extend([ask("/v1/episodes/a/act", post), ask("/v1/episodes/a/act", post)])
        answers.append(ask("/v1/episodes/a/act", {"number": 3, "observation": [0, 0]}))  # one was left out
        answers.append(ask("/v1/episodes/a/end", post))
        reward = {"number": 2, "reward": 0.5}
        answers.extend([ask("/v1/episodes/a/reward", reward), ask("/v1/episodes/a/reward", reward)])
        end = {"number": 3, "observation": [0, 1], "reward": 1, "terminated": True}
        answers.extend([ask("/v1/episodes/a/end", end), ask("/v1/episodes/a/end", end)])
        answers.append(ask("/v1/episodes", {"episode": "a"}))

    thread = in_thread(repeat)
    steps = rollout.collect(1, 0)
    thread.join(5)
    assert [status for status, _ in answers] == [200, 200, 200, 200, 409, 409, 200, 200, 200, 200, 409]
    assert answers[0] == answers[1] and answers[2] == answers[3] == (200, '{"action":1}')
    assert answers[8] == answers[9] == (200, '{"length":1,"return":1.5}')
    assert steps.reward.tolist() == [[1.5]] and [end.total for end in steps.episodes] == [1.5]
    rollout.close()


HOSTILE = [
    (422, {"number": 1, "observation": [0, 0, 0]}),
    (422, {"number": 1, "observation": [0, float("nan")]}),
    (422, {"number": 1, "observation": ["a", "b"]}),
    (422, {"number": 1, "observation": [[0], [1, 2]]}),
    (422, {"number": 1, "observation": {"dtype": "float32", "shape": [2, -1], "data": "AAAA"}}),
    (422, {"number": 1, "observation": {"dtype": "O", "shape": [1], "data": "AAAAAAAAAAA="}}),
    (422, {"number": 1, "observation": {"dtype": "float32", "shape": [10**9], "data": "AAAA"}}),
    (422, {"number": 1}),
    (422, {"observation": [0, 0]}),
    (422, {"number": True, "observation": [0, 0]}),
    (409, {"number": 2, "observation": [0, 0]}),
    (422, {"number": 1, "observation": [0, 0], "reward": float("inf")}),
    (422, {"number": 1, "observation": [0, 0], "reward": 1e300}),
    (422, {"number": 1, "observation": [0, 0], "reward": "much"}),
    (422, [1, 2]),
    (400, b"\xff\xfe"),
    (400, b"[" * 100_000),
    (400, b'{"number": 1'),
]


def test_hostile_bodies_are_refused_and_the_run_goes_on():
    rollout = rollout_of(limits=serving.ClientLimits(body=200_000, episodes=3))
    ask = Wire(rollout)
    assert ask("/v1/episodes", {"episode": "a"})[0] == 200
    for status, body in HOSTILE:
        got, text = ask("/v1/episodes/a/act", body)
        assert (got, "error" in text) == (status, True), (body, got, text)
    assert ask("/v1/episodes/a/end", {"number": 1, "observation": [0, 0]})[0] == 422  # how did it end?
    assert ask("/v1/episodes/b/act", {"number": 1, "observation": [0, 0]})[0] == 410
    assert ask("/v1/episodes/a/act", b"{}", **{"Content-Type": "text/plain"})[0] == 415  # what other sites may send
    assert ask("/v1/episodes/a/act", b"\x90", **{"Content-Type": "application/msgpack"})[0] == 422
    assert ask("/v1/episodes/a/act", b"\xc1", **{"Content-Type": "application/msgpack"})[0] == 400
    assert ask("/v1/episodes/a/act", b"x" * 200_001)[0] == 413
    assert ask("/v1/episodes/a/act", b"{}", **{"Content-Length": str(10**9)})[0] == 413
    assert ask("/v1/episodes", {"episode": "../x"})[0] == 422
    assert ask("/v1/other", {})[0] == 404
    assert [ask("/v1/episodes", {})[0] for _ in range(3)] == [200, 200, 429]
    in_thread(play, rollout.url, 0, [])
    ends = [({"number": 1, "observation": [0, 0], "truncated": True}, "/v1/episodes/a/end")]
    assert [ask(path, body)[0] for body, path in ends] == [200]  # no step was taken: nothing is counted
    in_thread(play, rollout.url, 0, [3])
    check_continuous(rollout.collect(3, 0))
    rollout.close()


def test_msgpack_and_bytes_of_arrays():
    import msgpack

    rollout = rollout_of()
    got = []

    def ask():
        wire = Wire(rollout, **{"Content-Type": "application/msgpack"})
        wire("/v1/episodes", msgpack.packb({"episode": "a"}))
        seen = {"dtype": "float32", "shape": [2], "data": np.array([5, 0], "<f4").tobytes()}
        got.append(wire("/v1/episodes/a/act", msgpack.packb({"number": 1, "observation": seen}))[1])
        wire("/v1/episodes/a/end", msgpack.packb({"number": 2, "observation": [5.0, 1.0], "truncated": True}))

    thread = in_thread(ask)
    check_continuous(rollout.collect(1, 0))
    thread.join(5)
    assert msgpack.unpackb(got[0].encode("latin-1")) == {"action": 1}
    rollout.close()


def test_a_token_guards_what_others_can_reach():
    with pytest.raises(ConfigError, match="give a token="):
        serving.Clients("0.0.0.0:9900", SPACES)
    with pytest.raises(ConfigError, match="expected HOST:PORT"):
        serving.Clients("9900", SPACES)
    rollout = rollout_of(token="secret")
    assert [Wire(rollout)(path, {})[0] for path in ("/v1/episodes", "/v1/description")] == [401, 405]
    assert Wire(rollout)("/v1/description", None, "GET")[0] == 401
    assert Wire(rollout, Authorization="Bearer secreT")("/v1/episodes", {})[0] == 401
    described = serving.Client(rollout.url, token="secret").description()
    assert described["action_space"] == {"discrete": {"n": 3, "start": 0}} and described["protocol"] == 1
    with pytest.raises(ConfigError, match="Cannot listen on"):
        ClientRollout(serving.Clients(rollout.url[7:], SPACES), Spaces(*SPACES), 1, Actor(), Greedy(), 0)
    rollout.close()


def test_a_saved_rollout_goes_on_without_joining_episodes():
    rollout = rollout_of(explorer=EpsilonGreedy(1.0))

    def random(url):
        client = serving.Client(url, patience=5)
        while True:
            try:
                name = client.start_episode()
                for t in range(10**6):
                    client.get_action(name, [0.0, float(t)])
                    client.log_returns(name, t)
            except serving.EpisodeLost:
                continue
            except ConnectionError:
                return

    in_thread(random, rollout.url)
    rollout.collect(5, 0)
    state = rollout.state()
    expected = generator(0, "explore", 0)
    rollout.close()
    again = ClientRollout(serving.Clients(rollout.url[7:], SPACES), Spaces(*SPACES), 1, Actor(), EpsilonGreedy(1.0), 0)
    again.restore(state)
    steps = again.collect(5, 5)
    check_continuous(steps)
    assert steps.restarted.tolist() == [True] and steps.observation[0, 0, 1] == 0
    expected.random((5, 2), np.float32)
    wanted = (expected.random((5, 2), np.float32)[:, 1] * 3).astype(int)
    assert steps.action[:, 0].tolist() == wanted.tolist()
    again.close()


# -- whole runs --------------------------------------------------------------------------------------------------------


def simulate(url, make, ended=None, log=None):
    """Play until the run ends."""
    env, client, seed = make(), serving.Client(url, patience=30), 0
    while True:
        try:
            observation, info = env.reset(seed=seed)
            name, over, seed = client.start_episode(), False, seed + 1
            while not over:
                action = client.get_action(name, observation, info.get("action_mask"))
                assert env.action_space.contains(np.asarray(action, env.action_space.dtype)), action
                mask = info.get("action_mask")
                assert mask is None or mask[action]
                observation, reward, terminated, truncated, info = env.step(
                    action if isinstance(env.action_space, Discrete) else np.asarray(action, np.float32)
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


CASES = {
    "dqn": (lambda: gym.make("CartPole-v1"), {"learning_starts": 32, "train_every": 8, "gradient_steps": 1}),
    "dqn masked": (Masked, {"learning_starts": 32, "train_every": 8, "network": etude.Mlp((8,))}),
    "ppo": (lambda: gym.make("Pendulum-v1"), {"rollout_length": 16, "epochs": 1, "environments": 2}),
    "recurrent_ppo": (
        lambda: gym.make("CartPole-v1"),
        {"rollout_length": 16, "sequence_length": 8, "epochs": 1, "environments": 2},
    ),
    "sac": (lambda: gym.make("Pendulum-v1"), {"learning_starts": 32, "train_every": 16, "gradient_steps": 1}),
    "reinforce": (lambda: gym.make("CartPole-v1"), {"environments": 2}),
}


@pytest.mark.parametrize("case", CASES)
def test_runs_train_on_what_clients_play(case):
    make, fields = CASES[case]
    clients = serving.Clients(address(), make)
    with etude.Run(case.split()[0], clients, engine="torch", seed=3, **fields) as run:
        in_thread(simulate, f"http://{clients.address}", make)
        finished = run.train(96)
        assert finished.step >= 96 and finished.totals["gradient_steps"] > 0


def test_a_run_goes_on_from_its_checkpoint_while_clients_wait(tmp_path):
    clients = serving.Clients(address(), "CartPole-v1")
    in_thread(simulate, f"http://{clients.address}", lambda: gym.make("CartPole-v1"))
    fields = {"learning_starts": 32, "train_every": 8, "gradient_steps": 1}
    with etude.Run("dqn", clients, engine="torch", run_dir=tmp_path / "run", **fields) as run:
        run.train(64)
        weights = run.engine.weights()
    with pytest.raises(ConfigError, match="give it again, as env="):
        etude.load(tmp_path / "run")
    with etude.load(tmp_path / "run", env=clients) as again:
        assert all((again.engine.weights()[name] == value).all() for name, value in weights.items())
        assert again.train(32).step == 96
        assert again.evaluate(1).lengths[0] > 0  # on the environment whose spaces are given
        assert again.act(np.zeros(4, np.float32)) in (0, 1)


def test_spaces_come_from_a_file_and_then_there_is_nothing_to_evaluate_on(tmp_path):
    spaces = tmp_path / "spaces.json"
    box = {"box": {"low": -5, "high": 5, "shape": [4], "dtype": "float32"}}
    spaces.write_text(json.dumps({"observation": box, "action": {"discrete": {"n": 2, "start": 0}}}))
    run = etude.Run("dqn", serving.Clients(address(), str(spaces)), engine="torch")
    with pytest.raises(EnvironmentFault, match="There is no environment here"):
        run.evaluate(1)
    run.close()
    spaces.write_text('{"observation": 3}')
    with pytest.raises(ConfigError, match="holds no spaces"):
        serving.Clients(address(), spaces)


def test_what_cannot_be_played_by_clients_is_refused():
    clients = serving.Clients(address(), "CartPole-v1")
    for fields in ({"workers": 2}, {"frame_stack": 4}, {"wrappers": [lambda env: env]}, {"keep_info": ["x"]}):
        with (
            pytest.raises(ConfigError, match="play in this process|are for environments that are stepped here"),
            etude.Run("dqn", clients, engine="torch", environments=2, **fields) as run,
        ):
            run.train(8)
    for algorithm in ("a3c", "es"):
        with (
            pytest.raises(ConfigError, match="in its own way"),
            etude.Run(algorithm, clients, engine="torch") as run,
        ):
            run.train(8)


def test_the_command_line_trains_on_what_clients_play(tmp_path, monkeypatch):
    from etude.cli import main

    monkeypatch.chdir(tmp_path)
    own, fields = address(), ["--set.learning-starts", "32", "--set.train-every", "8", "--set.gradient-steps", "1"]
    in_thread(simulate, f"http://{own}", lambda: gym.make("CartPole-v1"))
    train = ["train", "dqn", "--serve", own, "--spaces", "CartPole-v1", "--steps", "64", "--evaluate-every", "0"]
    assert main([*train, "--run-dir", "run", "--engine", "torch", "-q", *fields]) == 0
    assert main(["resume", "run", "--serve", own, "--env", "CartPole-v1", "--steps", "96", "-q"]) == 0
    assert etude.load("run", env="CartPole-v1").step == 96
    for wrong in (["CartPole-v1", "--serve", own], ["--serve", own]):
        assert main(["train", "dqn", *wrong]) == 2


COPIED = """
import sys
sys.path[:] = [path for path in sys.path if "serving" not in path and path != ""]
from simulator_client import Client
assert "etude" not in sys.modules
client = Client(sys.argv[1], patience=3)
for episode in range(3):
    name = client.start_episode()
    for t in range(4):
        client.get_action(name, [float(episode), float(t)])
        client.log_returns(name, t)
    client.end_episode(name, [float(episode), 4.0])
"""


def test_the_client_is_one_file_that_works_without_etude(tmp_path):
    shutil.copy(Path(serving.__file__).with_name("client.py"), tmp_path / "simulator_client.py")
    (tmp_path / "simulate.py").write_text(COPIED)
    rollout = rollout_of()
    process = subprocess.Popen([sys.executable, "-P", str(tmp_path / "simulate.py"), rollout.url], cwd=tmp_path,
                               env={"PYTHONPATH": str(tmp_path)})  # fmt: skip
    check_continuous(rollout.collect(12, 0))
    assert process.wait(10) == 0
    rollout.close()
