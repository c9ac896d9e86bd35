"""What a study shows: a table while it runs, and pictures of what was found."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from matplotlib import colormaps
from rich.console import Console

from etude.base.errors import ConfigError
from etude.report import EvolutionTable, StudyTable, draw_importance, draw_parallel_coordinates
from etude.report.studies import MemberCurve, draw_evolution, draw_lineage, importance


@dataclass
class MadeUpStudy:
    """What the live table reads of a study."""

    trials: list[Any] = field(default_factory=list)
    notes: list[Any] = field(default_factory=list)
    busy: bool = True
    over: bool = False
    space: Any = field(default_factory=lambda: SimpleNamespace(values=lambda config: {"learning_rate": config}))

    def table(self):
        return ["rank", "score"], [[str(i), str(10 - i)] for i in range(1, 21)]

    def summary(self):
        return "3 of 5 configurations"


def trial(number: int, status: str, reason: str = "") -> Any:
    return SimpleNamespace(
        number=number, status=status, reason=reason, over=True, step=100, score=lambda: 7.0,
        genome=SimpleNamespace(config=0.01),
    )  # fmt: skip


def shown(study: MadeUpStudy, terminal: bool, kind: type[StudyTable] = StudyTable) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=100, height=40)
    table = kind(console)
    table(study)
    table(study)
    table.close()
    table.close()
    return console.file.getvalue()


def test_a_terminal_shows_the_best_rows_and_how_many_there_are_more():
    text = shown(MadeUpStudy(), terminal=True)
    assert "3 of 5 configurations; 8 more below" in text and "rank" in text


def test_the_terminal_is_given_back_when_the_study_is_over():
    hidden, shown_again = "\x1b[?25l", "\x1b[?25h"
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=40)
    table = StudyTable(console)
    table(MadeUpStudy())
    assert hidden in console.file.getvalue() and shown_again not in console.file.getvalue()
    table(MadeUpStudy(busy=False, over=True))
    assert shown_again in console.file.getvalue()


def test_other_outputs_get_a_line_for_each_trial_that_ends_and_for_each_warning_once():
    study = MadeUpStudy([trial(0, "finished"), trial(1, "failed", "Loss is NaN [1]")], [(1, "a [b] warning")])
    lines = shown(study, terminal=False).splitlines()
    assert lines == [
        "trial 1: a [b] warning",
        "trial 0 finished at step 100: 7, learning_rate 0.01",
        "trial 1 failed at step 100: 7, learning_rate 0.01 (Loss is NaN [1])",
    ]


@dataclass
class MadeUpEvolution(MadeUpStudy):
    """What the live table reads of an evolution besides."""

    generation: int = 0
    state: Any = field(default_factory=lambda: SimpleNamespace(in_flight=False))


def test_other_outputs_get_the_population_of_every_complete_generation_once():
    assert shown(MadeUpEvolution(), False, EvolutionTable) == ""
    assert shown(MadeUpEvolution(generation=1, state=SimpleNamespace(in_flight=True)), False, EvolutionTable) == ""
    text = shown(MadeUpEvolution([trial(0, "failed", "it does")], generation=1), False, EvolutionTable)
    assert text.startswith("member 0 failed at step 100: it does\n3 of 5 configurations\n")
    assert text.count("rank") == 1
    members = [line.split()[0] for line in text.splitlines()[3:] if line]
    assert members == [str(number) for number in range(1, 21)]


def test_a_terminal_shows_the_present_generation_below_the_complete_ones():
    text = shown(MadeUpEvolution(generation=1), True, EvolutionTable)
    assert text.count("rank") > 1


def test_importance_is_the_share_of_variance_between_the_values_of_one_hyperparameter():
    values = {"decides": [1, 1, 2, 2], "does_not": ["a", "b", "a", "b"], "is_constant": [0, 0, 0, 0]}
    found = importance(values, [1.0, 1.0, 5.0, 5.0])
    assert found["decides"] == 1.0 and found["does_not"] == 0.0 and found["is_constant"] != found["is_constant"]


def test_importance_is_adjusted_for_the_number_of_groups():
    # Between groups 4 of 5 (means 1.5 and 3.5, n = 4), within 1: 1 - (1 / 5) * 3 / 2.
    assert importance({"a": [0, 0, 1, 1]}, [1.0, 2.0, 3.0, 4.0])["a"] == pytest.approx(0.7)


def test_pictures_are_drawn_also_of_words_and_of_trials_that_failed(tmp_path):
    values = {"learning_rate": [1e-5, 1e-3, 1e-1], "widths": [(64, 64), (8,), (8,)], "flag": [True, False, True]}
    coordinates = draw_parallel_coordinates(values, [1.0, 2.0, float("-inf")], tmp_path / "parallel.png", "dqn-Pole")
    assert coordinates.axes[0].get_title() == "dqn-Pole: 3 configurations, coloured by score"
    names = [label.get_text() for label in coordinates.axes[0].get_xticklabels()]
    assert names == ["learning_rate\n(logarithmic)", "widths", "flag", "score"]
    shares = draw_importance({"a": 0.5, "b": float("nan")}, tmp_path / "importance.png", "dqn-Pole", 3)
    assert shares.axes[0].get_title() == "dqn-Pole\nimportance, from only 3 configurations"
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("parallel.png", "importance.png"))
    with pytest.raises(ConfigError, match="Run it first"):
        draw_parallel_coordinates({"a": []}, [], tmp_path / "none.png")
    with pytest.raises(ConfigError, match="more configurations"):
        draw_importance({"a": float("nan")}, tmp_path / "none.png")


def test_axes_name_the_values_that_there_are():
    values = {"few": [4, 10, 4], "many": list(range(3))}
    figure = draw_parallel_coordinates(values, [1.0, 2.0, 3.0])
    named = [text.get_text() for text in figure.axes[0].texts]
    assert named == ["4", "10", "0", "1", "2", "1", "2", "3"]
    figure = draw_parallel_coordinates({"many": list(range(100))}, list(range(100)))
    assert [text.get_text() for text in figure.axes[0].texts] == ["0", "49.5", "99"] * 2


# -- an evolution ------------------------------------------------------------------------------------------------------


def members(count: int, generations: int, fitness=lambda number, step: float(number * step)) -> list[MemberCurve]:
    return [
        MemberCurve(
            i, None if i < 4 else i - 4, 0, "" if i < 4 else "batch_size 32 to 64",
            [(100 * g, 400 * g + i, fitness(i, 100 * g)) for g in range(1, generations + 1)],
            {"batch_size": [32, 64, 128, 65][i % 4], "learning_rate": 10.0 ** -(2 + i % 4), "gamma": 0.99}, 64,
        )
        for i in range(count)
    ]  # fmt: skip


def test_the_fittest_members_have_names_and_whole_numbers_whole_ticks():
    figure = draw_evolution(members(12, 3))
    figure.draw_without_rendering()
    named = [text.get_text() for text in figure.legends[0].get_texts()]
    assert named == [*(f"member {i}" for i in range(11, 5, -1)), "6 others", "highest so far"]
    assert [axes.get_title() for axes in figure.axes] == ["fitness of the members", "batch_size", "learning_rate"]
    batch_sizes, rates = figure.axes[1:]
    assert rates.get_ylabel() == batch_sizes.get_ylabel() == "logarithmic"
    assert all(float(tick.get_text()).is_integer() for tick in batch_sizes.get_yticklabels() if tick.get_text())


def test_after_one_generation_every_panel_shows_its_members():
    for axes in draw_evolution(members(4, 1)).axes:
        assert len(axes.lines) >= 4 and all(line.get_marker() == "o" for line in axes.lines[:4])


def test_members_of_equal_fitness_have_the_colour_that_the_bar_gives_it():
    figure = draw_lineage(members(8, 2, lambda number, step: 9.0))
    lines, bar = figure.axes
    colours = {line.get_color() for line in lines.lines if not isinstance(line.get_color(), str)}
    assert colours == {tuple(colormaps["viridis"](0.5))}
    assert bar.get_ylim() == (8.0, 10.0) and bar.get_yticks().tolist() == [9.0]
