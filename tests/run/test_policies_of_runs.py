"""Policies of different algorithms in one environment: what each learns from, who learns when, rules, and how they
are saved and resumed."""

import copy
import dataclasses
from functools import partial

import numpy as np
import pytest
from run_makers import DQN_TINY, PPO_TINY, assert_same_weights, at_random, moved, pair
from several_worlds import Coming, Counting, Duel, Meeting, Mixed

import etude
from etude import Mlp
from etude.adapt import Adapt
from etude.algorithms import DQN, MAPPO, PPO, SAC, MAPPOConfig, PPOConfig, SACConfig
from etude.base import trees
from etude.base.errors import EnvironmentFault
from etude.base.events import Collected, Evaluated, Learned
from etude.envs import make_environments
from etude.multi_agent import Alternate
from etude.multi_agent.joint import AgentSubset
from etude.run import from_state

SAC_TINY = SACConfig(network=Mlp((4,)), batch_size=8, learning_starts=16, train_every=8)
MAPPO_TINY = MAPPOConfig(network=Mlp((4,)), rollout_length=16, minibatch_size=32, epochs=1)


def obeying(observation, rng):
    """The one action of `Mixed` that the mask allows."""
    return int(observation["action_mask"].argmax())


MEMBERS = {
    "a parallel world": ({"early": PPO(PPO_TINY), "late": DQN(DQN_TINY), "joins": at_random}, Coming),
    "a world of turns": ({"first": DQN(DQN_TINY), "second": PPO(PPO_TINY)}, Counting),
    "numbers and choices": ({"arm": SAC(SAC_TINY), "switch": DQN(DQN_TINY)}, Mixed),
    "a rule that obeys a mask": ({"arm": PPO(PPO_TINY), "switch": obeying}, Mixed),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_a_run_of_several_policies_goes_on_bit_for_bit_where_it_was_saved(name, tmp_path):
    members, env = MEMBERS[name]
    with pair(members, partial(env)) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
        run.train(40)
        expected, progress = run.engine.weights(), run.learner.progress
    again = {policy: member for policy, member in members.items() if not isinstance(member, etude.Agent)}
    with etude.load(tmp_path / "run.etude", env=partial(env), agent=again) as run:
        run.train(40)
        assert_same_weights(run.engine.weights(), expected)
        assert run.learner.progress.gradient_steps == progress.gradient_steps > 0
        assert run.learner.progress.episodes == progress.episodes


@pytest.mark.parametrize("name", ["a parallel world", "a world of turns"])
def test_workers_collect_the_same_for_all_policies_as_one_process(name):
    members, env = MEMBERS[name]
    found = []
    for workers in (0, 2):
        with pair(members, partial(env), workers=workers) as run:
            run.train(80)
            found.append(run.engine.weights())
    assert_same_weights(found[1], found[0])


def test_workers_that_collect_ahead_for_several_policies_are_saved_with_what_they_collected():
    members, env = MEMBERS["a parallel world"]
    with pair(members, partial(env), workers=2, overlap=True) as run:
        run.train(40)
        state = copy.deepcopy(run.state())
        run.train(40)
        expected = run.engine.weights()
    with from_state(state, partial(env), agent={"joins": at_random}) as again:
        again.train(40)
        assert_same_weights(again.engine.weights(), expected)


def steps_of(env, columns=2, times=6):
    """Joined steps with random actions and numbered extras."""
    rollout = make_environments(env, np.arange(columns), run_seed=0)
    spaces = rollout.spaces
    observation = rollout.reset()
    seen, actions, rewards, ends, finals = [], [], [], [], []
    for t in range(times):
        action = np.stack([spaces.action.sample() for _ in range(columns)])
        seen.append(observation)
        observation, reward, terminated, truncated, final = rollout.step(action)
        actions.append(action)
        rewards.append(reward)
        ends.append((terminated, truncated))
        finals += [(t, i, last) for i, last in sorted(final.items())]
    terminated, truncated = (np.stack(flags) for flags in zip(*ends, strict=True))
    extras = {"left.log_prob": np.ones((times, columns, 1), np.float32), "right.x": np.zeros((times, columns, 2))}
    return spaces, etude.base.data.Steps(
        trees.stack(seen), np.stack(actions), np.stack(rewards), terminated, truncated, observation,
        trees.stack([last for *_, last in finals]), np.array([(t, i) for t, i, _ in finals], np.int64),
        np.arange(columns), np.zeros(columns, bool), extras,
    )  # fmt: skip


def test_a_policy_gets_the_part_of_its_agents_of_observations_actions_and_rewards():
    spaces, steps = steps_of(Coming, times=10)
    subset = AgentSubset(spaces, ("late", "early"))
    part = subset.steps(steps, "left")
    assert list(subset.agents) == ["early", "late"]
    assert subset.spaces.action.nvec.tolist() == [2, 2]
    np.testing.assert_array_equal(part.action, steps.action[..., [0, 2]])
    np.testing.assert_array_equal(part.reward, steps.reward[..., [0, 2]])
    assert part.extras.keys() == {"log_prob"}
    for name in ("observation", "next_observation", "final_observation"):
        mine, whole = getattr(part, name), getattr(steps, name)
        assert mine["agents"].keys() == {"early", "late"}
        np.testing.assert_array_equal(mine["agents"]["late"], whole["agents"]["late"])
        np.testing.assert_array_equal(mine["status"], whole["status"][..., [0, 2]])
    joined = np.full((3, 3), 9)
    subset.put_action(joined, np.array([[0, 1]] * 3))
    assert joined.tolist() == [[0, 9, 1]] * 3


def test_choices_beside_numbers_are_whole_numbers_again_for_their_own_policy():
    with pair({"arm": SAC(SAC_TINY), "switch": DQN(DQN_TINY)}, Mixed) as run:
        run.train(20)
        assert run.engine.spaces.action.dtype == np.float32
        ring = run.learner.of["switch"].replay.ring
        assert ring.actions(np.arange(20)).dtype.kind == "i"


def test_learners_of_one_run_begin_with_weights_and_replays_of_their_own():
    with pair({"ann": PPO(PPO_TINY), "bob": PPO(PPO_TINY)}, Meeting) as run:
        weights = run.engine.weights()
        assert not np.array_equal(weights["ann.model.policy.dense0.weight"], weights["bob.model.policy.dense0.weight"])
        ann, bob = run.learner.of["ann"], run.learner.of["bob"]
        run.train(30)
        assert ann.replay.ring is not bob.replay.ring
        assert [*ann.replay.ring.spaces.agents] == ["ann"]


def test_losses_are_reported_by_policy_and_each_learns_when_it_is_due():
    with pair({"ann": PPO(PPO_TINY), "bob": DQN(DQN_TINY)}, Meeting) as run:
        found = [event for event in run.steps(64) if isinstance(event, Learned)]
        steps = {policy: learner.progress.gradient_steps for policy, learner in run.learner.of.items()}
    assert {name.split(".")[0] for event in found for name in (*event.losses, *event.metrics)} == {"ann", "bob"}
    # 32 transitions of PPO are a rollout, of which one epoch takes one minibatch; DQN learns at 16, 24, ..., 64.
    assert steps == {"ann": 2, "bob": 7}
    assert [event.step for event in found if "ann.model" in event.losses] == [32, 64]
    assert [event.step for event in found if "bob.q" in event.losses] == [16, 24, 32, 40, 48, 56, 64]
    assert found[-1].gradient_steps == 9


def test_a_team_with_a_centralised_critic_of_its_own_plays_against_another_policy():
    policies = {"pole_0": "team", "pole_1": "team", "pole_2": "other"}
    world = {"env_args": {"count": 3}, "policies": policies}
    with pair({"team": MAPPO(MAPPO_TINY), "other": at_random}, "etude.examples.cart_pole:CartPoles", **world) as run:
        run.train(64)
        assert run.learner.progress.gradient_steps == 2
        critic = run.engine.weights()["team.model.critic.dense0.weight"]
    assert critic.shape[0] == 2 * 4 + 2 + 2  # what both observe, who is there, and whose value it is


# -- who learns when ---------------------------------------------------------------------------------------------------


def test_only_the_policies_that_are_named_learn_and_the_others_store_nothing():
    with pair({"ann": DQN(DQN_TINY), "bob": PPO(PPO_TINY)}, Meeting, train_only=("ann",)) as run:
        assert moved(run, 64) == {"ann"}
        assert len(run.learner.of["bob"].replay) == 0
        assert run.description()["train_only"] == ["ann"]
        state = copy.deepcopy(run.state())
    with from_state(state, Meeting) as again:
        assert moved(again, 64) == {"ann"}
    with from_state(state, Meeting, train_only=None) as again:
        assert moved(again, 64) == {"ann", "bob"}


def test_policies_learn_in_turns_and_a_run_is_resumed_in_the_middle_of_one():
    config = PPOConfig(network=Mlp((4,)), rollout_length=10, minibatch_size=None, epochs=1, normalize_observation=False)
    members = {"ann": PPO(config), "bob": DQN(DQN_TINY)}
    with pair(members, Meeting, train_only=Alternate(every=40)) as run:
        assert moved(run, 40) == {"ann"}
        assert moved(run, 25) == {"bob"}
        state = copy.deepcopy(run.state())
        assert moved(run, 15) == {"bob"}
        assert moved(run, 39) == {"ann"}
        expected = run.engine.weights()
    with from_state(state, Meeting) as again:
        again.train(15)
        again.train(39)
        assert_same_weights(again.engine.weights(), expected)


def test_a_run_that_is_loaded_with_another_seed_has_generators_of_its_own_for_every_policy():
    def generators(state, place=""):
        if not isinstance(state, dict):
            return {}
        if "increment" in state:
            return {place: state["state"]}
        return {at: own for name, part in state.items() for at, own in generators(part, f"{place}/{name}").items()}

    with pair({"ann": DQN(DQN_TINY), "bob": PPO(PPO_TINY)}, Meeting) as run:
        run.train(80)
        state = copy.deepcopy(run.state())
    with from_state(state, Meeting) as same, from_state(state, Meeting, seed=2) as other, pair(
        {"ann": DQN(DQN_TINY), "bob": PPO(PPO_TINY)}, Meeting, seed=2
    ) as restored:  # fmt: skip
        restored.restore(state)
        before, expected = generators(state), generators(other.state())
        assert generators(same.state()) == before
        assert generators(restored.state()) == expected
        assert before.keys() == expected.keys() and len(before) >= 6
        assert not [place for place in before if before[place] == expected[place]]
        assert len(set(expected.values())) == len(expected)


def test_policies_that_adapt_go_on_bit_for_bit_where_they_were_saved():
    rule = Adapt("ess", "train_every", target=0.01, every=1, rate=9.0, low=2)
    members = {"ann": DQN(dataclasses.replace(DQN_TINY, adapt=(rule,))), "bob": PPO(PPO_TINY)}
    with pair(members, Meeting) as run:
        run.train(80)
        state, counts = copy.deepcopy(run.state()), run.learner.of["ann"].adapting.rules.counts()
        assert counts["train_every"] < DQN_TINY.train_every
        run.train(40)
        expected = run.engine.weights()
    with from_state(state, Meeting) as again:
        assert again.learner.of["ann"].adapting.rules.counts() == counts
        again.train(40)
        assert_same_weights(again.engine.weights(), expected)


def test_policies_that_are_to_learn_more_often_take_no_gradient_steps_for_the_steps_before():
    often = DQN(dataclasses.replace(DQN_TINY, train_every=2))
    with pair({"ann": DQN(DQN_TINY), "bob": DQN(DQN_TINY)}, Meeting, train_only=Alternate(every=40)) as run:
        run.train(400)
        state = copy.deepcopy(run.state())
    before = {policy: each["progress"]["gradient_steps"] for policy, each in state["learners"].items()}
    with from_state(state, Meeting, agent={"ann": often}) as again:
        again.train(80)  # each learns for 40 steps
        after = {policy: learner.progress.gradient_steps for policy, learner in again.learner.of.items()}
    assert {policy: after[policy] - before[policy] for policy in before} == {"ann": 20, "bob": 5}


def test_what_is_stored_after_a_pause_does_not_continue_what_was_stored_before():
    with pair({"first": DQN(DQN_TINY), "second": DQN(DQN_TINY)}, Counting, train_only=Alternate(20)) as run:
        run.train(20)
        ring = run.learner.of["first"].replay.ring
        assert ring.filled.tolist() == [10, 10]
        run.train(20)
        assert ring.filled.tolist() == [10, 10]
        run.train(4)
        assert ring.filled.tolist() == [12, 12]
        _, kind = ring.outcome(np.array([18, 19]))  # the last rows before the pause
        assert kind.all()


# -- rules -------------------------------------------------------------------------------------------------------------


def test_a_rule_gets_what_one_agent_observes_and_a_generator_of_its_own():
    seen = []

    def rule(observation, rng):
        seen.append((observation["observation"].shape, observation["action_mask"].tolist(), rng.random()))
        return int(observation["action_mask"].argmax())

    with pair({"arm": PPO(PPO_TINY), "switch": rule}, Mixed) as run:
        run.train(20)
        found = run.evaluate(episodes=2)
    assert found.mean_by_agent["switch"] == 1.0
    assert {shape for shape, *_ in seen} == {()}
    assert len({number for *_, number in seen}) > 15


def wrong(observation, rng):
    raise KeyError("no such card")


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (wrong, "The heuristic of policy 'switch' raised KeyError for agent 'switch': 'no such card'"),
        (lambda observation, rng: 7, "returned 7 for agent 'switch'; expected an allowed action of Discrete"),
        (lambda observation, rng: 0.5, "returned 0.5 for agent 'switch'"),
        (lambda observation, rng: int(observation["action_mask"].argmin()), "and the action mask"),
        (lambda observation, rng: None, "returned None for agent 'switch'"),
    ],
)
@pytest.mark.long_but("0", "wrong")
@pytest.mark.parametrize("workers", [0, 1])
def test_a_rule_that_fails_ends_the_run_with_its_name_and_the_run_is_saved(rule, message, workers, tmp_path):
    def late(observation, rng, calls=[]):  # noqa: B006  (counts)
        calls.append(0)
        return rule(observation, rng) if len(calls) > 40 else obeying(observation, rng)

    with pair({"arm": SAC(SAC_TINY), "switch": late}, partial(Mixed), workers=workers, run_dir=tmp_path / "run") as run:
        with pytest.raises(EnvironmentFault, match=message):
            run.train(200)
        step = run.step
    assert step >= 8
    with etude.load(tmp_path / "run", env=partial(Mixed), agent={"switch": obeying}) as again:
        assert again.step == step
        again.train(20)


def test_evaluations_and_single_actions_use_all_policies():
    with pair({"even": DQN(DQN_TINY), "odd": at_random}, Duel) as run:
        (event,) = (e for e in run.steps(20, evaluate_every=20, evaluate_episodes=4) if isinstance(e, Evaluated))
        action = run.act({"even": np.zeros(1, np.float32), "odd": np.zeros(1, np.float32)}, first=True)
        explored = run.act({"even": np.zeros(1, np.float32)}, explore=True)
        ends = [end for e in run.steps(40) if isinstance(e, Collected) for end in e.episodes]
    assert event.mean_by_agent["even"] == -event.mean_by_agent["odd"]
    assert action.keys() == {"even", "odd"}
    assert explored.keys() == {"even"}
    assert all(end.total_by_agent["even"] == -end.total_by_agent["odd"] for end in ends)


def test_replays_of_policies_are_in_folders_of_their_own(tmp_path):
    folder = str(tmp_path / "replay")
    with pair({"ann": DQN(DQN_TINY), "bob": DQN(DQN_TINY)}, Meeting, replay_folder=folder) as run:
        run.train(30)
        assert sorted(path.name for path in (tmp_path / "replay").iterdir()) == ["ann", "bob"]
