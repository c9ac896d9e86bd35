"""The README and the pages in docs/ say what is so: code runs, commands exist, tables are complete."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import inspect
import json
import re
import shlex
import shutil
import sys
import tomllib
import types

import benchmarks_page
import generate
import licences
import measured
import pytest
import usable
from written import PAGES, ROOT, anchors, blocks, links, name_of, quoted, run, section, table

import etude
from etude import cli
from etude.algorithms import ALGORITHMS
from etude.cli import options, train

each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)
each_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS)
WITH_CODE = [page for page in PAGES if any(b.language == "python" and not b.mark for b in blocks(page))]
COMMANDS = [
    pytest.param(line, id=f"{name_of(page)}: {line}")
    for page in PAGES
    for block in blocks(page)
    if block.language in ("bash", "console")
    for line in (part.split("  #")[0].strip() for part in block.text.replace("\\\n", "").splitlines())
    if line
]


@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "tests" / "importing" / "models" / "a2c" / "model.zip", tmp_path)  # of Stable-Baselines3
    namespace: dict = {}
    for block in blocks(page):
        if block.language == "python" and not block.mark:
            run(block, namespace, request.config.getoption("--whole"))


@each_page
def test_every_block_says_its_language_and_which_engine_it_needs(page):
    languages = {
        "python": ("", "torch", "jax", "tensorflow", "ray"),
        "bash": ("",),
        "console": ("",),
        "text": ("",),
        "toml": ("",),
        "js": ("",),
    }
    for block in blocks(page):
        assert block.mark in languages[block.language], f"line {block.line}"
    assert page.read_text().count("\n```") == 2 * len(list(blocks(page)))


@each_page
def test_code_is_at_most_80_columns_wide(page):
    lines = [(block, line) for block in blocks(page) for line in block.text.splitlines()]
    # The site puts a prompt of two columns before a command.
    assert [line for block, line in lines if len(line) > (78 if block.language == "console" else 80)] == []


@each_page
def test_every_column_of_a_table_has_a_heading(page):
    heads = re.findall(r"^(\|.*\|)\n\|[-| ]+\|$", page.read_text(), re.MULTILINE)
    assert [head for head in heads if not all(cell.strip() for cell in head.strip("|").split("|"))] == []


@each_page
def test_a_page_opens_with_a_sentence(page):
    text = re.sub(r"<!--.*?-->", "", page.read_text())
    opening = re.match(r"# .+\n\n+(.+)", text)
    assert opening and not opening[1].startswith(("|", "`" * 3, "!", "#", "-")), opening
    assert "arxiv.org" not in text.split("\n\n")[1], "a page opens with what it is good for, not with a source"


class Parsed(Exception):
    """A command's options were read."""


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_is_one_that_can_be_given(line, monkeypatch):
    program, *arguments = shlex.split(line)
    if program in ("torchrun", "accelerate"):
        program, arguments = _launched(arguments)
    if program == "ray":
        scripts = pytest.importorskip("ray.scripts.scripts")
        scripts.cli.commands[arguments[0]].make_context(arguments[0], arguments[1:])
    elif program == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif program == "python" and arguments[:2] == ["-m", "pytest"]:
        assert (ROOT / arguments[2]).exists() and arguments[3:] in ([], ["--engine", "torch"])
    elif program == "python" and arguments == ["script.py"]:
        pass  # the reader's own
    elif program == "python":
        source = (ROOT / arguments[0]).read_text()
        assert all(f'"{option}"' in source for option in arguments if option.startswith("--"))
    else:
        assert program == "etude"
        _parse(arguments, monkeypatch)


def _launched(arguments):
    """The program that a launcher starts in each process, and its arguments."""
    if arguments[-1] == "script.py":
        return "python", ["script.py"]
    start = arguments.index("-m")
    return arguments[start + 1], arguments[start + 2 :]


def _parse(arguments, monkeypatch):
    """Let the command read its options, and nothing more."""
    module = importlib.import_module(cli.COMMANDS[arguments[0]][0].partition(":")[0])
    parse = train.parse

    def parse_only(*given):
        parse(*given)
        raise Parsed

    for parsing in (module, train, options):  # for the commands that take an algorithm and an environment, or a run
        monkeypatch.setattr(parsing, "parse", parse_only, raising=False)
    with pytest.raises(Parsed):
        cli.main(arguments)


def test_an_option_that_does_not_exist_is_noticed(monkeypatch, capsys):
    with pytest.raises(SystemExit):
        _parse(["train", "dqn", "CartPole-v1", "--set.network.widht", "1"], monkeypatch)


def test_the_command_that_checks_an_environment_runs_as_written(capsys):
    assert cli.main(["check-env", "CartPole-v1"]) == 0


