"""docs/coming-from-note-rl.md lists every documented name, and what it says exists does."""

import dataclasses
import importlib
import inspect
import re

import pytest
from written import ROOT, quoted, section, table

import etude
import etude.explore
import etude.solo
import etude.tuning
from etude.base.errors import ConfigError
from etude.solo.callbacks import HOOKS
from etude.solo.settings import Options, Settings

PAGE = ROOT / "docs" / "coming-from-note-rl.md"
POLICIES = (
    "SoftmaxPolicy EpsGreedyQPolicy AdaptiveEpsGreedyPolicy GreedyQPolicy BoltzmannQPolicy MaxBoltzmannQPolicy "
    "BoltzmannGumbelQPolicy GumbelSoftmaxPolicy GaussianWhiteNoiseProcess OrnsteinUhlenbeckProcess"
)
ATTRIBUTES = (
    "env param optimizer loss_list reward_list total_episode time stop_training path save_freq max_save_files "
    "save_param_only save_best_only reward_done_func reward_done_func_ma adjust_func window_size_func"
)
METHODS = (
    "action __call__ update_param save restore save_param restore_param visualize_loss visualize_reward "
    "visualize_reward_loss animate_agent adjust adjust_batch_size adabatch adjust_window_size compute_ess_from_weights"
)
FUNCTIONS = ["save", "restore", "save_param", "restore_param", "assign_param", "LambdaCallback"]
FINDERS = ["LRFinder", "OptFinder", "ParallelFinder"]


def named(heading):
    """The names in the first column of a section's table."""
    return {name for row in table(section(PAGE, heading)) for name in quoted(row[0])}


def test_every_argument_of_set_is_told_and_taken():
    fields = {field.name: field.default for field in dataclasses.fields(Settings)}
    assert named("`set`") == {*fields, "MA"}
    positional = {"policy": None, "noise": None, "pool_size": 10_000, "batch": 64}
    parameters = list(inspect.signature(etude.RL.set).parameters.values())[1:-1]
    assert {parameter.name: parameter.default for parameter in parameters} == positional
    etude.RL().set(**fields, MA=True)
    with pytest.raises(ConfigError, match="set takes no argument polcy; it takes policy, noise, pool_size"):
        etude.RL().set(polcy=None)


def test_every_argument_of_train_is_told_and_taken():
    options = {field.name for field in dataclasses.fields(Options)}
    assert named("`train`") == options | {"train_loss", "optimizer", "episodes"}
    positional = [list(inspect.signature(kind.train).parameters)[1:4] for kind in (etude.RL, etude.RL_pytorch)]
    assert positional == [["train_loss", "optimizer", "episodes"], ["optimizer", "episodes", "third"]]


def test_every_attribute_is_told_and_there():
    assert set(ATTRIBUTES.split()) <= named("Attributes")
    assert [name for name in ATTRIBUTES.split() if not hasattr(etude.RL(), name)] == []


def test_every_method_and_function_is_told_and_there():
    assert {name for name in named("Methods and functions") if not name.startswith("nn.")} == set(METHODS.split())
    assert [name for name in METHODS.split() if not callable(getattr(etude.RL, name, None))] == []
    assert [name for name in FUNCTIONS if not callable(getattr(etude.solo, name, None))] == []


def test_every_hook_is_told():
    assert {name.split("(")[0] for name in quoted(section(PAGE, "Callbacks")) if name.startswith("on_")} == set(HOOKS)


def test_every_policy_and_noise_is_told_and_there():
    assert named("Policies and noises") == set(POLICIES.split())
    assert [name for name in POLICIES.split() if not callable(getattr(etude.explore, name, None))] == []


def test_every_finder_is_listed_and_exists():
    assert named("Finders") == {"AgentFinder", "plot_reward", "plot_reward_change", *FINDERS}
    assert [name for name in FINDERS if not callable(getattr(etude.tuning, name, None))] == []
    find = inspect.signature(etude.tuning.LRFinder.find).parameters
    assert {"train_loss", "pool_network", "strategy", "N", "window_size", "start_lr", "end_lr", "episodes"} <= set(find)


def test_every_example_agent_that_is_told_exists_for_both_frameworks():
    agents = set(re.findall(r"`(\w+)\.([A-Z]\w+)`", "".join(row[1] for row in table(section(PAGE, "Example agents")))))
    assert len(agents) == 8
    for module, name in agents:
        for folder in ("keras_agents", "torch_agents"):
            source = (ROOT / "etude" / "examples" / folder / f"{module}.py").read_text()
            assert f"class {name}(" in source


def test_import_lines_that_are_told_name_what_exists():
    for row in table(section(PAGE, "Imports")):
        for line in quoted(row[1]):
            if found := re.match(r"from (\S+) import (.+)", line):
                path = ROOT / (found[1].replace(".", "/") + ".py")
                names = found[2].split(", ")
                if "examples" in found[1]:  # needs its framework
                    assert all(f"class {name}(" in path.read_text() for name in names)
                else:
                    module = importlib.import_module(found[1])
                    assert all(hasattr(module, name) for name in names)
