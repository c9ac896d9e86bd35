"""Every path, name, option and metric that a page names exists in the code."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import re
import typing

import gymnasium
import numpy as np
import pytest
from written import PAGES, ROOT, code_spans, name_of, quoted, section, table

from etude import cli, networks
from etude.algorithms import ALGORITHMS
from etude.base import events
from etude.base.data import EpisodeEnd, Estimate
from etude.estimation.estimators import METHODS, SIMULATION
from etude.optimizers import OPTIMIZERS
from etude.report.records import MetricsRecorder

each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
FOLDERS = ("benchmarks", "docs", "etude", "tests")
PATH = re.compile(rf"(?<![\w/.:$~-])(?:{'|'.join(FOLDERS)})/[\w/.*<>-]*[\w*>]")
MODULE = re.compile(r"(?<![\w./])etude(?:\.\w+)+(?![\w/:])")
OPTION = re.compile(r"--[a-z][\w.-]*")
METRIC = re.compile(r"(?<![\w/])(?:rollout|eval|estimate|train|time)/[\w<>/.]*[\w>]")
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "etude").rglob("*.py"))
KEYWORDS = set(re.findall(r"\b(\w+)=", SOURCE))
EVENTS = {
    events.Started: (1, {}),
    events.Collected: (2_000, (EpisodeEnd(0, 0, 9, 1.0, False, {"<agent>": 1.0}),), 0.1, {"<metric>": np.ones(1)}),
    events.Learned: (2_000, 1, {"<loss>": 1.0}, {"<metric>": 1.0}, 0.1),
    events.Evaluated: (2_000, (1.0,), (9,), True, 0, {"<agent>": (1.0,)}),
    events.Estimated: (2_000, {"<method>": Estimate("<method>", 1.0, 0.5, 2.0, 1.0, 1.0, 3.0, 1.0)}, ("why",)),
    events.Adjusted: (2_000, "<hyperparameter>", 0.9, 0.99, "why"),
    events.Sampled: (2_000, ("text",), (1.0,)),
    events.Warned: (2_000, "what"),
    events.WorkerReplaced: (2_000, 1, (2, 3), "why"),
    events.Saving: (2_000, "last"),
    events.Saved: (2_000, "path", "last"),
    events.Finished: (2_000, "steps", 1.0, {}),
}


def existing_paths(text):
    """(paths that exist, paths that do not) of those that a text names; `*`, `<name>` and NAME stand for any name, and
    what Gymnasium has registered is no path."""
    found = {path.rstrip(".") for path in PATH.findall(text)} - set(gymnasium.registry)
    patterns = {path: re.sub(r"<\w+>|NAME", "*", path) for path in found}
    exist = {path for path, pattern in patterns.items() if any(ROOT.glob(pattern))}
    return exist, found - exist


@each_page
def test_every_path_that_a_page_names_exists(page):
    assert existing_paths(page.read_text(encoding="utf-8"))[1] == set()


def test_a_path_that_does_not_exist_is_noticed():
    text = "as in `etude/no_such_file.py`, in etude/agent.py, in `benchmarks/*.json` and ~/.local/etude/key"
    assert existing_paths(text) == ({"etude/agent.py", "benchmarks/*.json"}, {"etude/no_such_file.py"})


def exists(name):
    """Whether `etude.a.b` names a module, or something that the longest module in it has. Frameworks stay unloaded."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        path = ROOT.joinpath(*parts[:count])
        file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if file.is_file():
            return count == len(parts) or _has(file, ".".join(parts[:count]), parts[count:])
    return False


def _has(file, module, names):
    if {"engines", "examples"} & set(module.split(".")):  # they import a framework
        return re.search(rf"\b{names[0]}\b", file.read_text(encoding="utf-8")) is not None
    found = importlib.import_module(module)
    for name in names:
        if not hasattr(found, name):
            return False
        found = getattr(found, name)
    return True


@each_page
def test_every_name_of_the_package_that_a_page_uses_exists(page):
    names = {name for span in code_spans(page) for name in MODULE.findall(span)}
    names |= set(re.findall(r"^::: ([\w.]+)", page.read_text(encoding="utf-8"), re.MULTILINE))  # of the reference
    assert {name for name in names if not exists(name)} == set()


def test_a_name_that_does_not_exist_is_noticed():
    assert exists("etude.report.Progress") and exists("etude.examples.cart_pole.WithoutVelocities")
    assert not any(map(exists, ("etude.DQNConfig", "etude.report.Progres", "etude.nothing.at_all")))


def options_of(kind, prefix="--"):
    """The options that tyro makes of a dataclass's fields, and of the dataclasses in them."""
    found = set()
    for field in dataclasses.fields(kind):
        name = field.name.replace("_", "-")
        found |= {f"{prefix}{name}", f"{prefix}no-{name}"}
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if dataclasses.is_dataclass(default):
            found |= options_of(type(default), f"{prefix}{name}.")
    return found


@functools.cache
def known_options():
    """The options of every command of `etude`, the hyperparameters of every algorithm included."""
    found = {"--debug", "--help", "--version", "--set", "--set.NAME"}
    for name in {place.partition(":")[0] for place, _ in cli.COMMANDS.values()}:
        module = importlib.import_module(name)
        for kind in vars(module).values():
            if isinstance(kind, type) and dataclasses.is_dataclass(kind) and kind.__module__ == name:
                found |= options_of(kind)
    for _, config in ALGORITHMS.values():
        found |= options_of(config, "--set.")
    for spec in (networks.Mlp, networks.Conv, networks.Recurrent, networks.Transformer):
        found |= options_of(spec, "--set.network.")
    for optimizer in OPTIMIZERS.values():
        found |= options_of(optimizer, "--set.optimizer.")
    return found


