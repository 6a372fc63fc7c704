"""Generates edgeswarm/wire/v1 from protos/: `make protos`, and the test that compares."""

from __future__ import annotations

import sys
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).parents[1]
PROTOS = ROOT / "protos"


def regenerate(target: Path) -> list[Path]:
    """Writes the generated modules below `target` and returns their paths, relative to it.

    Raises RuntimeError when the compiler refuses a file (its own message is on standard error).
    """
    sources = sorted(PROTOS.rglob("*.proto"))
    arguments = ["protoc", f"-I{PROTOS}", f"--python_out={target}", f"--pyi_out={target}", *map(str, sources)]
    services = [source for source in sources if "\nservice " in source.read_text()]
    if protoc.main(arguments) != 0:
        raise RuntimeError("protoc failed")
    if protoc.main(["protoc", f"-I{PROTOS}", f"--grpc_python_out={target}", *map(str, services)]) != 0:
        raise RuntimeError("protoc failed for the services")
    package = target / "edgeswarm" / "wire" / "v1"
    return sorted(path.relative_to(target) for path in package.rglob("*_pb2*.py*") if path.suffix in {".py", ".pyi"})


if __name__ == "__main__":
    for written in regenerate(ROOT):
        sys.stdout.write(f"{written}\n")
