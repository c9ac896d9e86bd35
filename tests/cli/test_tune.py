"""`etude tune` and `etude evolve`: which study their options stand for. None is carried out."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from etude import Linear, cli
from etude.tuning import ASHA, PBT, Choice, Log, MedianStopping, ProcessExecutor, RayExecutor, Uniform
from etude.tuning.evolution import ArchitectureLimits


@pytest.fixture
def made(monkeypatch, tmp_path):
    """The arguments of every study that is made."""
    calls = []

    class Made(Exception):
        pass

    class MadeUpStudy:
        def __init__(self, *arguments, **options):
            calls.append((arguments, options))
            raise Made

        @classmethod
        def load(cls, folder, **options):
            calls.append(((folder,), options))
            raise Made

    def tune(line, command="tune"):
        with pytest.raises(Made):
            cli.main([command, *line.split()])
        return calls[-1]

    monkeypatch.setattr("etude.tuning.Study", MadeUpStudy)
    monkeypatch.setattr("etude.cli.evolve.Evolution", MadeUpStudy)
    monkeypatch.chdir(tmp_path)
    return tune


def test_the_options_stand_for_a_space(made):
    (algorithm, env, space), options = made(
        "ppo CartPole-v1 --grid learning-rate 0.01 0.001:0 --grid network.widths (64,64) (8,) --uniform gamma 0.9 1 "
        "--log minibatch-size 8 64 --choice epochs 4 10 --set.clip-range 0.3"
    )
    assert (algorithm, env) == ("ppo", "CartPole-v1")
    assert space == {
        "learning_rate": [0.01, Linear(0.001, 0.0)], "network.widths": [(64, 64), (8,)], "gamma": Uniform(0.9, 1),
        "minibatch_size": Log(8, 64), "epochs": Choice((4, 10)),
    }  # fmt: skip
    assert options["config"].clip_range == 0.3 and options["scheduler"] is None and options["jobs"] == 1


def test_presets_and_defaults_stay_where_nothing_is_set(made):
    _, options = made("ppo CartPole-v1 --grid gamma 0.9")
    assert options["config"] is None and options["steps"] > 0 and options["seeds"] == (0,)


@pytest.mark.parametrize(
    ("line", "scheduler"),
    [
        ("--scheduler asha --min-steps 100 --reduction 4", ASHA(100, 4)),
        ("--scheduler median --every 50", MedianStopping(50)),
        ("--scheduler pbt", PBT()),
    ],
)
def test_schedulers_by_name(made, line, scheduler):
    assert made(f"ppo CartPole-v1 --grid gamma 0.9 1.0 {line}")[1]["scheduler"] == scheduler


def test_jobs_and_resuming(made):
    executor = made("dqn CartPole-v1 --grid gamma 0.9 --jobs 3 --devices cpu")[1]["jobs"]
    assert isinstance(executor, ProcessExecutor) and (executor.jobs, executor.devices) == (3, ("cpu",))
    (folder,), options = made("--resume here --jobs 2 --trust")
    assert str(folder) == "here" and options["trust"] and options["jobs"].jobs == 2


@pytest.mark.parametrize(
    ("line", "place"),
    [("--jobs 8 --ray node:6379", (8, "node:6379")), ("--ray --jobs 2", (2, "local")), ("--ray=auto", (1, "auto"))],
)
@pytest.mark.parametrize("command", ["tune", "evolve"])
def test_trials_and_members_run_in_ray_actors(made, command, line, place):
    space = "--grid gamma 0.9 " if command == "tune" else ""
    executor = made(f"dqn CartPole-v1 {space}{line}", command)[1]["jobs"]
    assert isinstance(executor, RayExecutor) and (executor.jobs, executor.address) == place
    if command == "tune":
        assert isinstance(made(f"--resume here {line}")[1]["jobs"], RayExecutor)


def test_an_evolution_runs_in_worker_processes_or_here(made):
    assert made("dqn CartPole-v1 --jobs 3", "evolve")[1]["jobs"].jobs == 3
    assert made("dqn CartPole-v1", "evolve")[1]["jobs"] == 1


def test_an_evolution_takes_what_trials_take(made):
    (algorithm, env), options = made(
        "cql CartPole-v1 --data demos.h5 --workers 2 --envs 4 --frame-stack 2 --wrapper a:B --wrapper c:D "
        "--env-arg x=1 --network mlp --optimizer sgd --set.network.widths 8 8 --jobs 2 --devices cpu "
        "--mutations.step 0.8 --mutations.activations tanh relu --mutations.network.units 4 256 --every 10",
        "evolve",
    )
    assert (algorithm, env) == ("cql", "CartPole-v1")
    assert (options["data"], options["workers"], options["environments"], options["frame_stack"]) == (
        "demos.h5",
        2,
        4,
        2,
    )
    assert (options["wrappers"], options["env_args"]) == (("a:B", "c:D"), {"x": 1})
    assert type(options["config"].optimizer).__name__ == "SGD" and options["config"].network.widths == (8, 8)
    assert options["jobs"].devices == ("cpu",)
    mutations = options["mutations"]
    assert (mutations.step, mutations.activations) == (0.8, ("tanh", "relu"))
    assert mutations.network == ArchitectureLimits(units=(4, 256))


def test_an_evolution_has_the_presets_hyperparameters_and_steps_unless_it_is_given_others(made):
    _, options = made("ppo CartPole-v1", "evolve")
    assert not {"config", "steps", "data", "wrappers"} & options.keys()
    assert made("ppo CartPole-v1 --steps 100", "evolve")[1]["steps"] == 100


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("ppo CartPole-v1", "Nothing to search"),
        ("ppo CartPole-v1 --grid gamma", "at least one value"),
        ("ppo CartPole-v1 --grid gamma 0.9 --log gamma 0.9 1", "gamma is given twice"),
        ("ppo CartPole-v1 --uniform gamma a 1", "'a' is no number"),
        ("ppo CartPole-v1 --grid learning-rate x", "'x' is no schedule"),
        ("ppo CartPole-v1 --grid gama 0.9", "did you mean gamma"),
        ("ppo CartPole-v1 --grid gamma 0.9 --resume x", "goes without"),
        ("ppo", "and an environment, before its options, or --resume FOLDER alone; got ppo"),
        ("--jobs 2", "or --resume FOLDER"),
        ("--resume x --seed 5", "leave --seed out"),
        ("--resume x", "There is no study in x"),
        ("ppo CartPole-v1 --grid gamma 0.9 --ray --devices cpu", "Leave one of the two out"),
    ],
)
def test_what_cannot_be_tuned_is_explained(line, message, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["tune", *line.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("scores", "code", "said"), [((1.0,), 0, "etude evaluate 'a study/trial-0000'"), ((), 1, "evaluated: it diverged")]
)
def test_a_quiet_search_says_what_it_found_or_why_it_found_nothing(scores, code, said, capsys, monkeypatch):
    class Carried:
        trials = (SimpleNamespace(scores=scores, reason="it diverged"),)
        best = SimpleNamespace(directories=["a study/trial-0000"])
        finished, run, write_results = True, staticmethod(lambda: None), staticmethod(list)
        __enter__, __exit__ = (lambda self: self), (lambda *_: None)

    monkeypatch.setattr("etude.tuning.Study", lambda *_, **__: Carried())
    assert cli.main(["tune", "ppo", "CartPole-v1", "--grid", "gamma", "0.9", "-q"]) == code
    assert said in capsys.readouterr().out
