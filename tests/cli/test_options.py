from dataclasses import dataclass

import pytest

from etude import cli
from etude.algorithms import ALGORITHMS
from etude.base.schedules import Linear
from etude.cli.options import parse, schedule, schedule_text, split_positionals
from etude.cli.train import with_hyperparameters
from etude.networks import ActorCritic, Conv, Mlp, Transformer, actor_of, layers_of
from etude.presets import PRESETS, lookup


@dataclass(frozen=True)
class Example:
    """An example."""

    rate: float | Linear = 0.5  # how fast
    steps: int = 3


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.001", 0.001),
        ("1e-3:0", Linear(1e-3, 0.0)),
        ("1:0.05:0.1", Linear(1.0, 0.05, 0.1)),
        ("1:0.02@10000", Linear(1.0, 0.02, steps=10_000)),
        ("0:1,100:0.1", Linear(1.0, 0.1, steps=100)),
        ("0:1,10000:0.1,50000:0.02", Linear.through([(0, 1.0), (10_000, 0.1), (50_000, 0.02)])),
    ],
)
def test_a_schedule_is_written_start_end_fraction(text, value):
    assert schedule(text) == value
    assert schedule(schedule_text(value)) == value
    assert parse(Example, ["--rate", text], "try").rate == value


def test_what_is_no_schedule_is_refused_with_an_example(capsys):
    for text in ("fast", "1:2:3:4", "", "1:0.5:0.1@100", "1@10", "1:0@1.5", "5:1,10:0", "0:1,0:2", "0:1,x:2"):
        with pytest.raises(SystemExit) as exit:
            parse(Example, ["--rate", text], "try")
        assert exit.value.code == 2
    assert "1:0.05:0.1" in capsys.readouterr().err


def test_positionals_stand_before_the_options():
    assert split_positionals(["dqn", "CartPole-v1", "--seed", "1"]) == (["dqn", "CartPole-v1"], ["--seed", "1"])
    assert split_positionals(["--seed", "1", "dqn"]) == ([], ["--seed", "1", "dqn"])


@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_every_hyperparameter_of_an_algorithm_is_an_option_with_its_default(name):
    default = ALGORITHMS[name][1]()
    options = parse(with_hyperparameters(name), [], "try")
    assert options.set == default
    network = "network.actor" if isinstance(default.network, ActorCritic) else "network"
    network += ".before" if isinstance(default.network, Transformer) else ""
    one = hasattr(actor_of(default.network), "width") and not isinstance(default.network, Transformer)
    field, *given = ["width", "8"] if one else ["widths", "8", "9"]
    changed = parse(
        with_hyperparameters(name), ["--set.learning-rate", "0.5", f"--set.{network}.{field}", *given], "try"
    ).set
    spec = actor_of(changed.network)
    found = getattr(spec if hasattr(spec, field) else layers_of(spec), field)
    assert (changed.learning_rate, found) == (0.5, 8 if one else (8, 9))
    assert type(changed) is type(default)


@pytest.mark.parametrize(("name", "env"), [(name, env) for name, envs in PRESETS.items() for env in envs])
def test_the_defaults_for_a_known_environment_are_its_preset(name, env):
    options = parse(with_hyperparameters(name, env), [], "try")
    preset = lookup(name, env)
    assert options.steps == preset.steps
    assert {field: getattr(options.set, field) for field in preset.config} == preset.config


def test_another_kind_of_network_brings_its_own_options():
    assert isinstance(parse(with_hyperparameters("dqn", "CartPole-v1", "mlp"), [], "try").set.network, Mlp)
    options = parse(with_hyperparameters("dqn", "CartPole-v1", "conv"), ["--set.network.widths", "32"], "try")
    assert options.set.network == Conv(widths=(32,))


def test_a_flag_that_is_given_a_value_is_answered_with_how_it_is_written(capsys):
    for given in ("--set.double False", "--set.double=true", "--fused True"):
        assert cli.main(["train", "dqn", "CartPole-v1", *given.split()]) == 2
        assert "take no value: --set.double for True, --set.no-double for False" in capsys.readouterr().err
