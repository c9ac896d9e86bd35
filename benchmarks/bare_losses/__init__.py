"""The losses of the bare loops, each written once. `f` holds the operations of a framework, named as in `bare_jax.py`.

A loss returns what trains each group of weights, as functions, so that one that is not due costs nothing, and the
error of each step for priorities. `params` and `target_params` hold lists of networks by group.
"""

from bare_losses.actor_critics import ddpg, discrete_sac, maddpg, sac, td3
from bare_losses.imitation import airl, gail
from bare_losses.policies import a2c, appo, impala, mappo, ppo, recurrent_ppo, reinforce
from bare_losses.recorded import bc, cql, iql, marwil, td3_bc
from bare_losses.values import c51, dqn, qr_dqn, r2d2, rainbow

ACTOR_CRITICS = (sac, discrete_sac, ddpg, td3, maddpg)
POLICIES = (reinforce, ppo, a2c, mappo, recurrent_ppo, impala, appo, gail, airl)
RECORDED = (bc, marwil, iql, cql, td3_bc)
VALUES = (dqn, c51, rainbow, qr_dqn, r2d2)

LOSSES = {loss.__name__: loss for loss in (*VALUES, *POLICIES, *ACTOR_CRITICS, *RECORDED)}
