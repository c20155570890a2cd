from collections.abc import Mapping

import pytest

from gateway.backends.process import ROOT, child_environment, describe_exit


@pytest.mark.parametrize(
    ("ours", "spin"),
    [({}, "1000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
)
def test_the_operator_s_word_on_spinning_stands(ours: Mapping[str, str], spin: str | None) -> None:
    assert child_environment(ours).get("GOMP_SPINCOUNT") == spin


def test_the_child_finds_our_code_before_what_else_is_on_the_path() -> None:
    assert child_environment({})["PYTHONPATH"] == ROOT
    assert child_environment({"PYTHONPATH": "/theirs"})["PYTHONPATH"] == f"{ROOT}:/theirs"


def test_exits_are_described_for_people() -> None:
    assert describe_exit(3) == "exited with status 3"
    assert describe_exit(-9) == "ended by SIGKILL"
    assert describe_exit(-250) == "ended by signal 250"
