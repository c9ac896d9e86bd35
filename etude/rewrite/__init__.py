"""Rewriting of collected steps before they are stored: reward shaping, relabelling, intrinsic rewards."""

from etude.rewrite.curiosity import E3B, ICM, RND
from etude.rewrite.rewriter import Rewriter, RewriterContext, Rewriters, RewriterSpec

SPECS: tuple[type[RewriterSpec], ...] = (E3B, ICM, RND)
"""Rewriters that are data: a checkpoint holds them."""

__all__ = ["E3B", "ICM", "RND", "SPECS", "Rewriter", "RewriterContext", "RewriterSpec", "Rewriters"]
