"""What a study may search, and where it is kept."""

from __future__ import annotations

import errno
import json
from types import SimpleNamespace

import numpy as np
import pytest
from study_worlds import TINY

from etude import Conv, Linear, Mlp
from etude.base.errors import CheckpointError, ConfigError
from etude.tuning import Choice, Genome, Log, RandomSearch, Space, StudyPlan, Uniform
from etude.tuning.journal import Journal
from etude.tuning.results import Result, mean_interval, pictures
from etude.tuning.space import space_given
from etude.tuning.trial import StudyState, evaluate_every, genome_from_json


def test_a_grid_is_every_combination_in_order():
    space = Space(TINY, {"gamma": [0.9, 0.99], "network.widths": [[8], [8, 8]]})
    assert space.is_grid and [tuple(point.values()) for point in space.grid()] == [
        (0.9, (8,)), (0.9, (8, 8)), (0.99, (8,)), (0.99, (8, 8)),
    ]  # fmt: skip
    assert space.config(space.grid()[1]).network == Mlp((8, 8))


def test_draws_stay_within_their_intervals_and_are_whole_where_the_field_is():
    space = Space(TINY, {"learning_rate": Log(1e-4, 1e-2), "gamma": Uniform(0.9, 1), "minibatch_size": Log(8, 64)})
    rng = np.random.default_rng(0)
    drawn = [space.draw(rng) for _ in range(300)]
    rates = np.log10([each["learning_rate"] for each in drawn])
    assert rates.min() >= -4 and rates.max() <= -2 and abs(rates.mean() + 3) < 0.1
    assert all(0.9 <= each["gamma"] <= 1 and type(each["minibatch_size"]) is int for each in drawn)


def test_a_random_search_repeats_by_its_seed_and_number():
    space, plan = Space(TINY, {"gamma": Uniform(0.9, 1), "epochs": Choice([1, 2])}), StudyPlan(10, 10, 3, seed=4)
    found = [RandomSearch().propose(number, StudyState(plan, space, [])) for number in (0, 1, 0)]
    assert found[0] == found[2] != found[1]


def test_a_space_and_a_genome_come_back_from_their_plain_data():
    space = Space(TINY, {"learning_rate": [Linear(0.1, 0.0), 0.1], "network": Choice([Mlp((2,)), Conv()])})
    again = Space(TINY, space_given(json.loads(json.dumps(space.to_json()))))
    assert again.domains == space.domains and again.is_grid == space.is_grid
    genome = Genome("ppo", space.config({"learning_rate": Linear(0.1, 0.0)}), 7)
    assert genome_from_json(json.loads(json.dumps(genome.to_json())), TINY) == genome
    assert genome_from_json(genome.to_json(), TINY).config.network is TINY.network
    with pytest.raises(CheckpointError, match="genome of a trial"):
        genome_from_json({"algorithm": "ppo"}, TINY)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"gamma": []}, "at least one value"),
        ({"gamma": 0.9}, "expected a list of values"),
        ({"network.width": [(3,)]}, "did you mean widths"),
        ({"gamma.x": [1]}, "takes no x"),
        ({"minibatch_size": Uniform(0, 64)}, "minibatch_size = 0"),
        ({"gamma": list(range(2)) * 6000}, "10,000 at most"),
    ],
)
def test_spaces_that_cannot_be_searched_are_refused(space, message):
    with pytest.raises(ConfigError, match=message):
        Space(TINY, space).grid()


@pytest.mark.parametrize("make", [lambda: Log(0, 1), lambda: Uniform(2, 1), lambda: Log(1, "2"), lambda: Choice([])])
def test_intervals_without_an_inside_are_refused(make):
    with pytest.raises(ConfigError, match="expected"):
        make()


def test_the_number_of_evaluations_divides_the_steps():
    assert [evaluate_every(steps) for steps in (100_000, 50, 7, 1)] == [5_000, 5, 7, 1]


def test_an_interval_covers_the_mean_and_needs_finite_values():
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0])
    assert 1.0 <= low < 2.5 < high <= 4.0
    assert mean_interval([1.0, float("-inf")]) == (float("-inf"), float("-inf"))


@pytest.mark.parametrize(("gammas", "found"), [([0.9, 0.99], 1), ([0.9, 0.9, 0.99, 0.99], 2)])
def test_pictures_are_those_in_which_there_is_something_to_show(gammas, found):
    """The importance of a hyperparameter needs several scores for some value: two configurations have none."""
    trials = (SimpleNamespace(scores=[1.0]),)
    results = [
        Result(i, {"gamma": gamma}, None, float(i), 0.0, 1.0, 10, "finished", trials, ())
        for i, gamma in enumerate(gammas)
    ]
    assert len(pictures(results, "study")) == found


def full(descriptor):
    """The disk is full."""
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_journal_is_locked_appended_to_and_cut_back_to_whole_lines(tmp_path, monkeypatch):
    journal = Journal(tmp_path)
    journal.append({"study": {}})
    with pytest.raises(ConfigError, match="Another process"):
        Journal(tmp_path)
    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(CheckpointError, match="No space left"):
            journal.append({"lost": 1})
    journal.close()
    with pytest.raises(ConfigError, match="is closed"):
        journal.append({})
    with (tmp_path / "study.jsonl").open("ab") as file:
        file.write(b'{"half')
    journal = Journal(tmp_path)
    journal.append({"trial": 0})
    journal.close()
    assert (tmp_path / "study.jsonl").read_text() == '{"study": {}}\n{"trial": 0}\n'
    (tmp_path / "study.jsonl").write_text("[1]\n{}\n")
    with pytest.raises(CheckpointError, match="line 1 is damaged"):
        Journal(tmp_path)
