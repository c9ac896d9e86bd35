"""Actions of several axes and several parts: flat for agents, and given to environments as these have them."""

from functools import partial

import numpy as np
import pytest
from gymnasium.spaces import Dict, Tuple
from run_makers import PPO_TINY
from several_worlds import Pausing
from space_cases import ACTIONS, Demanding, refuse_others

import etude
from etude import Mlp, Run
from etude.algorithms import ALGORITHMS, BCConfig, for_several
from etude.base.errors import SpaceError
from etude.base.events import Collected
from etude.base.spaces import Hybrid
from etude.envs import make_environments
from etude.training.assembly.agents import check_spaces

SEEN = np.zeros(2, np.float32)
BOTH = ACTIONS[-1].space
TINY = {"network": Mlp((4,))}
OFF = {**TINY, "learning_starts": 16, "batch_size": 8}
CONFIGS = {
    "ppo": PPO_TINY,
    "a2c": {**TINY, "rollout_length": 8},
    "impala": {**TINY, "rollout_length": 8},
    "appo": {**TINY, "rollout_length": 8, "kl_coefficient": 0.5},
    "reinforce": TINY,
    "es": TINY,
    "recurrent_ppo": {"rollout_length": 16, "sequence_length": 8, "minibatch_size": 16, "epochs": 1},
    "sac": OFF,
    "td3": OFF,
}


def made(algorithm, env, **more):
    config = CONFIGS.get(algorithm, TINY)
    config = ALGORITHMS[algorithm][1](**config) if isinstance(config, dict) else config
    return Run(algorithm, env, config=config, engine="torch", seed=1, **more)


@pytest.mark.parametrize("case", ACTIONS, ids=lambda case: case.kind)
def test_runs_act_evaluate_record_and_go_on_with_actions_of_every_kind(case, tmp_path):
    env, workers = partial(Demanding, case.space), 2 if case.space is BOTH else 0
    with made("ppo", env, environments=2, workers=workers, run_dir=tmp_path / "run") as run:
        run.train(40)
        for explore in (False, True):
            refuse_others(case.space, run.act(SEEN, {}, explore=explore))
        assert np.isfinite(run.evaluate(episodes=2).mean)
        weights = run.engine.weights()
    with made("ppo", env, environments=2) as alone:  # without workers, in one piece
        alone.train(40)
        for name, value in alone.engine.weights().items():
            np.testing.assert_array_equal(value, weights[name], name)
        alone.train(24)
    with etude.load(tmp_path / "run", env) as again:
        again.train(24)
        for name, value in alone.engine.weights().items():
            np.testing.assert_array_equal(value, again.engine.weights()[name], name)
    data = etude.record(env, 4, seed=1)
    etude.offline.write(tmp_path / "data.parquet", data)
    with Run("bc", env, data=tmp_path / "data.parquet", config=BCConfig(**TINY, batch_size=8), engine="torch") as run:
        run.train(4)
        refuse_others(case.space, run.act(SEEN, {}))


@pytest.mark.parametrize("algorithm", [name for name in CONFIGS if name not in ("ppo", "sac", "td3")])
def test_every_policy_that_factorises_takes_numbers_and_choices(algorithm):
    with made(algorithm, partial(Demanding, BOTH), environments=2) as run:
        run.train(80)
        refuse_others(BOTH, run.act(SEEN, {}))
        assert all(np.isfinite(value).all() for value in run.engine.weights().values())


@pytest.mark.parametrize("kind", ["Box with two axes", "Box without axes", "Dict of numbers"])
@pytest.mark.parametrize("algorithm", ["sac", "td3"])
def test_numbers_of_every_shape_are_learned_off_policy(algorithm, kind):
    space = next(case.space for case in ACTIONS if case.kind == kind)
    with made(algorithm, partial(Demanding, space), environments=2) as run:
        run.train(60)
        refuse_others(space, run.act(SEEN, {}))


def test_all_others_refuse_numbers_and_choices_by_name():
    spaces, refused = make_environments(partial(Demanding, BOTH), np.arange(1), 0).spaces, []
    for name, (kind, config) in ALGORITHMS.items():
        if for_several(kind):
            continue
        try:
            check_spaces(kind(config()), spaces)
        except SpaceError as problem:
            assert f"{config.__name__.removesuffix('Config')} needs" in str(problem)
            assert "Box(5,) float32 and MultiDiscrete([2, 2, 3])" in str(problem)
            refused.append(name)
    single = {name: kind for name, (kind, _) in ALGORITHMS.items() if not for_several(kind)}
    assert single.keys() - set(refused) == {name for name, kind in single.items() if Hybrid in kind.actions}
    assert not {"ppo", "bc", "es"} & set(refused) and {"sac", "dqn", "td3"} <= set(refused)


def test_masks_of_parts_are_obeyed_while_training_and_in_act():
    mask = {"jump": np.array([0, 0, 1]), "arms": (np.array([0, 1, 1, 0]), None), "move": None}
    with made("ppo", partial(Demanding, BOTH, mask), environments=2) as run:
        seen = [step for event in run.steps(64) if isinstance(event, Collected) for step in event.steps]
        chosen = np.concatenate([steps.action[..., 5:].reshape(-1, 3) for steps in seen])
        assert (chosen == [1, 0, 2]).all()
        action = run.act(SEEN, {"action_mask": mask}, explore=True)
        assert (action["jump"], action["arms"][0].tolist()) == (6, [1, 0])


@pytest.mark.parametrize("policies", ["each", "shared"])
@pytest.mark.parametrize("algorithm", ["ppo", "mappo"])
def test_several_agents_choose_numbers_and_choices(algorithm, policies):
    env = partial(Pausing, (0, 1, 5), BOTH)
    with made(algorithm, env, environments=2, policies=policies) as run:
        run.train(300)
        action = run.act({"ann": np.ones(1, np.float32)}, {"ann": {}})
        refuse_others(BOTH, action["ann"])
        assert np.isfinite(run.evaluate(episodes=2).mean)


def test_choices_beside_numbers_are_told_to_curiosity():
    from etude.rewrite import ICM

    with made("ppo", partial(Demanding, BOTH), environments=2, rewrite=ICM(batch_size=8)) as run:
        run.train(64)


def test_parts_of_an_action_may_be_named_in_any_order():
    spaces = [Dict({"b": BOTH, "a": Tuple([BOTH])}), Dict({"a": Tuple([BOTH]), "b": BOTH})]
    assert len({str(make_environments(partial(Demanding, space), np.arange(1), 0).spaces) for space in spaces}) == 1
