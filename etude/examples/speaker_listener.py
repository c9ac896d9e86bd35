"""The multi-agent particle world of a speaker and a listener, for the examples."""

from __future__ import annotations

from typing import Any

from etude.base.errors import needing


def speaker_listener() -> Any:
    """A speaker sees which of three landmarks is the goal, and speaks; a listener hears it, and moves. 25 steps.

    Lowe et al. 2017, arXiv:1706.02275. Raises MissingExtra without mpe2.
    """
    with needing("The speaker and the listener", "multiagent"):
        from mpe2 import simple_speaker_listener_v4
    return simple_speaker_listener_v4.parallel_env(max_cycles=25)
