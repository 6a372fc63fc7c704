from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.job_file import load_job, user_error

JOB = """
import edgeswarm

def anything(*_):
    return None

job = edgeswarm.Job(model=anything, dataset=anything, loss=anything, optimizer=anything, batch_size=8)
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write_files(**files: str) -> Path:
        for name, source in files.items():
            (tmp_path / f"{name}.py").write_text(source)
        return tmp_path

    return write_files


def failure(folder: Path, job_file: str = "train.py") -> EdgeswarmError:
    with pytest.raises(EdgeswarmError) as caught:
        load_job(folder, job_file, where="nano-1")
    return caught.value


def test_a_job_is_loaded_with_its_neighbours_even_late_ones(write: Callable[..., Path]) -> None:
    source = "import early\n" + JOB.replace("return None", "import late; return early.VALUE + late.VALUE")
    folder = write(train=source, early="VALUE = 1", late="VALUE = 2")
    job: Any = load_job(folder, "train.py")
    assert job.model() == 3


def test_the_users_classes_work_and_the_file_can_be_loaded_again(write: Callable[..., Path]) -> None:
    source = (
        "from __future__ import annotations\nimport dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n"
    )
    folder = write(train=source + JOB.replace("return None", "return A()"))
    first: Any = load_job(folder, "train.py")
    (folder / "train.py").write_text((source + JOB.replace("return None", "return A()")).replace("= 1", "= 2"))
    second: Any = load_job(folder, "train.py")
    assert (first.model().x, second.model().x) == (1, 2)
    module = type(first.model()).__module__
    assert sys.modules[module].A is type(first.model())


def test_another_folders_neighbours_of_the_same_name_are_its_own(tmp_path: Path) -> None:
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "shared_name.py").write_text(f"VALUE = {name!r}")
        (folder / "train.py").write_text(JOB.replace("return None", "import shared_name; return shared_name.VALUE"))
        job: Any = load_job(folder, "train.py")
        assert job.model() == name


def test_no_such_file(tmp_path: Path) -> None:
    error = failure(tmp_path)
    assert error.code is ErrorCode.JOB_FILE
    assert str(tmp_path / "train.py") in error.message


def test_a_syntax_error_names_file_and_line(write: Callable[..., Path]) -> None:
    error = failure(write(train="x = 1\ny = = 2\n"))
    assert error.code is ErrorCode.JOB_FILE
    assert error.message.startswith("train.py, line 2: ")
    assert failure(write(train="import broken", broken="(")).message.startswith("broken.py, line 1: ")


def test_a_file_without_job_or_with_another_thing(write: Callable[..., Path]) -> None:
    assert "train.py has no `job`" in failure(write(train="x = 1")).message
    assert "`job` in train.py is 3" in failure(write(train="job = 3")).message


def test_a_missing_module_is_named_with_the_device(write: Callable[..., Path]) -> None:
    error = failure(write(train="import helper", helper="\nimport no_such_module_at_all"))
    assert error.code is ErrorCode.MODULE_MISSING
    assert "'no_such_module_at_all' is missing on nano-1" in error.message
    assert error.message.startswith("helper.py, line 2: ")
    assert "pip install" in error.remedy


def test_what_the_top_of_a_file_lacks_on_a_device_may_go_into_a_function(write: Callable[..., Path]) -> None:
    for top in ("import no_such_module_at_all", "open('samples.csv')"):
        assert "never model(), and dataset() with" in failure(write(train=top)).remedy
        with pytest.raises(EdgeswarmError) as here:
            load_job(write(train=top), "train.py")
        assert "never model()" not in here.value.remedy


def test_a_relative_import_is_told_how_to_write_it(write: Callable[..., Path]) -> None:
    error = failure(write(train="from .helper import x", helper="x = 1"))
    assert "relative import" in error.message
    assert "Leave the dot out" in error.remedy


def test_a_name_that_a_module_lacks(write: Callable[..., Path]) -> None:
    error = failure(write(train="from math import no_such_name"))
    assert error.code is ErrorCode.MODULE_MISSING
    assert "'math'" in error.message


@pytest.mark.parametrize("raised", ["ValueError('too bad')", "SystemExit(3)", "RuntimeError()"])
def test_an_exception_names_the_users_line_and_keeps_the_traceback_as_detail(
    write: Callable[..., Path], raised: str
) -> None:
    error = failure(write(train="import helper\nhelper.f()", helper=f"def f():\n    raise {raised}"))
    assert error.code is ErrorCode.JOB_FILE
    assert error.message.startswith("helper.py, line 2: " + raised.partition("(")[0])
    assert "Traceback" in error.detail
    assert "Traceback" not in str(error)


def files_of(error: EdgeswarmError) -> list[str]:
    """Names of the files in the traceback, outermost first."""
    return [Path(path).name for path in re.findall(r'File "([^"]+)"', error.detail)]


def test_the_traceback_begins_with_the_users_file_and_goes_on_into_libraries(write: Callable[..., Path]) -> None:
    late = JOB.replace("return None", "import helper; return helper.f()")
    folder = write(train="import helper\nhelper.f()", late=late, helper="import json\ndef f():\n    json.loads('{')")
    files = files_of(failure(folder))
    assert files[:3] == ["train.py", "helper.py", "__init__.py"]  # of json
    assert "job.py" not in files
    job: Any = load_job(folder, "late.py")
    with pytest.raises(json.JSONDecodeError) as caught:
        job.model()
    error = user_error(caught.value, folder, where="nano-1", doing="building the model")
    assert files_of(error)[:3] == ["late.py", "helper.py", "__init__.py"]
    assert error.message.startswith("helper.py, line 3: JSONDecodeError")


def test_the_traceback_of_a_syntax_error_has_no_frame_of_ours(write: Callable[..., Path]) -> None:
    error = failure(write(train="x = 1\ny = = 2\n"))
    assert files_of(error) == ["train.py"]
    assert "y = = 2" in error.detail


def test_a_traceback_through_none_of_the_users_files_begins_with_the_library(tmp_path: Path) -> None:
    ours: dict[str, Any] = {"__package__": "edgeswarm_agent.worker"}
    exec(compile("def call(function, value):\n    function(value)", "ours.py", "exec"), ours)
    with pytest.raises(json.JSONDecodeError) as caught:
        ours["call"](json.loads, "{")
    below_this_test = caught.tb.tb_next
    error = user_error(caught.value.with_traceback(below_this_test), tmp_path, where="nano-1", doing="trying")
    assert files_of(error)[0] == "__init__.py"  # of json, not ours.py
    assert error.message.startswith("JSONDecodeError")


def test_a_wrong_job_names_the_users_line_and_the_field(write: Callable[..., Path]) -> None:
    error = failure(write(train=JOB.replace("batch_size=8", "batch_size=0")))
    assert error.message.startswith("train.py, line 7: ValueError: batch_size is a whole number")


def test_a_file_that_failed_leaves_no_module_behind(write: Callable[..., Path]) -> None:
    before = {name for name in sys.modules if name.startswith("edgeswarm_job_")}
    failure(write(train="1 / 0"))
    assert {name for name in sys.modules if name.startswith("edgeswarm_job_")} == before
