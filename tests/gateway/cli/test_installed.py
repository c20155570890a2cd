"""What is missing is named as pip takes it."""

from gateway.cli.doctor import packages
from gateway.cli.installed import UnmetRequirement, conflicting_packages, unmet_requirements


def test_a_missing_library_is_told_with_its_command() -> None:
    there = {"msgspec": "0.23.0", "torch": "2.9.0"}
    required = ["msgspec>=0.20", "torch>=2.11", "faster-whisper>=1.2", "pytest; extra == 'dev'", "nt; os_name == 'nt'"]
    found = unmet_requirements(required, there.get)
    assert found == [UnmetRequirement("torch>=2.11", "2.9.0"), UnmetRequirement("faster-whisper>=1.2", None)]
    (finding,) = packages(found, {})
    assert finding.status == "problem"
    assert finding.text.endswith("torch>=2.11 (2.9.0), faster-whisper>=1.2 (not installed)")
    assert finding.advice == "pip install 'torch>=2.11' 'faster-whisper>=1.2'"


def test_another_build_of_onnx_runtime_will_do() -> None:
    assert unmet_requirements(["onnxruntime>=1.23"], {"onnxruntime-gpu": "1.31.1"}.get) == []
    assert unmet_requirements(["onnxruntime>=1.23"], {}.get) == [UnmetRequirement("onnxruntime>=1.23", None)]


def test_here_nothing_is_missing() -> None:
    assert unmet_requirements() == []
    assert [finding.status for finding in packages(unmet_requirements(), {})] == ["ok"]


def test_others_with_packages_of_our_names_are_told() -> None:
    owners = {"models": ["multimodal-gateway", "django-things"], "gateway": ["multimodal-gateway"], "numpy": ["numpy"]}
    found = conflicting_packages(owners)
    assert found == {"models": ["django-things"]}
    told = packages([], found)[-1]
    assert told.status == "problem"
    assert "django-things also installs a package 'models'" in told.text
