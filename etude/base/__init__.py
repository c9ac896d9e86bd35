"""Data, spaces, trees, events, errors, schedules, seeding and checks: imported everywhere, importing nothing else of
etude and no framework."""
