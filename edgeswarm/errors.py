"""The one error type for what a user can mend, and the exit codes of the commands."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    """What the `edgeswarm` and `edgeswarm-agent` commands return to the shell."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING_FOUND = 3
    CANNOT_BE_PLACED = 4
    INTERRUPTED = 130


class ErrorCode(enum.Enum):
    """Every kind of mistake or mishap that reaches a person: a stable word and the exit code that goes with it."""

    JOB_FILE = ("job-file", ExitCode.ERROR)
    JOB_INVALID = ("job-invalid", ExitCode.ERROR)
    MODULE_MISSING = ("module-missing", ExitCode.ERROR)
    EXPORT_FAILED = ("export-failed", ExitCode.ERROR)
    GRAPH_REFUSED = ("graph-refused", ExitCode.ERROR)
    DATA_FAILED = ("data-failed", ExitCode.ERROR)
    BUNDLE_REFUSED = ("bundle-refused", ExitCode.ERROR)
    PLAN_INVALID = ("plan-invalid", ExitCode.ERROR)
    INSTANCE_INVALID = ("instance-invalid", ExitCode.ERROR)
    NO_PLAN_FITS = ("no-plan-fits", ExitCode.CANNOT_BE_PLACED)
    NO_DEVICES = ("no-devices", ExitCode.NOTHING_FOUND)
    DEVICE_UNREACHABLE = ("device-unreachable", ExitCode.ERROR)
    DEVICE_BUSY = ("device-busy", ExitCode.ERROR)
    DEVICE_LOST = ("device-lost", ExitCode.ERROR)
    WORKER_DIED = ("worker-died", ExitCode.ERROR)
    WORKER_FAILED = ("worker-failed", ExitCode.ERROR)
    LINK_BROKEN = ("link-broken", ExitCode.ERROR)
    STALE_CALL = ("stale-call", ExitCode.ERROR)
    VERSION_DIFFERS = ("version-differs", ExitCode.ERROR)
    TRUST = ("trust", ExitCode.ERROR)
    TOKEN = ("token", ExitCode.ERROR)
    CONFIG = ("config", ExitCode.USAGE)
    AGENT_RUNNING = ("agent-running", ExitCode.ERROR)
    PORT_IN_USE = ("port-in-use", ExitCode.ERROR)
    OUTPUT_EXISTS = ("output-exists", ExitCode.ERROR)
    OUTPUT_FAILED = ("output-failed", ExitCode.ERROR)
    CHECKPOINT = ("checkpoint", ExitCode.ERROR)
    WEIGHTS = ("weights", ExitCode.ERROR)
    NO_SUCH_JOB = ("no-such-job", ExitCode.NOTHING_FOUND)
    JOB_ENDED = ("job-ended", ExitCode.ERROR)
    MISSING_EXTRA = ("missing-extra", ExitCode.ERROR)
    INTERRUPTED = ("interrupted", ExitCode.INTERRUPTED)
    INTERNAL = ("internal", ExitCode.ERROR)

    def __init__(self, word: str, exit_code: ExitCode) -> None:
        self.word = word
        self.exit_code = exit_code

    @classmethod
    def from_word(cls, word: str) -> ErrorCode:
        """The code whose word this is; `INTERNAL` for a word of another version."""
        return next((code for code in cls if code.word == word), cls.INTERNAL)


class EdgeswarmError(Exception):
    """Something went wrong that a person can understand and mend.

    message: one sentence that names the thing (the device, the file, the layer).
    remedy: what to do about it, as an imperative; empty only where nothing can be done.
    detail: what helps a developer (a traceback of the user's own code), shown below the message when there is one.
    """

    def __init__(self, code: ErrorCode, message: str, remedy: str = "", *, detail: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.remedy = remedy
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.message} {self.remedy}".strip()

    @property
    def exit_code(self) -> ExitCode:
        return self.code.exit_code

    def to_json(self) -> dict[str, str]:
        """The error as one JSON object, as `--json` prints it and as it travels between processes."""
        return {"code": self.code.word, "message": self.message, "remedy": self.remedy, "detail": self.detail}

    @classmethod
    def from_json(cls, document: dict[str, str]) -> EdgeswarmError:
        return cls(
            ErrorCode.from_word(document.get("code", "")),
            document.get("message", "unknown error"),
            document.get("remedy", ""),
            detail=document.get("detail", ""),
        )
