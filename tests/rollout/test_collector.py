import numpy as np
import pytest
from labelled import Adder, Labelled, Native, Noisy
from witness import Witness, assert_same

from etude.base.data import EpisodeEnd
from etude.base.errors import CheckpointError
from etude.rollout import InProcess


def rollout(environments: int = 3, seed: int = 1) -> InProcess:
    return InProcess(Labelled(range(environments)), Adder(), Noisy(), seed)


def test_every_row_is_the_transition_that_its_labels_say_over_many_chunks():
    collected, witness, step = rollout(5), Witness(), 0
    chunks = [(7, None), (1, range(2)), (1, range(2, 5)), (3, None), (1, range(1, 4)), (40, range(5)), (1, range(1))]
    for steps, chosen in [*chunks, (2, None)]:
        part = collected.collect(steps, step, chosen)
        assert part.columns.tolist() == list(chosen or range(5)) and len(part) == steps * len(part.columns)
        step += len(part)
        witness.check(part)
    assert len(witness.seen) == step
    assert witness.restarts == 0


def test_ends_of_episodes_are_reported_with_length_return_and_kind():
    steps = rollout(2).collect(6, 0)
    first, second = steps.episodes[0], steps.episodes[1]
    assert first == EpisodeEnd(0, 0, 2, float(steps.reward[:2, 0].sum()), truncated=False)
    assert second == EpisodeEnd(1, 0, 3, float(steps.reward[:3, 1].sum()), truncated=True)
    assert steps.final_index.tolist()[:2] == [[1, 0], [2, 1]]


def test_a_return_is_summed_over_chunks():
    collected = rollout(1)
    rewards = [collected.collect(1, 0) for _ in range(2)]
    assert rewards[0].episodes == ()
    assert rewards[1].episodes[0].total == float(rewards[0].reward.sum() + rewards[1].reward.sum())


def test_schedules_see_the_environment_steps_of_the_whole_run():
    collected = rollout(3)
    assert collected.collect(3, 100).extras["at"].tolist() == [[100] * 3, [103] * 3, [106] * 3]
    assert collected.collect(2, 109, range(2)).extras["at"].tolist() == [[109] * 2, [111] * 2]


def test_chunks_of_any_length_give_the_same_steps():
    whole, parts = rollout(), rollout()
    together = whole.collect(8, 0)
    for start, stop in [(0, 3), (3, 8)]:
        part = parts.collect(stop - start, 3 * start)
        assert np.array_equal(part.observation, together.observation[start:stop])
        assert np.array_equal(part.action, together.action[start:stop])


def test_noise_belongs_to_the_environment_and_not_to_its_place():
    all_three = rollout(3).collect(5, 0)
    last = InProcess(Labelled([2]), Adder(), Noisy(), 1).collect(5, 0)
    assert np.array_equal(all_three.extras["log_prob"][:, 2:], last.extras["log_prob"])


def test_another_seed_gives_other_noise():
    assert not np.array_equal(rollout(seed=1).collect(5, 0).action, rollout(seed=2).collect(5, 0).action)


def test_weights_act_from_the_next_step_on():
    collected = rollout(1)
    before = collected.collect(1, 0)
    collected.load({"weight": np.float32(500)})
    after = collected.collect(1, 0)
    expected = after.observation.sum(-1) + 500 + 100 * after.extras["log_prob"]
    assert after.action.tolist() == expected.astype(int).tolist()
    assert before.action.tolist() == (before.observation.sum(-1) + 100 * before.extras["log_prob"]).astype(int).tolist()


def test_what_was_collected_is_not_changed_by_what_is_collected_later():
    collected = rollout()
    steps = collected.collect(4, 0)
    copies = steps.observation.copy(), steps.next_observation.copy(), steps.final_observation.copy()
    collected.collect(4, 12)
    collected.collect(1, 24, range(1))
    for kept, copied in zip((steps.observation, steps.next_observation, steps.final_observation), copies, strict=True):
        assert np.array_equal(kept, copied)


def test_a_restored_rollout_goes_on_with_the_same_numbers():
    one, other, witness = rollout(), rollout(), Witness()
    witness.check(one.collect(5, 0))
    other.collect(9, 0, range(2))
    assert other.restore(one.state()) == []
    expected = one.collect(6, 15)
    assert_same(expected, other.collect(6, 15))
    witness.check(expected)


def test_an_episode_that_cannot_be_replayed_is_noted_and_starts_anew():
    one, other = rollout(), InProcess(Labelled(range(3), forgets=[1]), Adder(), Noisy(), 1)
    one.collect(2, 0)
    notes = other.restore(one.state())
    assert len(notes) == 1
    assert "environment 1 " in notes[0]
    witness, steps = Witness(), other.collect(6, 6)
    witness.check(steps)
    assert steps.restarted.tolist() == [False, True, False]
    assert steps.observation[0].tolist() == [[0, 1, 0], [1, 1, 0], [2, 0, 2]]


def test_a_state_of_another_number_of_environments_is_refused():
    with pytest.raises(CheckpointError, match="has 3 environments, this one 2"):
        rollout(2).restore(rollout(3).state())


def test_a_native_simulator_steps_everything_and_columns_that_lost_rows_are_marked():
    collected, witness = InProcess(Native(range(3)), Adder(), Noisy(), 1), Witness()
    witness.check(collected.collect(2, 0))
    part = collected.collect(3, 6, range(1))
    assert part.shape == (3, 1)
    witness.check(part)
    last = collected.collect(2, 9)
    assert last.restarted.tolist() == [False, True, True]
    witness.check(last)
