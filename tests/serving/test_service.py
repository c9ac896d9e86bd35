"""Trained policies as a service."""

import json
import socket
import threading
import time
import urllib.error
import urllib.request

import numpy as np
import pytest

import etude
from etude import cli, serving
from etude.algorithms.ppo import PPO, PPOConfig
from etude.base.errors import ConfigError
from etude.cli.runs import Checkpoints
from etude.export.policy import policies_of
from etude.multi_agent import League
from etude.networks import Mlp, Recurrent
from etude.serving.clients import Listening
from etude.serving.service import PolicyService

SEEN = [0.1, 0.2, -0.1, 0.3]


@pytest.fixture
def served():
    """Serves what loads policies, by name; the URL is added."""
    made = []

    def serve(sources, **more):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            address = f"127.0.0.1:{taken.getsockname()[1]}"
        made.append(PolicyService(Listening(address, **more), sources))
        made[-1].url = f"http://{address}"
        return made[-1]

    yield serve
    for each in made:
        each.close()


def run_of(seed=0, **more):
    return etude.Run("dqn", "CartPole-v1", network=Mlp((8,)), engine="torch", seed=seed, **more)


def loaded(run):
    return lambda: policies_of(run.policy, run.actor())


def asked(url, body=None, token=None):
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url, data, headers)) as answer:
        return answer.read().decode()


def test_several_runs_are_served_by_their_names(served):
    with run_of(0) as one, run_of(5) as other:
        service = served({"one": loaded(one), "other": loaded(other)})
        for name, run in {"one": one, "other": other}.items():
            client = serving.Client(f"{service.url}/{name}")
            assert client.description()["action_space"] == {"discrete": {"n": 2, "start": 0}}
            episode = client.start_episode()
            assert client.get_action(episode, SEEN) == run.act(np.float32(SEEN))
            client.log_returns(episode, 2.5)
            client.log_action(episode, SEEN, 1)
            client.end_episode(episode, SEEN)
        assert json.loads(asked(f"{service.url}/healthz")) == {"status": "ok", "policies": ["one", "other"]}
        counted = asked(f"{service.url}/metrics").splitlines()
        for name in ("one", "other"):
            assert f'etude_actions_total{{policy="{name}"}} 2' in counted
            assert f'etude_episodes_total{{policy="{name}"}} 1' in counted
        with pytest.raises(urllib.error.HTTPError, match="404"):
            asked(f"{service.url}/v1/description")


def test_a_single_observation_needs_no_episode(served):
    with run_of() as run:
        service = served({"run": loaded(run)})
        found = json.loads(asked(f"{service.url}/v1/act", {"observation": SEEN}))
        values = run.actor().act(np.float32([SEEN]))[0]
        assert found["action"] == values.argmax() and np.float32(found["output"]["values"]).tolist() == values.tolist()
        with pytest.raises(urllib.error.HTTPError) as refused:
            asked(f"{service.url}/v1/act", {"observation": [1, 2]})
        assert refused.value.code == 422 and "shape" in refused.value.read().decode()


def test_what_comes_in_together_is_one_forward_pass(served):
    """And each client's episode keeps its own memory."""
    memory = Recurrent(Mlp((4,)), 4)
    with etude.Run("recurrent_ppo", "CartPole-v1", network=memory, engine="torch", environments=2) as run:
        service, expected = served({"run": loaded(run)}), []
        for first in (True, False, False):
            expected.append(run.act(np.float32(SEEN), first=first))
        found, sizes, act = [], [], service.policies["run"]._policy.act

        def slow(inputs):
            sizes.append(len(inputs["first"]))
            time.sleep(0.02)  # in which others ask
            return act(inputs)

        service.policies["run"]._policy.act = slow
        started = threading.Barrier(8)

        def play():
            client = serving.Client(service.url)
            episode = client.start_episode()
            started.wait()
            found.append([client.get_action(episode, SEEN) for _ in expected])

        threads = [threading.Thread(target=play) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [expected] * 8
        assert sum(sizes) == 24 and max(sizes) > 2


def test_a_newer_best_checkpoint_is_loaded_and_a_damaged_one_is_not(served, tmp_path):
    with run_of(run_dir=tmp_path / "run") as run, run_of(7, run_dir=tmp_path / "other") as other:
        for each in (run, other):
            each.train(20, save_every=20)
        service = served({"run": Checkpoints(tmp_path / "run", False)})
        client = serving.Client(service.url)
        episode = client.start_episode()

        def values(of):
            return of.actor().act(np.float32([SEEN]))[0].tolist()

        def served_values():
            found = json.loads(asked(f"{service.url}/v1/act", {"observation": SEEN}))["output"]["values"]
            return np.float32(found).tolist()

        client.get_action(episode, SEEN)
        assert served_values() == values(run)
        assert service.reload() == []
        best = tmp_path / "run/checkpoints/best.etude"
        other.save(best)
        assert service.reload() == [] and served_values() == values(other)
        client.get_action(episode, SEEN)  # an open episode goes on
        best.write_bytes(b"damaged")
        (problem,) = service.reload()
        assert "best.etude" in problem and served_values() == values(other)
        assert "etude_load_failures_total 1" in asked(f"{service.url}/metrics")


def test_other_machines_need_a_token(served):
    with pytest.raises(ConfigError, match=r"127.0.0.1:0: clients have to know the port"):
        Listening("127.0.0.1:0")
    with pytest.raises(ConfigError, match=r"0.0.0.0:9900 can be reached from other machines"):
        Listening("0.0.0.0:9900")
    with run_of() as run:
        service = served({"run": loaded(run)}, token="secret")
        assert "ok" in asked(f"{service.url}/healthz")
        for path in ("/metrics", "/v1/description"):
            with pytest.raises(urllib.error.HTTPError, match="401"):
                asked(service.url + path)
        assert "etude_actions_total" in asked(f"{service.url}/metrics", token="secret")


def test_agents_of_leagues_are_not_served_and_it_is_said(served, tmp_path, capsys):
    config = PPOConfig(network=Mlp((4,)), rollout_length=4)
    members = {"learns": PPO(config), "league": League("learns", every=512)}
    policies = {"ann": "learns", "bob": "league"}
    with etude.Run(
        members, "several_worlds:Meeting", policies=policies, environments=1, engine="torch", run_dir=tmp_path / "run"
    ) as run:
        run.train(4, save_every=4)
    service = served({"run": Checkpoints(tmp_path / "run", False)})
    assert list(service.policies) == ["run-ann"]
    assert f"bob of {tmp_path / 'run'} not served: the policy is a league" in capsys.readouterr().out


@pytest.mark.parametrize("given, problem", [([], "serve takes runs"), (["a/run", "b/run"], "Two runs are called")])
def test_the_command_says_what_it_needs(given, problem, capsys):
    assert cli.main(["serve", *given]) == 2
    assert problem in capsys.readouterr().err
