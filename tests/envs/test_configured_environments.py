"""Arguments for what makes an environment, and wrappers around it."""

import functools
import json

import cloudpickle
import numpy as np
import pytest
from my_wrappers import Doubled, Room, Shifted

import etude
from etude import Mlp, Run, cli
from etude.algorithms import DQNConfig
from etude.base.errors import ConfigError
from etude.checkpoint.run_directory import RunDirectory
from etude.cli.options import environment_arguments
from etude.envs import ConfiguredEnvironment, choose_vectorization, configured, make_environment, make_environments
from etude.training.description import Environment

TINY = DQNConfig(network=Mlp((4,)), learning_starts=8, train_every=8, batch_size=4)
DOUBLED, SHIFTED = "my_wrappers:Doubled", "my_wrappers:Shifted"


def seen(env):
    return make_environments(env, np.arange(1), run_seed=0).reset().item()


def run_of(env="my_wrappers:Room", **more):
    return Run("dqn", env, **{"config": TINY, "engine": "torch", **more})


def test_wrappers_stand_around_each_other_in_their_order():
    assert seen(configured(Room, {"size": 5}, [DOUBLED, SHIFTED])) == 11
    assert seen(configured(Room, {"size": 5}, [SHIFTED, DOUBLED])) == 12
    assert seen(configured("my_wrappers:Room", {"size": 5}, [Doubled, functools.partial(Shifted, by=3)])) == 13
    assert seen(configured(Room, None, DOUBLED)) == 2
    assert configured(Room, {}, ()) is Room


def test_arguments_reach_a_gymnasium_id_and_its_simulator_and_travel():
    env = configured("FrozenLake-v1", {"is_slippery": False, "map_name": "8x8"}, None)
    assert make_environment(env).spaces.observation.n == 64
    assert choose_vectorization(configured("CartPole-v1", {"sutton_barto_reward": True}, None), 64) == "native"
    assert choose_vectorization(configured("CartPole-v1", None, [SHIFTED]), 64) == "loop"
    assert cloudpickle.loads(cloudpickle.dumps(env)) == env


def test_keywords_of_the_caller_come_with_the_arguments():
    env = make_environment(configured("my_wrappers:Room", {"size": 7}, [DOUBLED]), render_mode="rgb_array")
    assert env.render().max() == 7


@pytest.mark.parametrize("env", ["FrozenLake-v1", "gymnasium:FrozenLake-v1"])
def test_an_argument_that_the_environment_does_not_take_is_refused_with_those_that_it_takes(env):
    with pytest.raises(ConfigError, match="takes no argument 'slippery'. Did you mean is_slippery.*max_episode_steps"):
        run_of(env, env_args={"slippery": True})


def test_an_argument_of_a_class_is_refused_with_those_that_it_takes():
    with pytest.raises(ConfigError, match="'my_wrappers:Room' takes no argument 'length'. It takes size, name, rend"):
        run_of(env_args={"length": 3})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"env_args": 3}, "expected a dict by name"),
        ({"env_args": {"size": np.ones(2)}}, "size = .* is no plain data"),
        ({"wrappers": [3]}, "3; expected a callable, or 'module:Name'"),
        ({"wrappers": ["Doubled"]}, "'Doubled'; expected a callable, or 'module:Name'"),
        ({"wrappers": ["my_wrappers:Double"]}, "my_wrappers has no wrapper 'Double'. Did you mean Doubled"),
        ({"wrappers": ["gymnasium.wrappers:TimeLimit"]}, "The wrapper gymnasium.wrappers:TimeLimit cannot be put"),
    ],
)
def test_what_cannot_be_an_argument_or_a_wrapper_is_refused(given, expected):
    with pytest.raises(ConfigError, match=expected):
        run_of(**given)


def test_a_saved_run_makes_its_environments_as_before(tmp_path):
    path = tmp_path / "run.etude"
    with run_of(env_args={"size": 5, "name": "wide"}, wrappers=[DOUBLED, SHIFTED]) as run:
        assert run.evaluate(1).mean == 20
        run.train(16)
        run.save(path)
        described = run.description()
    assert described["environment_args"] == {"size": 5, "name": "wide"}
    assert described["wrappers"] == [DOUBLED, SHIFTED] and described["wrappers_are_named"]
    again = etude.load(path)
    assert again.environment == ConfiguredEnvironment(
        "my_wrappers:Room", {"size": 5, "name": "wide"}, (DOUBLED, SHIFTED)
    )
    again.train(8)
    assert etude.load(path, env_args={"size": 6}).evaluate(1).mean == 24
    other = etude.load(path, env=Room)  # of which the arguments are not known
    assert other.environment == ConfiguredEnvironment(Room, {}, (DOUBLED, SHIFTED))


def test_wrappers_that_are_no_names_are_given_again(tmp_path):
    path = tmp_path / "run.etude"
    with run_of(wrappers=[Doubled, SHIFTED]) as run:
        run.save(path)
    with pytest.raises(ConfigError, match=r"Doubled.*give them again, as wrappers="):
        etude.load(path)
    assert etude.load(path, wrappers=[Doubled, SHIFTED]).evaluate(1).mean == 4


def test_workers_make_environments_with_arguments_and_wrappers():
    with run_of(env_args={"size": 5}, wrappers=[Doubled], environments=2, workers=1) as run:
        run.train(8)
        assert set(run.learner.replay.ring.observation(np.arange(4)).ravel()) == {10}


def test_a_preset_is_of_the_id_whatever_its_arguments():
    with Run("dqn", Environment("CartPole-v1", args={"sutton_barto_reward": True}), engine="torch") as run:
        assert run.agent.config == etude.config("dqn", "CartPole-v1")


def test_values_on_the_command_line_are_literals_or_texts():
    texts = ["slip=False", "slow=true", "map=8x8", "size=3", "rate=1e-3", "desc=['SF','FG']", "name='3'", "no=None"]
    assert environment_arguments(texts) == {
        "slip": False, "slow": True, "map": "8x8", "size": 3, "rate": 1e-3, "desc": ["SF", "FG"], "name": "3",
        "no": None,
    }  # fmt: skip
    for wrong in ("size", "=3", "a b=3"):
        with pytest.raises(ConfigError, match="expected NAME=VALUE"):
            environment_arguments([wrong])


def test_train_resume_evaluate_and_watch_use_them(tmp_path, capsys):
    options = f"--steps 24 --engine torch --env-arg size=5 --env-arg name=wide --wrapper {DOUBLED} --wrapper {SHIFTED}"
    small = "--set.network.widths 4 --set.learning-starts 8 --set.batch-size 4"
    folder = str(tmp_path / "run")
    assert cli.main(["train", "dqn", "my_wrappers:Room", *options.split(), *small.split(), "--run-dir", folder]) == 0
    described = json.loads((tmp_path / "run" / "config.json").read_text())
    assert described["environment_args"] == {"size": 5, "name": "wide"}
    assert cli.main(["resume", folder, "--steps", "32"]) == 0
    capsys.readouterr()
    assert cli.main(["evaluate", folder, "--episodes", "2"]) == 0
    assert "return 20.0" in capsys.readouterr().out
    assert cli.main(["watch", folder, "--video", str(tmp_path / "out.mp4")]) == 0
    assert RunDirectory(folder).load().state["description"]["wrappers"] == [DOUBLED, SHIFTED]
