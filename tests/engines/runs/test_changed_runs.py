"""On every engine a run is loaded with other environments, a smaller replay or longer rollouts, and learns on."""

import pytest
from run_cases import DQN_TINY, PPO_TINY

import etude
from etude import Mlp, Run
from etude.base.errors import CheckpointError

CASES = {
    "dqn": (DQN_TINY, {"environments": 3, "buffer_size": 40, "learning_rate": 1e-4}),
    "ppo": (PPO_TINY, {"environments": 3, "rollout_length": 8, "minibatch_size": 24}),
}


@pytest.mark.parametrize("name", CASES)
def test_a_loaded_run_learns_on_with_what_changed(engine_name, name, tmp_path):
    config, changes = CASES[name]
    with Run(name, "CartPole-v1", config=config, environments=4, engine=engine_name, seed=1) as run:
        run.train(100)
        run.save(tmp_path / "run.etude")
        done = run.learner.progress.gradient_steps
    with etude.load(tmp_path / "run.etude", **changes) as run:
        assert run.engine.name == engine_name
        run.train(48)
        assert run.step == 148 and run.learner.progress.gradient_steps > done
    with pytest.raises(CheckpointError, match="Of another shape: .*here .*start_from="):
        etude.load(tmp_path / "run.etude", network=Mlp((3,)))
