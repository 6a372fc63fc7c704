"""What all measurements share: medians, cores, the machine's description, and how a result is shown."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.table import Table

from bench.interrupts import terminate_as_ctrl_c_does
from edgeswarm.errors import EdgeswarmError, ExitCode
from edgeswarm.security.files import write_atomically

FORMAT = "edgeswarm-bench/1"


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value, since the machine may have been busy with something else."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Raises ValueError for no values at all."""
        if not values:
            raise ValueError("a median needs at least one value")
        return cls(statistics.median(values), min(values), max(values), len(values))

    def shown(self, digits: int = 2) -> str:
        """`0.97 (0.95 to 0.99)`."""
        if self.count == 1:
            return f"{self.median:.{digits}f}"
        return f"{self.median:.{digits}f} ({self.least:.{digits}f} to {self.most:.{digits}f})"

    def to_json(self) -> dict[str, float]:
        return {"median": self.median, "least": self.least, "most": self.most, "count": self.count}


def ratios(numerators: Sequence[float], denominators: Sequence[float]) -> list[float]:
    """One ratio a pair: pairs were measured right after each other, so that what slows the machine slows both."""
    return [above / below for above, below in zip(numerators, denominators, strict=True)]


@dataclass
class Report:
    """One measurement's result: a table for a person, a document for a program.

    how: what was measured and in which way, in sentences. rows: cells as text. data: the same in numbers. remarks: what is to
    be known of some of them.
    """

    title: str
    how: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    verdicts: list[tuple[str, bool]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def expect(self, what: str, holds: bool) -> None:
        """Something that must hold, told below the table."""
        self.verdicts.append((what, holds))

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "title": self.title,
            "how": self.how,
            "machine": machine(),
            "results": self.data,
            "expectations": [{"what": what, "holds": holds} for what, holds in self.verdicts],
            "remarks": self.remarks,
        }

    def show(self, *, as_json: bool) -> int:
        """Prints it on standard output; the exit code: 1 where an expectation doesn't hold."""
        if as_json:
            print(json.dumps(self.to_json(), indent=2))
        else:
            console = Console(width=None if sys.stdout.isatty() else 130)
            table = Table(title=self.title, title_justify="left", title_style="bold")
            for number, column in enumerate(self.columns):
                table.add_column(column, justify="left" if number == 0 else "right")
            for row in self.rows:
                table.add_row(*row)
            console.print(table)
            console.print(self.how, highlight=False)
            console.print(", ".join(f"{name}: {value}" for name, value in machine().items()), highlight=False)
            for what, holds in self.verdicts:
                console.print(f"{'holds' if holds else 'DOES NOT HOLD'}: {what}", highlight=False)
            for remark in self.remarks:
                console.print(f"remark: {remark}", highlight=False)
        return 0 if all(holds for _, holds in self.verdicts) else 1


def show_all(reports: Sequence[Report], *, as_json: bool) -> int:
    """Several of them, as one document; the exit code."""
    if as_json:
        print(json.dumps({"format": FORMAT, "reports": [report.to_json() for report in reports]}, indent=2))
        return 0 if all(holds for report in reports for _, holds in report.verdicts) else 1
    return max(report.show(as_json=False) for report in reports)


def run_as_command(main: Callable[[], int]) -> NoReturn:
    """Ends the process with what `main` returns, or with an error's message and exit code; SIGTERM as Ctrl-C."""
    terminate_as_ctrl_c_does()
    try:
        code = main()
    except KeyboardInterrupt:
        say("Interrupted.")
        code = ExitCode.INTERRUPTED
    except EdgeswarmError as error:
        say(str(error))
        code = error.exit_code
    sys.exit(code)


def machine() -> dict[str, str]:
    """What the figures depend on, besides the code."""
    import torch

    return {
        "processor": processor(),
        "cores": str(os.cpu_count()),
        "load average": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def processor() -> str:
    """Its model, as the machine names it, and the widest instructions that PyTorch uses there: one name may stand for several."""
    import torch

    return f"{_model_name()}, {torch.backends.cpu.get_cpu_capability()}"


def _model_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def arguments(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """The flags that every measurement has."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=repeats, metavar="N", help=f"how often  [default: {repeats}]")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return parser


def folder_arguments(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """Of a measurement of hours, which keeps what it has in a folder: `--report` shows that alone."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="where the files of what was measured are")
    parser.add_argument("--repeats", type=int, default=repeats, help=f"how often  [default: {repeats}]")
    parser.add_argument("--report", action="store_true", help="only the table of what is there")
    parser.add_argument("--json", action="store_true", help="print one JSON document on standard output")
    return parser


def keep(path: Path, document: Mapping[str, Any]) -> None:
    """Writes what was measured so far, whole or not at all."""
    write_atomically(path, json.dumps(document).encode(), mode=0o644)


def say(text: str) -> None:
    """A line of progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


# --- cores ------------------------------------------------------------------------------------------------------------


def two_cores() -> tuple[int, set[int]]:
    """(the core that is measured on, the cores for everything else); the same one where there is only one."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[-1], set(cores[:-1]) or {cores[-1]}


def pin(process_id: int, cores: set[int]) -> None:
    """Keeps all threads of a process, and what they start from now on, on these cores."""
    for task in Path(f"/proc/{process_id}/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def cpu_seconds() -> float:
    """User and system time of this process, all threads."""
    times = os.times()
    return times.user + times.system


def one_thread(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment with one thread for torch."""
    return {**environment, "OMP_NUM_THREADS": "1"}