@each_page
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page):
    for target in links(page):
        path, _, anchor = target.partition("#")
        leads_to = (page.parent / path).resolve() if path else page
        assert leads_to.exists(), target
        assert not anchor or anchor in anchors(leads_to), target


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            waiting += [
                (page.parent / target.partition("#")[0]).resolve() for target in links(page) if target[0] != "#"
            ]
    assert reached == set(PAGES)


def test_what_is_installed_without_extras_has_a_licence_without_copyleft():
    declared = {name: licences.licence(name) for name in licences.core()}
    assert {"numpy", "gymnasium", "pillow"} <= set(declared)
    assert {name: text for name, text in declared.items() if licences.COPYLEFT.search(text)} == {}
    assert "not declared" not in declared.values()
    assert licences.COPYLEFT.search(licences.licence("pygame-ce"))


def test_what_is_generated_from_the_code_is_fresh():
    for path, text in generate.pages(measured=False).items():
        assert path.read_text() == text, f"{name_of(path)} is stale: run python docs/generate.py"


def test_the_page_on_algorithms_lists_what_is_refused():
    assert usable.usable().count("| no |") > 0
    rows = {row[0]: row[1:] for row in table(section(ROOT / "docs" / "which-algorithm.md", "Actions"))}
    assert rows["[SAC](algorithms/sac.md)"] == ["tested", "no", "no", "no", "no", "no"]


def test_the_page_of_benchmarks_reads_every_committed_measurement(monkeypatch):
    class Folder(type(ROOT)):
        def __truediv__(self, name):
            asked.add(str(name))
            return ROOT / "benchmarks" / name

    asked = set()
    monkeypatch.setattr(measured, "BENCHMARKS", Folder(ROOT / "benchmarks"))
    benchmarks_page.benchmarks()
    assert {path.name for path in (ROOT / "benchmarks").glob("*.json")} <= asked


def test_the_page_of_benchmarks_reports_what_has_been_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(measured, "BENCHMARKS", tmp_path)
    page = "".join(benchmarks_page.benchmarks().values())
    assert page.count(measured.NOT_MEASURED) == 17 + len(benchmarks_page.SPEED)
    (tmp_path / "acting.json").write_text("{")
    figure = {"median": 5.5, "lowest": 5, "highest": 6, "repeats": 3}
    cells = {f"dqn/CartPole-v1/jax/{seed}": {"return": 100.0 * seed, "steps": 50_000} for seed in (1, 2, 10)}
    found = {"mean": 433.3, "bar": 475, "reached": False}
    learning = {"summary": {"dqn/CartPole-v1/jax": found}, "cells": cells}
    (tmp_path / "learning.json").write_text(json.dumps(learning))
    (tmp_path / "replay.json").write_text(json.dumps({"add": {"etude": figure, "sb3": figure, "wanted": 10}}))
    own = {"summary": {"dqn/pr/torch": {"bar": 475, "reached": 1}}, "cells": {}}
    own["cells"] = {f"dqn/pr/torch/{seed}": {"score": 470.0 + 5 * seed, "steps": 9_000} for seed in (1, 0)}
    (tmp_path / "solo_learning.json").write_text(json.dumps(own))
    cells = {f"maddpg/mpe2:spread/jax/10000/{seed}": {"return": -50.0 - seed} for seed in (1, 2)}
    (tmp_path / "multi_agent.json").write_text(json.dumps({"cells": cells}))
    task = {"algorithm": "dqn", "best": 1, "2": {"return": 0.5, "while_training": 0.25, "steps": 2_000}}
    (tmp_path / "bsuite_tasks.json").write_text(json.dumps({"about": {}, "catch/0": task}))
    reached, missed = {"1": {"seconds": 9.5, "steps": 800}}, {"1": {"seconds": None, "steps": None, "best": 3}}
    apex = {"CartPole-v1": {"dqn": reached, "apex_dqn": missed, "bar": 475}}
    (tmp_path / "apex.json").write_text(json.dumps(apex))
    speed = {"jax": figure, "sb3": figure}
    ratio = {"jax": {"sb3": {"median": 5.25, "lowest": 5, "highest": 6, "repeats": 2, "wanted": 4}}}
    whole = {"environment": "CartPole-v1", "steps": 100_000, "steps_per_second": speed, "times_as_fast": ratio}
    whole["return"] = {"jax": [500.0, 400.0], "sb3": [500.0, 500.0]}
    as_cleanrl = {**whole, "times_as_fast": {"jax": {"cleanrl": {"median": 8.9, "repeats": 1}}}}
    tasks = {"ppo, threads: one": whole, "ppo as CleanRL, threads: one": as_cleanrl}
    summary = {"none": {"solved": 0, "seeds": 5}, "rnd": {"solved": 4, "seeds": 5}}
    (tmp_path / "sparse_rewards.json").write_text(json.dumps({"summary": summary}))
    seeds = {1: (True, 900, 1.4), 2: (True, 1_100, 2.6), 3: (False, None, None), 101: (True, 5, 0.1)}
    cells = {f"bad/ppo/0.1/evolved/{k}": {"reached": r, "steps": n, "seconds": s} for k, (r, n, s) in seeds.items()}
    cells["peers/dqn/CartPole-v1/etude/1"] = {"reached": True, "steps": 7, "seconds": 3.0, "megabytes": 251.4}
    (tmp_path / "evolution.json").write_text(json.dumps({"cells": cells}))
    (tmp_path / "whole_run.json").write_text(json.dumps({"about": {}, **tasks}))
    page = "".join(benchmarks_page.benchmarks().values())
    assert "| PPO, CartPole-v1 | 6 | 5.25 x |  | 8.9 x |" in page
    assert (
        "| PPO | CartPole-v1 | zoo | one | 100,000 | 6 | Stable-Baselines3 5.25 (5 to 6) | etude 450; "
        "Stable-Baselines3 500 |" in page
    )
    assert "| mpe2:spread | maddpg (jax, 10,000 steps) | -51.5 | -51, -52 |" in page
    assert "not? | seeds that find it: none 0 of 5, rnd 4 of 5 | [rewriting](rewriting.md) |" in page
    assert "| ppo | a tenth of the preset's | evolved | 2 of 3 | 1,100 (900 to never) | 3 (1 to never) |" in page
    assert "| dqn | CartPole-v1 | etude | 1 of 1 | 7 (7 to 7) | 3 (3 to 3) | 251 |" in page
    assert "| catch/0 | dqn | 2,000 | 0.5 | 0.25 | 1 |" in page
    assert (
        "| CartPole-v1 | dqn | 9.5 | 800 | 475 |" in page and "| CartPole-v1 | apex_dqn | None | None | 475 |" in page
    )
    assert "| dqn | pr | torch | 470 (9,000), 475 (9,000) | 475 | 1 of 2 |" in page
    assert "| dqn | CartPole-v1 | jax | 50,000 | 433.3 | 100, 200, 1000 | 475 **missed** |" in page
    assert "| case | add |\n" in page and "| etude | 5.5 (5 to 6); goal 10 |\n| sb3 | 5.5 (5 to 6) |" in page


