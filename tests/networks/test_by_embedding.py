"""Values by embeddings of actions, in NumPy, against their formula."""

from __future__ import annotations

import numpy as np
import pytest

from etude import ByEmbedding, Conv, Mlp
from etude.base.errors import ConfigError, NetworkError
from etude.base.spaces import Box, Dict, Discrete, MultiBinary
from etude.networks import Maker

VECTOR, ACTIONS = Box(-1.0, 1.0, (5,), np.float32), Box(-1.0, 1.0, (3, 4), np.float32)
SPACE = Dict({"actions": ACTIONS, "observation": VECTOR, "action_mask": MultiBinary(3)})
SPEC = ByEmbedding(network=Mlp((8,), "tanh"))


def maker():
    return Maker(np.random.default_rng(1), None)


@pytest.fixture
def seen():
    rng = np.random.default_rng(2)
    shown = {key: rng.uniform(-1, 1, (7, *SPACE[key].shape)).astype(np.float32) for key in ("actions", "observation")}
    return {**shown, "action_mask": np.ones((7, 3), np.int8)}


def state_embedding(part, seen):
    hidden = np.tanh(seen["observation"] @ part.variables["dense0.weight"] + part.variables["dense0.bias"])
    return hidden @ part.variables["dense1.weight"] + part.variables["dense1.bias"]


def test_values_are_inner_products_with_the_embedding_of_each_action(seen):
    part = maker().values(SPEC, SPACE, 3)
    expected = np.einsum("bd,bnd->bn", state_embedding(part, seen), seen["actions"])
    np.testing.assert_allclose(part(seen), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(maker()(SPEC, SPACE, 3)(seen), part(seen))


def test_several_numbers_of_an_action_have_a_state_embedding_each(seen):
    part = maker().values(SPEC, SPACE, 3, 6)
    state = state_embedding(part, seen).reshape(7, 6, 4)
    np.testing.assert_allclose(part(seen), np.einsum("bkd,bnd->bnk", state, seen["actions"]), rtol=1e-4, atol=1e-6)


def test_values_move_with_their_embeddings(seen):
    part, order = maker().values(SPEC, SPACE, 3), [2, 0, 1]
    moved = part({**seen, "actions": seen["actions"][:, order]})
    np.testing.assert_allclose(moved, part(seen)[:, order], rtol=1e-5)


def test_a_critic_of_states_reads_no_embeddings(seen):
    part = maker()(SPEC, SPACE, 1)
    assert part(seen).shape == (7, 1)
    np.testing.assert_array_equal(part({**seen, "actions": 0 * seen["actions"]}), part(seen))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (VECTOR, "the observations are Box"),
        (Dict({"observation": VECTOR}), "the observations are Dict"),
        (Dict({"actions": ACTIONS, "action_mask": MultiBinary(3)}), "and the state from the other keys"),
        (Dict({"actions": Discrete(3), "observation": VECTOR}), "is Discrete.3.; expected Box.3, numbers."),
        (
            Dict({"actions": Box(-1, 1, (2, 4)), "observation": VECTOR}),
            "expected Box.3, numbers., an embedding of each",
        ),
    ],
)
def test_observations_without_embeddings_of_all_actions_are_refused(space, message):
    with pytest.raises(NetworkError, match=message):
        maker().values(SPEC, space, 3)


def test_dueling_streams_are_refused_and_noise_and_convolutions_are_not():
    with pytest.raises(ConfigError, match="leave dueling off"):
        ByEmbedding(network=Mlp((8,), dueling=True))
    assert maker().values(ByEmbedding(network=Mlp((8,), noisy=0.5)), SPACE, 3).noise_size > 0
    image = Dict({"actions": ACTIONS, "camera": Box(0, 255, (12, 12, 2), np.uint8)})
    assert not maker().values(ByEmbedding(network=Conv(((4, 4, 2),), (8,))), image, 3).portable
