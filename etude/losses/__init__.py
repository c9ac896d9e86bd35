"""Losses: one published equation per function, over `ops`, batched and unreduced; and the distributions of policies."""