@each_algorithm
def test_every_config_field_is_told_with_its_default(algorithm):
    _, config = ALGORITHMS[algorithm]
    rows = table(section(ROOT / "docs" / "algorithms" / f"{algorithm}.md", "Config"))
    assert all(meaning.strip() for *_, meaning in rows)
    told = {quoted(name)[0]: _value(default) for name, default, _ in rows}
    assert told == {field.name: getattr(config(), field.name) for field in dataclasses.fields(config)}


def _value(cell):
    text = cell.strip("`")
    return eval(text.replace(",", "") if re.fullmatch(r"[\d,.]+", text) else text, _names())


@functools.cache
def _names():
    houses = (etude.networks, etude.algorithms, etude.optimizers, etude)
    return {name: getattr(house, name) for house in houses for name in dir(house)}


def test_every_mistake_that_the_check_finds_is_told_with_its_fix():
    source = (ROOT / "etude" / "envs" / "check.py").read_text()
    names = set(re.findall(r'(?:findings\.add\(|return )"([\w ]+)", ', source)) | {"observation_space", "action_space"}
    rows = table(section(ROOT / "docs" / "environments.md", "Finding mistakes"))
    assert {name for row in rows for name in quoted(row[0])} == names


def test_every_public_name_has_a_docstring_of_its_own():
    for name in etude.__all__:
        described = inspect.getdoc(getattr(etude, name)) or ""
        assert described and not described.startswith(f"{name}("), name


def test_the_page_on_an_index_has_no_link_that_leads_nowhere(monkeypatch):
    builder = types.ModuleType("hatchling.metadata.plugin.interface")
    builder.MetadataHookInterface = object
    monkeypatch.setitem(sys.modules, builder.__name__, builder)
    hook = importlib.import_module("index_page").IndexPage()
    for url in ("", "https://forge.example/etude"):
        hook.root, hook.config, found = ROOT, {"url": url}, {}
        hook.update(found)
        links = re.findall(r"\]\(([^)]+)\)", found["readme"]["text"])
        assert all(link.startswith(("https://", "#")) for link in links), links
        assert all(place.startswith(url) for place in found["urls"].values())
    assert "https://forge.example/etude/raw/main/docs/figures/learning.png" in links and len(found["urls"]) == 4


def test_the_package_says_the_same_version_everywhere_and_holds_its_papers():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == etude.__version__
    assert f"\n## {etude.__version__}" in (ROOT / "CHANGELOG.md").read_text()
    assert all((ROOT / name).is_file() for name in ["README.md", *project["license-files"], "etude/py.typed"])
    assert "Apache License" in (ROOT / "LICENSE").read_text()
