"""Rewriting of collected steps before they are stored: reward shaping, relabelling, intrinsic rewards."""

from etude.rewrite.rewriter import Rewriter, RewriterContext, Rewriters, RewriterSpec

__all__ = ["Rewriter", "RewriterContext", "RewriterSpec", "Rewriters"]

SPECS: tuple[type[RewriterSpec], ...] = ()
