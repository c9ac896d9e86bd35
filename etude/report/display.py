"""Whether anything can be shown on this machine, and how to render where it cannot."""

from __future__ import annotations

import os
import sys


def has_display() -> bool:
    """Whether a window can be opened."""
    return sys.platform in ("win32", "darwin") or bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def render_without_display() -> None:
    """Let pygame and MuJoCo draw into memory. They read this when they are imported; what the user has set stays."""
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    os.environ.setdefault("MUJOCO_GL", "egl")
