"""Whole runs on what clients play."""

from __future__ import annotations

import json
import os
import signal

import gymnasium as gym
import numpy as np
import pytest
from serving_cases import Masked, address, in_thread, simulate

import etude
from etude import serving
from etude.base.errors import ConfigError, EnvironmentFault

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
    with etude.load(tmp_path / "run") as here:  # it acts, also where nobody listens
        assert here.act(np.zeros(4, np.float32)) in (0, 1)
    with etude.load(tmp_path / "run", env=clients) as again:
        assert all((again.engine.weights()[name] == value).all() for name, value in weights.items())
        assert again.train(32).step == 96
        assert again.evaluate(1).lengths[0] > 0  # on the environment whose spaces are given
        assert again.act(np.zeros(4, np.float32)) in (0, 1)


@pytest.mark.parametrize(("algorithm", "fields"), [("ppo", {"rollout_length": 16}), ("reinforce", {})])
def test_one_signal_ends_and_saves_a_run_whose_clients_have_left(algorithm, fields, tmp_path):
    clients = serving.Clients(address(), "CartPole-v1")
    with etude.Run(algorithm, clients, engine="torch", environments=2, run_dir=tmp_path / "run", **fields) as run:

        def leave_in_the_middle_of_a_rollout():
            client = serving.Client(f"http://{clients.address}", patience=30)
            episode = client.start_episode()
            os.kill(os.getpid(), signal.SIGINT)  # the episode is waited for
            for _ in range(3):
                client.get_action(episode, np.zeros(4, np.float32))
                client.log_returns(episode, 1.0)
            client.end_episode(episode, np.zeros(4, np.float32))

        player = in_thread(leave_in_the_middle_of_a_rollout)
        finished = run.train(10_000)
        player.join()
        assert finished.reason == "interrupted"
    with etude.load(tmp_path / "run", env=clients) as again:
        assert again.step == finished.step
        in_thread(simulate, f"http://{clients.address}", lambda: gym.make("CartPole-v1"))
        assert again.train(64).step >= finished.step + 64


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


def test_clients_play_what_an_environment_describes():
    described = etude.Environment("CartPole-v1", args={"max_episode_steps": 7}, frame_stack=2)
    clients = serving.Clients(address(), described)
    with etude.Run("dqn", clients, engine="torch", learning_starts=32) as run:
        in_thread(simulate, f"http://{clients.address}", described)
        assert run.train(64).step == 64
        assert run.engine.spaces.observation.shape == (2, 4)
        assert run.evaluate(1).lengths == (7,)
    assert repr(clients) == f"serving.Clients({clients.address!r}, 'CartPole-v1')"
    assert not etude.envs.check_environment(described)


def test_what_cannot_be_played_by_clients_is_refused():
    clients = serving.Clients(address(), "CartPole-v1")
    for fields in ({"workers": 2}, {"frame_stack": 4}, {"wrappers": [lambda env: env]}, {"keep_info": ["x"]}):
        with (
            pytest.raises(ConfigError, match="play in this process|are for environments that are stepped here"),
            etude.Run("dqn", clients, engine="torch", environments=2, **fields) as run,
        ):
            run.train(8)
    for algorithm in ("a3c", "es"):
        with pytest.raises(ConfigError, match="in its own way"), etude.Run(algorithm, clients, engine="torch") as run:
            run.train(8)


CARTPOLE_CLIENT = """
import argparse
import gymnasium as gym
from etude.serving import Client

parser = argparse.ArgumentParser()
parser.add_argument("--inference-mode", type=str, required=True, choices=["local", "remote"])
parser.add_argument("--off-policy", action="store_true")

args = parser.parse_args(argv)
env = gym.make("CartPole-v1")
client = Client(url, inference=args.inference_mode, patience=5)

eid = client.start_episode()
obs, info = env.reset()
while True:
    if args.off_policy:
        action = env.action_space.sample()
        client.log_action(eid, obs, action)
    else:
        action = client.get_action(eid, obs)
    obs, reward, terminated, truncated, info = env.step(action)
    client.log_returns(eid, reward)
    if terminated or truncated:
        client.end_episode(eid, obs, truncated)
        obs, info = env.reset()
        eid = client.start_episode()
"""


@pytest.mark.parametrize("argv", [["remote"], ["local"], ["remote", "--off-policy"]])
def test_rllibs_cartpole_server_and_client(argv, tmp_path, monkeypatch):
    """As RLlib's examples are, but for Gymnasium's API; `etude train --serve` is the server."""
    from etude.cli import main

    monkeypatch.chdir(tmp_path)
    own, fields = address(), ["--set.learning-starts", "32", "--set.train-every", "8", "--set.gradient-steps", "1"]
    names = {"argv": ["--inference-mode", *argv], "url": f"http://{own}"}
    in_thread(exec, CARTPOLE_CLIENT, names)
    train = ["train", "dqn", "--serve", own, "--spaces", "CartPole-v1", "--steps", "64", "--evaluate-every", "0"]
    assert main([*train, "--run-dir", "run", "--engine", "torch", "-q", *fields]) == 0
    with etude.load("run", env="CartPole-v1") as run:
        assert run.step == 64


def test_the_command_line_trains_on_what_clients_play(tmp_path, monkeypatch, capsys):
    from etude.cli import main

    monkeypatch.chdir(tmp_path)
    own, fields = address(), ["--set.learning-starts", "32", "--set.train-every", "8", "--set.gradient-steps", "1"]
    in_thread(simulate, f"http://{own}", lambda: gym.make("CartPole-v1"))
    train = ["train", "dqn", "--serve", own, "--spaces", "CartPole-v1", "--steps", "64", "--evaluate-every", "0"]
    assert main([*train, "--run-dir", "run", "--engine", "torch", "-q", *fields]) == 0
    assert main(["resume", "run", "--serve", own, "--env", "CartPole-v1", "--steps", "96", "-q"]) == 0
    assert etude.load("run", env="CartPole-v1").step == 96
    assert main(["evaluate", "run", "--episodes", "1"]) == 0  # on the environment whose spaces were given
    assert main(["resume", "run", "--steps", "128", "-q"]) == 2
    assert "Clients played in this run: --serve HOST:PORT" in capsys.readouterr().err
    for wrong in (["CartPole-v1", "--serve", own], ["--serve", own], ["CartPole-v1", "--certificate", "cert.pem"]):
        assert main(["train", "dqn", *wrong]) == 2
    served = [
        "train",
        "dqn",
        "--serve",
        own,
        "--spaces",
        "CartPole-v1",
        "--certificate",
        "no.pem",
        "--evaluate-every",
        "0",
    ]
    assert main([*served, "--run-dir", "tls", "--engine", "torch", "-q"]) == 2  # there is no such file
    assert "ssl_certfile = 'no.pem'" in capsys.readouterr().err
