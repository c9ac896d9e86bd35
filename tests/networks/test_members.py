"""Several networks of one kind, and each of them alone."""

import numpy as np

from etude import Mlp
from etude.base.spaces import Box
from etude.networks import Maker
from etude.networks.network import Ensemble


def test_a_member_of_stacked_networks_computes_what_it_computes_among_them():
    make = Maker(np.random.default_rng(0), None)
    observation = np.random.default_rng(1).normal(size=(5, 3)).astype(np.float32)
    space = Box(-1.0, 1.0, (3,), np.float32)
    stacked = make(Mlp((8,)), space, outputs=2, members=3)
    apart = Ensemble([make(Mlp((8,)), space, outputs=2) for _ in range(3)])
    for networks in (stacked, apart):
        together = networks(observation)
        for i in range(3):
            np.testing.assert_allclose(networks.member(i)(observation), together[i], rtol=1e-6)
