"""Off-policy estimation: what a policy would earn, from episodes that another one played. See `estimate`."""
