"""The generated code of edgeswarm/wire/v1 is what the compiler makes of protos/."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def pinned_compiler() -> str:
    match = re.search(r"^grpcio-tools==(\S+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert match is not None, "constraints.txt pins grpcio-tools"
    return match.group(1)


@pytest.fixture(scope="module")
def regenerated(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """Path relative to the repository -> text, from a fresh run of the compiler."""
    try:
        installed = version("grpcio-tools")
    except PackageNotFoundError:
        pytest.skip("grpcio-tools is not installed")
    if installed != pinned_compiler():
        pytest.skip(f"grpcio-tools is {installed}; the generated code comes from {pinned_compiler()}")
    from .regenerate_protos import regenerate

    target = tmp_path_factory.mktemp("generated")
    return {path: (target / path).read_text() for path in regenerate(target)}


def test_the_generated_code_is_current(regenerated: dict[Path, str]) -> None:
    stale = [str(path) for path, text in regenerated.items() if (ROOT / path).read_text() != text]
    assert stale == [], "run `make protos`"


def test_no_generated_file_is_left_over(regenerated: dict[Path, str]) -> None:
    present = {
        path.relative_to(ROOT)
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in (ROOT / "edgeswarm" / "wire" / "v1").glob(pattern)
    }
    assert present == set(regenerated)
