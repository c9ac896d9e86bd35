"""Agents that learn from whole games of their own, and from pairs of recorded ones: what they learn from, and that they
learn."""

import dataclasses
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from batches import pick

import etude
from etude import Transformer, language
from etude.base.errors import ConfigError
from etude.replay import Buffer, PreferencePairs, Ring, TokenSequences
from etude.tuning.evolution import ArchitectureLimits, Mutations, mutated

NETWORK = Transformer(layers=1, width=16, heads=2, feedforward=32, context=12)
EASY = partial(language.Arithmetic, 1)  # four questions, answers from 0 to 2


class Kept:
    """Learns as a run does, and keeps what it learned from."""

    def __init__(self, run):
        self.inner, self.engine, self.kept = run.learner.gradients, run.engine, []

    def __call__(self, batches, hyper, done):
        self.kept.append((batches, self.engine.weights()))
        return self.inner(batches, hyper, done)


class Countdown(gym.Env):
    """Says `"3"`, and is told digits until one of them is 0; two turns at most. The reward is what was said."""

    observation_space = gym.spaces.Text(1, min_length=0, charset="0123456789")
    action_space = gym.spaces.Text(1, charset="0123")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return str(self.np_random.integers(10)), {}

    def step(self, action):
        self.turn += 1
        return "9", float(action), action == "0" or self.turn == 2, False, {}


def grpo(env, **more):
    given = {
        "network": NETWORK, "environments": 24, "group_size": 6, "learning_rate": 1e-2, "seed": 1, "epochs": 2,
        "minibatch_size": 12,
    }  # fmt: skip
    return etude.Run("grpo", env, **{**given, **more})


@pytest.mark.variant
@pytest.mark.parametrize("workers", [0, 2])
def test_a_round_is_learned_from_in_groups_of_games_that_began_alike(workers, engine_name):
    with grpo(Countdown, workers=workers, engine=engine_name) as run:
        run.learner.gradients = recorder = Kept(run)
        run.train(100)
        agent, state_size = run.agent, run.engine.state_size
        assert state_size and not run.learner.replay.ring.filled.any()
    prompts = []
    for batches, weights in recorder.kept:
        assert batches.action.shape[:2] == (4, 12)
        columns = batches.index % 24
        assert sorted(columns[:2].ravel()) == sorted(columns[2:].ravel()) == list(range(24))
        mine, tokens = batches.extras["mine"][:2].reshape(24, -1), batches.action[:2].reshape(24, -1)
        earned = batches.reward[:2].reshape(24, -1).sum(1)
        order = np.argsort(columns[:2].ravel())
        groups = earned[order].reshape(4, 6)
        expected = (groups - groups.mean(1, keepdims=True)) / np.maximum(groups.std(1, keepdims=True), 1e-8)
        advantage = batches.extras["advantage"][:2].ravel()[order]
        np.testing.assert_allclose(advantage, expected.ravel(), rtol=0, atol=1e-5)
        began = tokens[order][:, 0].reshape(4, 6)
        assert (began == began[:, :1]).all() and set(mine.sum(1)) <= {1.0, 2.0}
        prompts.append(began[:, 0])
        bound = run.engine.layout.bind(weights)
        for i in (0, 3):
            batch = pick(batches, i)
            log_prob = agent.of_games.__func__(bound, bound.actor, batch).log_prob(batch.action)
            chosen = batch.extras["mine"] > 0
            np.testing.assert_allclose(np.asarray(log_prob)[chosen], batch.extras["log_prob"][chosen], atol=1e-4)
    assert len(np.unique(prompts)) > 3, "groups begin differently"


@pytest.mark.variant
def test_grpo_learns_to_answer(engine_name):
    with grpo(EASY, engine=engine_name, environments=32, group_size=8, epochs=1, minibatch_size=None) as run:
        run.train(32 * 60)
        assert run.evaluate(20).mean > 0.9


@pytest.fixture(scope="module")
def games():
    return etude.record(EASY, 400, seed=1)


