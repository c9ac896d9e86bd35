"""What a run, its training and its config are called with, also by those who come from another library."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import re

import pytest
from run_makers import DQN_TINY, tiny
from run_worlds import Counted

import etude
from etude import Execution, Linear, Run
from etude.algorithms import ALGORITHMS, DQN, PPO, DQNConfig
from etude.base.errors import ConfigError
from etude.base.other_libraries import INSTEAD
from etude.explore import EpsilonGreedy
from etude.presets import lookup
from etude.training.description import BY_ITSELF, OF_ENVIRONMENT, OWN, Environment
from etude.training.schedule import Schedule


def fields(kind):
    return {field.name for field in dataclasses.fields(kind)}


# -- changes on top of a preset ----------------------------------------------------------------------------------------


def test_a_config_is_the_preset_with_changes():
    preset = lookup("ppo", "CartPole-v1")
    config = etude.config("ppo", "CartPole-v1", learning_rate=1e-3)
    expected = {**preset.config, "learning_rate": 1e-3}
    assert {name: getattr(config, name) for name in expected} == expected
    assert etude.config("dqn") == DQNConfig()
    assert etude.config("ippo", "CartPole-v1") == etude.config("ppo", "CartPole-v1")
    assert etude.config("pg", "CartPole-v1") == etude.config("reinforce", "CartPole-v1") != etude.config("pg")


def test_the_function_that_makes_configs_does_not_hide_the_classes_that_they_derive_from():
    from etude.config import OffPolicyConfig

    assert issubclass(DQNConfig, OffPolicyConfig)
    assert pickle.loads(pickle.dumps(DQN_TINY)) == DQN_TINY
    assert dataclasses.replace(DQN_TINY, gamma=0.5).gamma == 0.5


def test_fields_of_the_config_are_arguments_of_a_run():
    with Run("ppo", "CartPole-v1", gamma=0.5, seed=4, engine="torch", environments=2) as run:
        assert (run.agent.config, run.execution.seed) == (etude.config("ppo", "CartPole-v1", gamma=0.5), 4)
    with Run("dqn", Counted, epsilon=Linear(1.0, 0.0), engine="torch") as run:
        assert run.agent.config == DQNConfig(epsilon=Linear(1.0, 0.0))


def test_hyperparameters_are_given_once():
    with pytest.raises(ConfigError, match=r"config= and gamma= both.*dataclasses.replace\(config, gamma=\.\.\.\)"):
        tiny(gamma=0.5)
    with pytest.raises(ConfigError, match="The agent and gamma= both"):
        Run(DQN(DQN_TINY), Counted, gamma=0.5)


def test_a_run_says_whether_there_is_a_preset_for_it():
    told = {}
    for env in ("CartPole-v1", "Acrobot-v1", Counted):
        with Run("dqn", env, config=DQN_TINY, engine="torch") as run:
            told[env] = next(iter(run.steps(1))).description["has_preset"]
    assert told == {"CartPole-v1": True, "Acrobot-v1": lookup("dqn", "Acrobot-v1") is not None, Counted: False}


def test_what_a_run_is_asked_for_is_said_once():
    given = inspect.signature(Run.__init__).parameters
    assert {name: given[name].default for name in BY_ITSELF} == {
        field.name: field.default for field in dataclasses.fields(Execution) if field.name in BY_ITSELF
    }
    assert {*OWN, *BY_ITSELF, "execution", "run_dir"} <= given.keys()
    # A checkpoint does not choose the cluster that a loaded run connects to.
    assert not {"ray", "strategy"} & Execution(workers=2, ray="local").plain().keys()


OLD = {
    "keep_info": ((), r"execution=etude.Execution\(keep_info=\.\.\.\)"),
    "device": ("cpu", r"execution=etude.Execution\(device=\.\.\.\)"),
    "env_args": ({}, r"env=etude.Environment\(ENV, args=\.\.\.\)"),
    "wrappers": ([], r"env=etude.Environment\(ENV, wrappers=\.\.\.\)"),
    "frame_stack": (1, r"env=etude.Environment\(ENV, frame_stack=\.\.\.\)"),
    "explorer": (EpsilonGreedy(0.1), r"execution=etude.Execution\(explorer=\.\.\.\)"),
    "rewrite": ([], r"execution=etude.Execution\(rewrite=\.\.\.\)"),
    "overlap": (False, r"execution=etude.Execution\(overlap=\.\.\.\)"),
}


@pytest.mark.parametrize("name", OLD)
def test_arguments_that_are_fields_of_an_object_now_work_and_are_answered_with_the_new_form(name):
    value, new = OLD[name]
    with pytest.warns(DeprecationWarning, match=rf"Run\({name}=\.\.\.\) goes in the next version. Write {new}") as told:
        old = Run("dqn", Counted, config=DQN_TINY, environments=4, engine="torch", seed=1, **{name: value})
    assert told[0].filename == __file__
    if name in OF_ENVIRONMENT:
        new = tiny(env=Environment(Counted, **{OF_ENVIRONMENT[name]: value}))
    else:
        new = tiny(execution=Execution(**{name: value}))
    with old, new:
        assert old.description() == new.description()


def test_arguments_of_training_that_are_fields_of_a_schedule_now_are_answered_with_the_new_form():
    given = {"evaluate_every": 4, "evaluate_episodes": 1}
    with tiny() as old, tiny() as new:
        told = r"train\(evaluate_max_steps=.*, total=.*\) goes in the next version. Write schedule=etude.Schedule\("
        with pytest.warns(DeprecationWarning, match=told) as warned:
            old.train(8, **given, evaluate_max_steps=2, total=16)
        assert warned[0].filename == __file__
        new.train(8, **given, schedule=Schedule(evaluate_max_steps=2, total=16))
        assert old.learner.progress.total == new.learner.progress.total == 16
        assert old.learner.progress.evaluation_steps == new.learner.progress.evaluation_steps == 2
        with pytest.raises(ConfigError, match="schedule = 3; expected an etude.Schedule"):
            new.train(8, schedule=3)


def test_keywords_of_a_run_come_before_those_of_its_execution():
    with tiny(execution=Execution(device="cpu", environments=6), environments=2) as run:
        assert (run.execution.device, run.execution.environments) == ("cpu", 2)
    with pytest.raises(ConfigError, match="execution = 3; expected an etude.Execution"):
        tiny(execution=3)


def test_a_run_is_described_by_what_makes_one_like_it():
    with tiny(environments=2, seed=5) as run, Run.of(run.described()) as again:
        assert again.description() == run.description()


# -- what is called otherwise elsewhere --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("n_envs", "environments"),
        ("tensorboard_log", "TensorBoard"),
        ("verbose", "callbacks"),
        ("policy_kwargs", "network"),
        ("num_workers", "workers"),
        ("n_steps", "rollout"),
        ("clip_param", "clip_range"),
        ("critic", r"network=etude.ActorCritic\(actor="),
        ("env_kwargs", "args="),
        ("learning_rat", "learning_rate"),
    ],
)
def test_an_argument_that_a_run_does_not_take_is_answered_with_the_one_that_was_meant(name, word):
    with pytest.raises(ConfigError, match=f"Run takes no {name}.*{word}"):
        Run("ppo", "CartPole-v1", **{name: 1})


def test_an_argument_that_nobody_knows_is_answered_with_all_that_there_are():
    with pytest.raises(ConfigError, match="Run takes no reset_noise. It takes config, .*seed, .*learning_rate, "):
        Run("ppo", "CartPole-v1", reset_noise=4)


def test_an_argument_of_training_that_a_run_is_given_is_answered_with_where_it_belongs():
    with pytest.raises(
        ConfigError, match=r"takes no callbacks, evaluate_every.*run.train\(100_000, callbacks=\.\.\., "
    ):
        Run("ppo", "CartPole-v1", evaluate_every=1_000, callbacks=[])


@pytest.mark.parametrize(("name", "word"), [("n_epochs", "epochs"), ("lr", "learning_rate"), ("gama", "gamma")])
def test_a_field_that_a_config_does_not_have_is_answered_with_the_one_that_was_meant(name, word):
    for make in (etude.algorithms.PPOConfig, lambda **given: etude.config("ppo", "CartPole-v1", **given)):
        with pytest.raises(ConfigError, match=f"PPOConfig takes no {name}. {name}: .*{word}"):
            make(**{name: 1})


def test_an_argument_that_training_does_not_take_is_answered_with_the_one_that_was_meant():
    with tiny() as run:
        for name, word in {"total_timesteps": "steps", "callback": "callbacks", "eval_freq": "evaluate_every"}.items():
            with pytest.raises(ConfigError, match=f"train takes no {name}. {name}: use `{word}`"):
                run.train(**{name: 1})
        with pytest.raises(ConfigError, match="It takes steps, callbacks, evaluate_every"):
            run.train(10, frame_skip=4)


def test_a_run_says_what_its_methods_are_called():
    with tiny() as run:
        for name, word in {"learn": "train", "predict": "act"}.items():
            with pytest.raises(AttributeError, match=f"A Run has no '{name}'. {name}: use `{word}`"):
                getattr(run, name)
        with pytest.raises(AttributeError, match="^A Run has no 'colour'.$"):
            run.colour  # noqa: B018
        assert not hasattr(run, "learn")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [(("CartPole-v1",), {}), (("MlpPolicy", "CartPole-v1"), {"verbose": 1}), ((DQNConfig,), {})],
)
def test_an_agent_that_is_given_what_another_library_gives_it_says_how_it_is_trained(arguments, options):
    with pytest.raises(ConfigError, match=r"PPO takes one config.*Run\(\"ppo\", \"CartPole-v1\"\)"):
        PPO(*arguments, **options)


def test_an_algorithm_is_a_name_or_an_agent():
    with pytest.raises(ConfigError, match=r"a name such as 'ppo', or an agent such as PPO\(PPOConfig\(\)\)"):
        Run(PPO, "CartPole-v1")
    with pytest.raises(ConfigError, match="no algorithm named 'pppo'. Did you mean ppo?"):
        Run("pppo", "CartPole-v1")
    with pytest.raises(ConfigError, match="no algorithm named 'Qr-DQM'. Did you mean qr_dqn?"):
        Run("Qr-DQM", "CartPole-v1")
    for name in ("PPO", "Ppo"):
        with Run(name, "CartPole-v1", engine="torch") as run:
            assert (run.algorithm, run.config) == ("ppo", etude.config("ppo", "CartPole-v1"))
    with Run("QR-DQN", "CartPole-v1", engine="torch") as run:
        assert run.algorithm == "qr_dqn"


def test_what_the_table_names_is_there():
    known = (
        {name for _, config in ALGORITHMS.values() for name in fields(config)}
        | fields(Execution)
        | fields(Schedule)
        | fields(Environment)
    )
    known |= {*OWN, *OF_ENVIRONMENT, "steps", "callbacks", "env", "episodes", *vars(Run)}
    known |= set(inspect.signature(Run.__init__).parameters)
    with tiny() as run:
        known |= set(vars(run))
    for name, text in INSTEAD.items():
        for word in re.findall(r"`(\w+)`", text):
            assert word in known, (name, word)
        for word in re.findall(r"etude\.report\.(\w+)", text):
            assert word in vars(etude.report), (name, word)


# -- values of a wrong kind --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [1e4, "100", None, 0, 2.5])
def test_steps_are_a_whole_number(steps):
    with tiny() as run, pytest.raises(ConfigError, match="steps = .*; expected a whole number of at least 1"):
        run.train(steps)


def test_steps_that_are_a_whole_number_as_a_float_are_answered_with_how_to_write_it():
    with tiny() as run, pytest.raises(ConfigError, match="expected a whole number of at least 1. Write 10_000.$"):
        run.train(1e4)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("learning_rate", "1e-3", "a number, or Linear"),
        ("gamma", None, "a number"),
        ("gradient_steps", 1.5, "a whole number"),
        ("double", "yes", "True or False"),
        ("max_gradient_norm", "0.5", "a number or None"),
        ("target_update_every", "500", "a whole number"),
    ],
)
def test_a_hyperparameter_of_a_wrong_kind_is_refused_by_name(field, value, expected):
    with pytest.raises(ConfigError, match=f"DQNConfig: {field} = {value!r}; expected {expected}"):
        DQNConfig(**{field: value})


def test_settings_of_a_wrong_kind_are_refused_by_name():
    with pytest.raises(ConfigError, match="environments = '8'; expected a whole number"):
        tiny(environments="8")
    with tiny() as run, pytest.raises(ConfigError, match="evaluate_every = 10.0; expected a whole number"):
        run.train(10, evaluate_every=10.0)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("vectorization", "sync", "'auto' or 'loop' or 'native' or 'compiled'"),
        ("vectorization", None, "'auto' or 'loop'"),
        ("device", 0, "a name, such as 'cpu'"),
        ("engine", None, "a name, such as 'cpu'"),
        ("ray", True, "an address or None"),
    ],
)
def test_what_no_file_could_say_of_an_execution_is_refused_before_anything_is_learned(field, value, expected):
    with pytest.raises(ConfigError, match=rf"^Execution: {field} = {value!r}; expected {expected}"):
        etude.Execution(**{field: value})


def test_the_folder_of_a_replay_may_be_a_path(tmp_path):
    execution = etude.Execution(engine="numpy", replay_folder=tmp_path)
    assert execution == etude.Execution(engine="numpy", replay_folder=str(tmp_path)) and execution.plain()


def test_a_wrapper_that_is_none_is_refused_by_name():
    with pytest.raises(ConfigError, match="wrappers: 3; expected a callable"):
        etude.Run("dqn", etude.Environment("CartPole-v1", wrappers=3))


@pytest.mark.parametrize("wrong", [{"episodes": 2.5}, {"max_steps": "9"}, {"seed": -1}, {"steps": True}])
def test_what_an_evaluation_is_of_are_whole_numbers(wrong):
    ((name, value),) = wrong.items()
    with tiny() as run, pytest.raises(ConfigError, match=f"{name} = {value!r}; expected a whole number"):
        run.evaluate(**wrong)


def test_a_recording_and_a_film_are_of_whole_episodes(tmp_path):
    with pytest.raises(ConfigError, match="episodes = 1.5; expected a whole number"):
        etude.record(Counted, 1.5)
    with Run("dqn", "CartPole-v1", config=DQN_TINY, engine="torch") as run:
        for wrong in ({"episodes": 0}, {"max_steps": -1}):
            with pytest.raises(ConfigError, match="expected a whole number of at least 1"):
                run.watch(tmp_path / "film.gif", **wrong)
        lengths = []
        run.watch(tmp_path / "film.gif", episodes=9, max_steps=3, ended=lambda each: lengths.append(each.length))
    assert lengths == [3]


def test_one_reporter_needs_no_list():
    told = []
    with tiny() as run:
        run.train(40, callbacks=told.append)
        assert told
        with pytest.raises(ConfigError, match=r"Progress is a class; make one: Progress\(\)"):
            run.train(40, callbacks=etude.report.Progress)
        for wrong in (3, [told.append, "progress"]):
            with pytest.raises(ConfigError, match="expected a reporter, or a list of them"):
                run.train(40, callbacks=wrong)


@pytest.mark.parametrize(
    ("algorithm", "name"),
    [
        ("sac", "SAC"),
        ("sac_n", "SACN"),
        ("rainbow", "Rainbow"),
        ("apex_dqn", "ApexDQN"),
        ("vdn", "VDN"),
        ("xql", "XQL"),
    ],
)
def test_messages_name_the_algorithm_that_was_asked_for(algorithm, name):
    agent, config = ALGORITHMS[algorithm]
    assert str(agent(config())) == name


def test_messages_name_an_agent_of_ones_own_by_its_class():
    class Careful(DQN):
        pass

    for kind in (Careful, etude.variant(DQN, name="Careful")):
        assert str(kind(etude.algorithms.RainbowConfig())) == "Careful"