def unknown_options(span):
    """The options in a piece of code that do not exist; those of other programs are not looked at."""
    words = span.split()
    options = {option.rstrip(".") for option in OPTION.findall(span)}
    if len(words) > 1 and words[0] == "python" and (ROOT / words[1]).is_file():
        source = (ROOT / words[1]).read_text(encoding="utf-8")
        return {option for option in options if f'"{option}"' not in source}
    return options - known_options() if words[0] == "etude" or words[0].startswith("--") else set()


@each_page
def test_every_option_that_a_page_names_exists(page):
    assert {option for span in code_spans(page) for option in unknown_options(span)} == set()


def test_an_option_that_does_not_exist_is_noticed():
    assert unknown_options("--set.network.no-dueling") == unknown_options("--set.*") == set()
    assert unknown_options("etude train dqn CartPole-v1 --sed 1 --set.lerning-rate 1") == {
        "--sed",
        "--set.lerning-rate",
    }
    assert unknown_options("python benchmarks/learning.py --only sac/ --sed 1") == {"--sed"}
    assert unknown_options("tensorboard --logdir runs") == set()


def recorded(emitted):
    """The keys of the records of these events."""
    recorder = MetricsRecorder(every=1_000)
    ordered = [kind for kind in EVENTS if kind in emitted]
    return {key for kind in ordered for record in recorder(kind(*EVENTS[kind])) for key in record}


@functools.cache
def emitted_events():
    """The events that something in the package makes."""
    return {kind for kind in EVENTS if re.search(rf"(?<!class )\b{kind.__name__}\(", SOURCE)}


def exists_as_metric(name, keys):
    """Whether a record has this name, or a loss logs it: by name in the code, or as the norm of a loss's gradient."""
    if name in keys or re.sub(r"/\w+$", "/<agent>", name) in keys:
        return True
    if re.sub(rf"^estimate/({'|'.join([*METHODS, SIMULATION])})", "estimate/<method>", name) in keys:
        return True
    kind, _, own = name.partition("/")
    own = re.sub(
        r"_gradient_(norm|clipped)$|_(dormant|effective_rank|weight_norm)$|(?<=actor)_(kl|step_size)$", "", own
    )
    own = own.rpartition(".")[2]  # after the name of a policy
    named = own in KEYWORDS or f'"{own}"' in SOURCE or f"'{own}'" in SOURCE
    return kind == "train" and ("<" in own or named)


@each_page
def test_every_metric_that_a_page_names_exists(page):
    keys = recorded(emitted_events())
    names = {name for span in code_spans(page) for name in METRIC.findall(span)} - custom_metrics(page)
    assert {name for name in names if not exists_as_metric(name, keys)} == set()


def custom_metrics(page):
    """The names in records of the metrics and the numbers of `info` that the code of a page names."""
    text = page.read_text(encoding="utf-8")
    lists = re.findall(r"keep_info=[\[(]([^\])]*)[\])]", text)
    kept = [name for names in lists for name in re.findall(r'"(\w+)"', names)]
    own = [*kept, *re.findall(r'\.metric\("(\w+)"', text)]
    return {f"rollout/{name}_{kind}" for name in own for kind in ("mean", "min", "max")}


def test_a_metric_that_does_not_exist_is_noticed():
    keys = recorded(emitted_events())
    assert exists_as_metric("train/q_value", keys) and exists_as_metric("train/critic_gradient_norm", keys)
    assert not exists_as_metric("train/no_such_loss", keys) and not exists_as_metric("rollout/mean", keys)


def test_the_page_on_metrics_defines_every_key_of_a_record_and_no_other():
    page = ROOT / "docs" / "metrics.md"
    charts = {name for row in table(page.read_text(encoding="utf-8")) for name in quoted(row[0])}
    others = {name for row in table(section(page, "Records that are not charts")) for name in quoted(row[0])}
    by_loss = {name for name in charts if re.search(r"<(loss|layer)>_gradient|<network>_", name)}
    assert (charts - by_loss) | others | {"step"} == recorded(emitted_events())


def test_every_event_is_described_here():
    assert set(EVENTS) == set(typing.get_args(events.Event))


@pytest.mark.parametrize(
    ("heading", "attribute"), [("What `act` returns", "acts_by"), ("What a batch holds", "learns_from")]
)
def test_the_page_on_agents_defines_every_value_of_a_class_attribute(heading, attribute):
    rows = table(section(ROOT / "docs" / "agent.md", heading))
    values = {getattr(kind, attribute) for kind, _ in ALGORITHMS.values()}
    assert {quoted(row[0])[0].strip('"') for row in rows} == values


DENIALS = {
    "images": "image",
    "MultiDiscrete": "MultiDiscrete",
    "MultiBinary": "MultiBinary",
    "action masks": "action mask",
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_page_of_an_algorithm_denies_what_it_takes(algorithm):
    text = (ROOT / "docs" / "algorithms" / f"{algorithm}.md").read_text(encoding="utf-8")
    denied = " ".join(re.findall(r"Not (?:there|supported): .*?(?:\.\n|\n\n)", text, re.DOTALL))
    for word in (word for word in DENIALS if word in denied):
        assert verdict(algorithm, DENIALS[word]) == "no", f"{word}: {denied}"


def verdict(algorithm, column):
    """What the tables of "Which algorithm?" say of an algorithm."""
    page = ROOT / "docs" / "which-algorithm.md"
    for heading in ("Actions", "Observations", "Several agents"):
        text = section(page, heading)
        head = [cell.strip() for cell in text[text.index("|") :].splitlines()[0].strip("|").split(" | ")]
        for row in table(text):
            if f"/{algorithm}.md" in row[0] and column in head:
                return row[head.index(column)]
    return "no"