def test_pairs_are_games_that_began_alike_the_better_one_first(games):
    ring = Ring(games.spaces, len(games) + 1)
    buffer = Buffer(ring, PreferencePairs(), TokenSequences(1.0), np.random.default_rng(0))
    buffer.add(games.steps())
    batch = buffer.sample(4, 2000)
    earned, began = batch.reward.sum(-1).reshape(-1, 2), batch.action[..., :4].reshape(-1, 2, 4)
    assert (earned[:, 0] > earned[:, 1]).all() and (began[:, 0] == began[:, 1]).all()
    by_prompt = {}
    for episode in games.episodes:
        game = language.game_of(episode)
        by_prompt.setdefault(tuple(game.tokens[:4]), []).append(game.reward.sum())
    mixed = {prompt: returns for prompt, returns in by_prompt.items() if len(set(returns)) > 1}
    assert {tuple(row) for row in began[:, 0]} == mixed.keys()
    assert len(np.unique(batch.index)) == sum(map(len, mixed.values())), "every game with a partner"
    for prompt, returns in mixed.items():  # one of a pair is drawn uniformly, its partner among the others
        drawn = (began[:, 0] == prompt).all(1).mean()
        assert drawn == pytest.approx(len(returns) / sum(map(len, mixed.values())), abs=0.08)
    with pytest.raises(ConfigError, match="3 games of one source in a batch; expected an even number"):
        buffer.sample(1, 3)
    ring.reward[:] = 0.0
    ring.version += 1
    with pytest.raises(ConfigError, match="No two of 400 episodes began alike and differ in their returns"):
        buffer.sample(1, 2)


@pytest.mark.variant
def test_dpo_prefers_what_returned_more(games, engine_name):
    given = {"network": NETWORK, "data": games, "engine": engine_name, "seed": 0, "learning_rate": 1e-2}
    with etude.Run("dpo", EASY, gradient_steps=50, **given) as run:
        reference = {n: x for n, x in run.engine.weights().items() if n.startswith("reference.")}
        *_, learned = (event for event in run.steps(150) if type(event).__name__ == "Learned")
        assert learned.metrics["accuracy"] > 0.9 and run.evaluate(20).mean > 0.9
        for name, value in reference.items():
            np.testing.assert_array_equal(run.engine.weights()[name], value)


@pytest.mark.variant
def test_a_policy_learns_from_a_reward_model_and_not_from_the_environment(games, engine_name, tmp_path):
    given = {"network": NETWORK, "engine": engine_name, "seed": 0}
    with etude.Run("bc", EASY, data=games, gradient_steps=20, **given) as clone:
        clone.train(20)
        clone.save(tmp_path / "clone.etude")
    with etude.Run(
        "reward_model", EASY, data=games, start_from=tmp_path / "clone.etude", gradient_steps=50, learning_rate=1e-2,
        **given,
    ) as judge:  # fmt: skip
        *_, learned = (event for event in judge.steps(400) if type(event).__name__ == "Learned")
        assert learned.metrics["accuracy"] > 0.9
        judge.save(tmp_path / "judge.etude")
        acted = {n.partition(".")[2]: x for n, x in judge.engine.weights().items() if n.startswith("actor.")}
    assert all(np.array_equal(clone.engine.weights()[f"actor.{name}"], x) for name, x in acted.items())

    class Unpaid(language.Arithmetic):
        """Pays nothing while the policy learns."""

        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, 0.0, *rest

    with etude.Run(
        "rlhf", partial(Unpaid, 1), start_from=tmp_path / "judge.etude", learning_rate=1e-2, critic_learning_rate=1e-2,
        kl_coefficient=0.5, **given,
    ) as run:  # fmt: skip
        weights = run.engine.weights()
        for name, x in acted.items():
            assert np.array_equal(weights[f"actor.{name}"], x) and np.array_equal(weights[f"reference.{name}"], x)
        run.train(32 * 20)
        played = etude.record(EASY, 20, run=run)
        assert np.mean([episode.reward.sum() for episode in played.episodes]) > 0.8


