"""Why a worker process died, in words that a person can act on: a pure function of what is left of it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

from edgeswarm.errors import EdgeswarmError, ErrorCode

from .out_of_memory import tells_out_of_memory

_LOG_LINES = 40
_CAN_T_GO_ON = "the worker can't go on: "
_WHAT_TO_DO = "what to do: "

_OF_SIGNAL = {
    signal.SIGILL: (
        "it ran an instruction that this processor doesn't have: its PyTorch is built for another processor",
        "Install a PyTorch that is built for this board (on a Jetson, NVIDIA's own); try `edgeswarm-agent doctor`.",
    ),
    signal.SIGSEGV: (
        "it touched memory that isn't its own: a defect of PyTorch, a driver or another native library",
        "Look at the lines of its log below, and try another version of PyTorch on this device.",
    ),
    signal.SIGBUS: (
        "the machine could not give it a piece of memory that was promised: a full memory-backed folder or a bad disk",
        "Free space in the memory-backed folders (/run, /dev/shm) and look at `dmesg`.",
    ),
    signal.SIGTERM: (
        "somebody ended it",
        "See who ends processes on this device: a system shutdown, a service manager.",
    ),
    signal.SIGKILL: (
        "somebody killed it; where it wasn't a person, it was most likely the kernel, out of memory",
        "Look at `dmesg` on this device; give its worker less with `--memory`, or free memory there.",
    ),
}
_NO_MEMORY_REMEDY = (
    "Free memory on this device, offer less with `edgeswarm-agent run --memory SIZE`, or train with a smaller "
    "--micro-batch."
)


@dataclass(frozen=True)
class Remains:
    """What is known about a process that ended.

    return_code: as subprocess gives it, a negative signal number where a signal ended it.
    out_of_memory_kills: how many processes the kernel killed for lack of memory while it lived.
    log_tail: the end of what it wrote to stdout and stderr. process_id: while it lived.
    killed_by_agent: it had closed its side of the pipe, or sent what nobody understands, and did not end by itself.
    hung: how it hung, where the agent ended it for that.
    """

    process_id: int
    return_code: int
    out_of_memory_kills: int = 0
    log_tail: str = ""
    killed_by_agent: bool = False
    hung: str = ""


def explain_death(remains: Remains, *, device: str) -> EdgeswarmError:
    """WORKER_DIED with the reason, a remedy, and the last lines of the worker's log as detail."""
    reason, remedy = _reason(remains)
    lines = remains.log_tail.rstrip().splitlines()[-_LOG_LINES:]
    return EdgeswarmError(
        ErrorCode.WORKER_DIED,
        f"The worker on {device} (process {remains.process_id}) died: {reason}.",
        remedy,
        detail="\n".join(lines),
    )


def last_words(error: EdgeswarmError) -> str:
    """What a worker writes to its log when it ends by itself for a reason that it knows; `explain_death` reads it."""
    return f"{_CAN_T_GO_ON}{error.message}\n{_WHAT_TO_DO}{error.remedy}"


def _known_reason(log_tail: str) -> tuple[str, str] | None:
    lines = log_tail.rstrip().splitlines()[-2:]
    if len(lines) != 2 or not lines[0].startswith(_CAN_T_GO_ON) or not lines[1].startswith(_WHAT_TO_DO):
        return None
    return lines[0].removeprefix(_CAN_T_GO_ON).rstrip("."), lines[1].removeprefix(_WHAT_TO_DO)


def _reason(remains: Remains) -> tuple[str, str]:
    code = remains.return_code
    if remains.hung:
        return (
            f"it hung and the agent ended it: {remains.hung}",
            "See in the lines of its log below where it stood: in the job's loss, in a driver, in PyTorch.",
        )
    known = _known_reason(remains.log_tail)
    if known is not None:
        return known
    if code == -signal.SIGKILL and remains.killed_by_agent:
        last = _last_line(remains.log_tail)
        return (
            f"it stopped talking to the agent{f', after: {last}' if last else ''}",
            "Look at the lines of its log below.",
        )
    if code == -signal.SIGKILL and remains.out_of_memory_kills:
        return "the kernel killed it, out of memory (SIGKILL)", _NO_MEMORY_REMEDY
    if code in (-signal.SIGABRT, -signal.SIGSEGV) and tells_out_of_memory(remains.log_tail):
        return f"out of memory ({signal_name(-code)})", _NO_MEMORY_REMEDY
    if code < 0:
        text, remedy = _OF_SIGNAL.get(
            signal.Signals(-code) if _is_signal(-code) else signal.SIGUSR1,
            ("a signal ended it", "Look at the lines of its log below."),
        )
        return f"{text} ({signal_name(-code)})", remedy
    last = _last_line(remains.log_tail)
    if code == 0:
        return (
            "it left by itself with exit code 0, in the middle of a job",
            "Report it as a defect, with the log below.",
        )
    if tells_out_of_memory(last):
        return f"out of memory (exit code {code}: {last})", _NO_MEMORY_REMEDY
    if last.startswith(("ModuleNotFoundError", "ImportError")):
        return f"exit code {code}: {last}", "Install what is missing on this device, and run `edgeswarm-agent doctor`."
    what = f"exit code {code}: {last}" if last else f"exit code {code}, and it wrote nothing"
    return what, "Look at the lines of its log below."


def signal_name(number: int) -> str:
    """SIGSEGV for 11; `signal 99` where there is none of the number."""
    return signal.Signals(number).name if _is_signal(number) else f"signal {number}"


def _is_signal(number: int) -> bool:
    return number in set(signal.Signals)


def _last_line(text: str) -> str:
    """The last line with anything in it: of a Python traceback, the exception itself."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:300]
