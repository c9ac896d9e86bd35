"""Worker pools: workers that act by themselves, and workers that step environments for an actor in this process."""
