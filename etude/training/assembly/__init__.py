"""From an algorithm, an environment and a few settings to the parts of a run: the one place that knows all axes by
name. `agents` first, then `parts`."""
