import dataclasses
import json
import platform

import numpy as np
import pytest
from a_made_up_run import MadeUpRun

from etude import Conv, Environment, Execution, Recurrent, cli
from etude.adapt import Adapt
from etude.algorithms import ALGORITHMS
from etude.base.events import Finished
from etude.checkpoint.run_directory import RunDirectory
from etude.cli.output import used_by
from etude.cli.train import carry_out, with_hyperparameters
from etude.report import read_records
from etude.run import Schedule

SCHEDULE = Schedule(target=100.0, evaluate_every=50, evaluate_episodes=3, save_every=500)


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The description of every `Run` that is made; none is carried out."""
    calls = []

    class Run(MadeUpRun):
        @classmethod
        def of(cls, described):
            calls.append(described)
            return cls(None)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

    monkeypatch.setattr("etude.run.Run", Run)
    monkeypatch.chdir(tmp_path)
    return calls


def test_the_network_that_is_named_stands_before_the_cell_of_a_recurrent_one(made):
    given = "--steps 200 --network conv --set.network.units 7 --set.network.cell lstm --set.burn-in 3"
    assert cli.main(["train", "r2d2", "CartPole-v1", *given.split()]) == 0
    (described,) = made
    assert described.config.network == Recurrent(Conv(), 7, "lstm")
    assert described.config.burn_in == 3


def test_train_makes_the_run_that_was_asked_for(made, tmp_path, capsys):
    given = "--steps 200 --seed 3 --engine torch --envs 4 --workers 2 --run-dir here --set.gamma 0.5 --target 7"
    assert cli.main(["train", "dqn", "CartPole-v1", *given.split()]) == 0
    (described,) = made
    assert (described.algorithm, described.environment) == ("dqn", Environment("CartPole-v1"))
    assert described.config.gamma == 0.5
    assert described.execution == Execution(seed=3, engine="torch", environments=4, workers=2)
    text = capsys.readouterr().out
    for command in ("evaluate", "watch", "plot", "resume"):
        assert f"etude {command} here" in text
    assert json.loads((tmp_path / "here" / "config.json").read_text())["schedule"] == {
        "target": 7.0, "evaluate_every": 10, "evaluate_episodes": 10, "save_every": 20,
        "evaluate_max_steps": None, "evaluate_share": None, "evaluate_steps": None, "evaluate_workers": 0,
        "estimate_every": None, "estimate": None, "total": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", (10, 0.1)),
        ("--target 7", (10, None)),
        ("--evaluate-every 40", (40, None)),
        ("--evaluate-every 0", (None, None)),
    ],
)
def test_evaluations_are_bounded_where_nobody_says_when_to_evaluate(made, tmp_path, given, expected):
    assert cli.main(["train", "dqn", "CartPole-v1", "--steps", "200", "--run-dir", "here", *given.split()]) == 0
    schedule = json.loads((tmp_path / "here" / "config.json").read_text())["schedule"]
    assert (schedule["evaluate_every"], schedule["evaluate_share"]) == expected


def test_a_bound_on_the_steps_of_evaluation_episodes_is_passed_on(made, tmp_path):
    assert cli.main(["train", "dqn", "CartPole-v1", "--evaluate-max-steps", "50", "--run-dir", "here"]) == 0
    assert json.loads((tmp_path / "here" / "config.json").read_text())["schedule"]["evaluate_max_steps"] == 50


def test_where_and_how_long_evaluations_play_is_passed_on(made, tmp_path):
    given = "--evaluate-workers 2 --evaluate-steps 700 --run-dir here"
    assert cli.main(["train", "dqn", "CartPole-v1", *given.split()]) == 0
    schedule = json.loads((tmp_path / "here" / "config.json").read_text())["schedule"]
    assert (schedule["evaluate_workers"], schedule["evaluate_steps"]) == (2, 700)


@pytest.mark.parametrize("given", ["", "--set.gamma 0.5"])
def test_rules_go_with_hyperparameters_and_without(made, given):
    rules = "--adapt ess:batch-size --adapt kl:learning_rate"
    assert cli.main(["train", "dqn", "CartPole-v1", "--steps", "200", *rules.split(), *given.split()]) == 0
    assert made[0].config.adapt == (Adapt("ess", "batch_size"), Adapt("kl", "learning_rate"))


def test_without_hyperparameters_the_run_chooses_them_itself(made):
    cli.main(["train", "dqn", "CartPole-v1", "--steps", "100"])
    assert made[0].config is None


@pytest.mark.parametrize("given", [["--network", "conv"], ["--network=conv"]])
def test_the_kind_of_network_that_is_asked_for_is_taken(made, given):
    cli.main(["train", "ppo", "CartPole-v1", "--steps", "100", *given])
    assert type(made[0].config.network).__name__ == "Conv"


@pytest.mark.parametrize(("given", "same"), [(["--network", "mlp"], False), (["--set.gamma", "0.9"], True)])
def test_only_a_network_that_is_asked_for_by_name_stays_over_images(made, given, same):
    """Over images the default network itself gives way to convolutions, and nothing that is equal to it."""
    cli.main(["train", "dqn", "CartPole-v1", "--steps", "100", *given])
    network, default = made[0].config.network, with_hyperparameters("dqn", "CartPole-v1")().set.network
    assert network == default
    assert (network is default) is same


@pytest.mark.parametrize("names", [[], ["dqn"], ["--seed", "1", "dqn", "CartPole-v1"], ["dqn", "CartPole-v1", "more"]])
def test_train_says_how_it_is_called(made, names, capsys):
    assert cli.main(["train", *names]) == 2
    assert "etude train ALGORITHM ENV" in capsys.readouterr().err
    assert made == []


def test_an_algorithm_that_there_is_not_is_refused_with_those_that_there_are(made, capsys):
    assert cli.main(["train", "dqnn", "CartPole-v1"]) == 2
    assert ", ".join(sorted(ALGORITHMS)) in capsys.readouterr().err


def test_a_run_that_cannot_be_made_leaves_no_directory(monkeypatch, tmp_path):
    from etude.base.errors import SpaceError

    def refuse(*_, **__):
        raise SpaceError("no")

    monkeypatch.setattr("etude.run.Run.of", refuse)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "dqn", "CartPole-v1"]) == 2
    assert list(tmp_path.iterdir()) == []


def carried_out(tmp_path, **about):
    directory = RunDirectory.create(tmp_path / "run", "dqn")
    run = MadeUpRun(directory, **about)
    with directory:
        return carry_out(run, 1_000, SCHEDULE), run


def test_a_session_leaves_metrics_charts_a_curve_and_the_config(tmp_path, drawn_curves):
    code, run = carried_out(tmp_path)
    assert code == 0
    assert run.asked == (1_000, dataclasses.asdict(SCHEDULE))
    assert read_records(run.directory.metrics)[-1]["finished"] == "steps"
    assert run.directory.curve.read_bytes().startswith(b"\x89PNG")
    assert [path.parent.name for path in (run.directory.path / "tensorboard").rglob("events.*")] == [
        run.directory.path.name
    ]
    config = run.directory.read_config()
    assert (config["algorithm"], config["total"], config["schedule"]["target"]) == ("dqn", 1_000, 100.0)


def test_an_interrupted_session_tells_how_to_go_on(tmp_path, capsys):
    code, run = carried_out(tmp_path, reason="interrupted")
    assert code == 130
    assert f"etude resume {run.directory.path}" in capsys.readouterr().out


def test_the_end_says_whether_the_target_was_reached(tmp_path, capsys):
    carried_out(tmp_path / "a", reason="target")
    assert "Reached a mean return of 100 at step 1,000" in capsys.readouterr().out
    carried_out(tmp_path / "b", best=80.0)
    assert "No evaluation reached 100; the best mean return was 80.0" in capsys.readouterr().out
    carried_out(tmp_path / "c", best=120.0)
    assert "No evaluation" not in capsys.readouterr().out


def test_the_reporters_are_closed_when_training_fails(tmp_path, monkeypatch):
    closed = []
    monkeypatch.setattr("etude.report.Progress.close", lambda self: closed.append(self))
    monkeypatch.setattr(MadeUpRun, "train", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        carried_out(tmp_path)
    assert len(closed) == 1


def test_an_algorithm_with_a_typing_error_is_answered_with_the_one_that_was_meant(made, capsys):
    assert cli.main(["train", "pppo", "CartPole-v1"]) == 2
    assert "Did you mean ppo?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "word"),
    [
        ("--total-timesteps", "steps"),
        ("--n-envs=4", "use --envs."),
        ("--env-kwargs", "use --env-arg."),
        ("--eval-freq", "use --evaluate-every."),
        ("--net-arch", "use --set.network.widths."),
        ("--n-steps", "use --set.rollout-length."),
        ("--learning-rate", "train has no option --learning-rate: it is --set.learning-rate."),
        ("--env", "use ENV, after the algorithm."),
        ("--set.ent-coef", "ppo has no hyperparameter --set.ent-coef: use --set.entropy-coefficient."),
        ("--set.lr", "use --set.learning-rate."),
        ("--set.target-update-every", "ppo takes no target_update_every. It takes network, learning_rate"),
        ("--set.gama", "gama: did you mean gamma?"),
    ],
)
def test_an_option_of_another_library_is_answered_with_the_word_for_it(made, capsys, option, word):
    assert cli.main(["train", "ppo", "CartPole-v1", option, "1"]) == 2
    assert word in capsys.readouterr().err
    assert made == []


def test_every_command_with_hyperparameters_answers_other_names_for_them(capsys):
    for command in ("tune", "evolve", "sweep", "find lr"):
        assert cli.main([*command.split(), "PPO", "CartPole-v1", "--set.ent-coef", "1"]) == 2
        assert capsys.readouterr().err == (
            "etude: ppo has no hyperparameter --set.ent-coef: use --set.entropy-coefficient.\n"
        )


def test_what_is_switched_off_is_an_option(made):
    assert cli.main(["train", "reinforce", "CartPole-v1", "--steps", "10", "--no-compiled", "--set.no-baseline"]) == 0
    (described,) = made
    assert not described.config.baseline


def test_an_algorithm_is_known_by_other_spellings(made):
    for name in ("PPO", "Ppo"):
        assert cli.main(["train", name, "CartPole-v1", "--steps", "10"]) == 0
    assert [described.algorithm for described in made] == ["ppo", "ppo"]


def test_what_cannot_be_trained_is_said_before_anything_else(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "dqn", "Pendulum-v1", "--engine", "torch"]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("etude: DQN needs Discrete actions")


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("simple_spread_v3", "Did you mean mpe2:simple_spread_v3, which has several agents?"),
        ("FetchReach-v4", "needs gymnasium_robotics: pip install gymnasium-robotics"),
    ],
)
def test_environments_of_other_packages_are_named_as_they_are_given(env, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["train", "mappo", env, "--engine", "torch"]) == 2
    assert message in capsys.readouterr().err


def test_it_is_said_where_there_is_no_preset_and_for_what_there_are(made, capsys):
    cli.main(["train", "ppo", "Taxi-v4", "--steps", "10"])
    told = capsys.readouterr().out
    assert (
        "ppo has no preset for Taxi-v4; the default hyperparameters are used. It has presets for CartPole-v1," in told
    )
    cli.main(["train", "ppo", "CartPole-v1", "--steps", "10"])
    cli.main(["train", "ppo", "Taxi-v4", "--steps", "10", "--set.gamma", "0.9", "--run-dir", "chosen"])
    assert "no preset" not in capsys.readouterr().out


def test_a_run_keeps_the_versions_of_what_it_used():
    found = used_by({"engine": "jax", "environment": "mpe2:simple_spread_v3", "environment_is_named": True})
    assert list(found) == ["python", "etude", "numpy", "gymnasium", "jax", "keras", "mpe2"]
    assert found["numpy"] == np.__version__ and found["python"] == platform.python_version()
    assert used_by({"engine": "jax", "environment": "CartPole-v1", "environment_is_named": True}).keys() == {
        "python", "etude", "numpy", "gymnasium", "jax", "keras",
    }  # fmt: skip
    assert "torch" not in used_by({"environment": "tasks.py:Reacher", "environment_is_named": True})


def test_the_versions_are_in_the_run_s_config(made, tmp_path):
    cli.main(["train", "dqn", "CartPole-v1", "--steps", "10", "--run-dir", "here"])
    assert json.loads((tmp_path / "here" / "config.json").read_text())["versions"]["numpy"] == np.__version__


def test_a_run_that_could_not_be_saved_ends_in_an_error(made, monkeypatch, capsys):
    from etude import run

    monkeypatch.setattr(run.Run, "train", lambda *_, **__: Finished(200, "steps", 1.0))
    assert cli.main(["train", "dqn", "CartPole-v1", "--steps", "200"]) == 2
    said = capsys.readouterr()
    assert "200 steps, and could not be saved: there is no checkpoint of it" in said.err
    assert "etude watch" not in said.out + said.err
