"""Each test of a pytest suite is a program, recorded in runs/tests (docs/client/records.md)."""

import re

import pytest

from continuum_client import instrument

recording = instrument(record="runs/tests")


@pytest.fixture(autouse=True)
def program(request):
    with recording.program(re.sub("[^ -~]", "_", request.node.nodeid)[-200:].strip()):
        yield
