"""Checkpoints of earlier releases load for ever. One file per release is in `frozen/`; none is changed or removed.

A new one is written by `python tests/checkpoint/test_frozen_checkpoints.py frozen/v0_2_0.etude`.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoint_states import same

from etude import checkpoint

FROZEN = Path(__file__).parent / "frozen"
SHA256 = {"v0_1_0.etude": "3505bf4996ac0e3f78baaf5de614b3852315d98af6b2b0c78c2d9b456d78af33"}


def state() -> dict:
    """What every frozen checkpoint holds: one of everything that format version 1 can express."""
    dtypes = ("?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8")
    return {
        "arrays": {dtype: np.arange(6).reshape(2, 3).astype(dtype) for dtype in dtypes},
        "edges": {
            "nan": np.array([0x7F800001, 0xFFC12345], np.uint32).view(np.float32),
            "empty": np.zeros((0, 2), np.int64),
            "zero_dimensions": np.array(7, np.int64),
            "scalar": np.float32(1.5),
            "a/b~c": (1, [2.5, None, True], "text ü"),
            "$key": float("inf"),
            "large": 2**127,
        },
        "counters": {"step": 50_000, "rate": -0.0},
    }


@pytest.mark.parametrize("name", sorted(SHA256))
def test_a_checkpoint_of_an_earlier_release_loads(name: str) -> None:
    path = FROZEN / name
    assert hashlib.sha256(path.read_bytes()).hexdigest() == SHA256[name]
    assert same(checkpoint.read(path, expect={"arrays", "edges", "counters"}), state())
    assert checkpoint.inspect(path).meta["step"] == 50_000


def test_every_frozen_checkpoint_is_listed_here() -> None:
    assert sorted(path.name for path in FROZEN.iterdir()) == sorted(SHA256)


if __name__ == "__main__":
    checkpoint.write(sys.argv[1], state(), {"step": 50_000})
    print(hashlib.sha256(Path(sys.argv[1]).read_bytes()).hexdigest())
