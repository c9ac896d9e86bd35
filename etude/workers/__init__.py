"""Workers: what starts, supervises, restarts, asks and stops processes and Ray actors, whatever they do.

A `Server` is what one does. `supervisor` has the parent's side, `process` and `ray` the two places where workers run,
`worker` what runs in one, and `channel` what both sides share.
"""
