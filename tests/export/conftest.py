import pytest
from export_cases import CASES


@pytest.fixture(scope="module")
def run_of():
    """The run of a case by its name, made once for a module."""
    made = {}

    def run(name):
        if name not in made:
            made[name] = CASES[name]()
            made[name].train(16)  # which moves the moments of normalised observations
        return made[name]

    yield run
    for each in made.values():
        each.close()