@pytest.mark.parametrize(
    ("algorithm", "given", "message"),
    [
        ("grpo", {"environments": 9}, "environments = 9, group_size = 8; expected whole groups"),
        ("dpo", {"batch_size": 7}, "batch_size = 7; expected an even number of games"),
    ],
)
def test_what_cannot_be_is_one_clear_error(algorithm, given, message):
    with pytest.raises(ConfigError, match=message):
        etude.Run(algorithm, EASY, **given)


def frozen_as_drawn(algorithm, loads=None, **given):
    """What a run warns of as it begins: of networks that no loss trains."""
    with etude.Run(algorithm, EASY, network=NETWORK, engine="torch", **given) as run:
        if loads is not None:
            run.engine.load({name: x + 1 for name, x in run.engine.weights().items() if name.startswith(loads)})
        events = [*run.steps(1), *run.steps(1)]
        return [event.message for event in events if "trains no" in getattr(event, "message", "")]


@pytest.mark.variant
def test_networks_that_no_loss_trains_and_no_run_gave_are_warned_of_once(games, engine_name, tmp_path):
    with etude.Run("bc", EASY, network=NETWORK, engine="torch", data=games) as clone:
        clone.save(tmp_path / "clone.etude")
    (told,) = frozen_as_drawn("rlhf")
    assert told == (
        "RLHF trains no weight of its reward_model, and they are as drawn, at random. Take those of a run of "
        "reward_model: Run(..., start_from=RUN), or --start-from RUN."
    )
    assert not frozen_as_drawn("rlhf", "reward_model")
    (told,) = frozen_as_drawn("ilql", data=games, clone=False)
    assert "ILQL trains no weight of its actor" in told and "a run of bc" in told
    assert not frozen_as_drawn("ilql", data=games, clone=False, start_from=tmp_path / "clone.etude", seed=1)
    assert not frozen_as_drawn("ilql", data=games)


@pytest.mark.long_but("masked", "grpo")
@pytest.mark.variant
@pytest.mark.parametrize("algorithm", ["bc", "masked", "dpo", "grpo", "rlhf"])
def test_policies_of_whole_games_evolve(algorithm, games, engine_name):
    network = dataclasses.replace(NETWORK, causal=algorithm != "masked")
    algorithm = algorithm.replace("masked", "bc")
    limits = ArchitectureLimits(blocks=(1, 2), feedforward=(32, 96), heads=(1, 3))
    grown = Mutations(none=0, architecture=1, new_layer=0.5, parameters=0, hyperparameters=0, network=limits)
    given = {"data": games} if algorithm in ("bc", "dpo") else {}
    rng, kinds = np.random.default_rng(3), set()
    run = etude.Run(algorithm, EASY, network=network, engine=engine_name, seed=1, **given)
    run.train(33)
    for _ in range(6):
        child, mutation = mutated(run, grown, rng)
        same = etude.record(EASY, 4, run=run, seed=2), etude.record(EASY, 4, run=child, seed=2)
        if mutation.kind in ("add_layer", "add_units"):
            assert all((a.action == b.action).all() for a, b in zip(*(data.episodes for data in same), strict=True))
        run.close()
        run = child
        run.train(33)
        kinds.add(mutation.kind)
    run.close()
    assert len(kinds) > 1


@pytest.mark.variant
@pytest.mark.parametrize("algorithm", ["grpo", "rlhf"])
def test_a_resumed_run_plays_and_learns_what_it_would_have(algorithm, engine_name, tmp_path):
    given = {"network": NETWORK, "environments": 8, "group_size": 4, "minibatch_size": 4, "epochs": 2}
    with etude.Run(algorithm, Countdown, engine=engine_name, seed=2, **given) as run:
        run.train(40)
        run.save(tmp_path / "run.etude")
        run.train(30)
        expected = run.engine.weights()
    for workers in (0, 2):
        with etude.load(tmp_path / "run.etude", env=Countdown, workers=workers) as resumed:
            resumed.train(30)
            for name, value in resumed.engine.weights().items():
                np.testing.assert_array_equal(value, expected[name], err_msg=name)
