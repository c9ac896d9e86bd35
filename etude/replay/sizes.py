"""The size of a ring in bytes, before it is built."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from etude.base import spaces as spaces_
from etude.base import trees
from etude.base.spaces import Spaces
from etude.replay.frames import newest_frames

Extras = dict[str, tuple[tuple[int, ...], Any]]  # name -> (shape of one row, dtype)


def bytes_needed(
    spaces: Spaces,
    capacity: int,
    environments: int = 1,
    extras: Extras | None = None,
    frame_stack: int = 1,
    reward_shape: tuple[int, ...] = (),
) -> int:
    """Bytes that such a ring takes. One observation for each episode in it comes on top."""
    template = spaces_.zeros(spaces.observation)
    observation = trees.count_bytes(template if frame_stack == 1 else newest_frames(template, frame_stack))
    action = trees.count_bytes(spaces_.zeros(spaces.action))
    extra = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in (extras or {}).values())
    reward, kind, final, start = 4 * math.prod(reward_shape), 1, 4, 4 * (frame_stack > 1)
    row = observation + action + extra + reward + kind + final + start
    return (capacity // environments + frame_stack) * environments * row
