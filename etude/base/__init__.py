"""What every room stands on: data, spaces, trees, events, errors, schedules, seeding and checks. No framework, and nothing of other rooms."""
