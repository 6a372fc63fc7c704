"""The one error type for what a user can mend, and the exit codes of the commands."""

from __future__ import annotations

import enum

from .printable import printable


class ExitCode(enum.IntEnum):
    """What the `edgeswarm` and `edgeswarm-agent` commands return to the shell."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    NOTHING_FOUND = 3
    CANNOT_BE_PLACED = 4
    INTERRUPTED = 130


class ErrorCode(enum.Enum):
    """Every kind of mistake or mishap that reaches a person.

    word: stable, for programs. exit_code: of the command. meaning, remedy: one sentence each, what it is and what to do
    in general; the message and the remedy of an error itself name the thing. docs/errors.md is made from these.
    """

    JOB_FILE = (
        "job-file",
        ExitCode.ERROR,
        "The job file, or a function in it, raised an exception or isn't Python.",
        "Correct the line that the message names; `details:` names a file with the traceback.",
    )
    JOB_INVALID = (
        "job-invalid",
        ExitCode.ERROR,
        "The job loads, but its parts don't hold together: a value, the loss, the optimizer, a metric, `files`.",
        "Change the part that the message names; `help(edgeswarm.Job)` says what each is to be.",
    )
    MODULE_MISSING = (
        "module-missing",
        ExitCode.ERROR,
        "A Python module that the job imports is not on a device, or not on this machine.",
        "Install it in the Python that runs edgeswarm there, or import it in the function that needs it, not at the top.",
    )
    EXPORT_FAILED = (
        "export-failed",
        ExitCode.ERROR,
        "The model's forward has no fixed graph that can be cut into stages.",
        "Change the line that the message names: no decision by a tensor's values, no fixed batch size.",
    )
    GRAPH_REFUSED = (
        "graph-refused",
        ExitCode.ERROR,
        "A device can't build its stage: its PyTorch lacks an operation, or it runs another edgeswarm.",
        "Install a newer PyTorch or the same edgeswarm on that device, or choose the others with --device.",
    )
    DATA_FAILED = (
        "data-failed",
        ExitCode.ERROR,
        "An item of the data set can't be read, transformed, sent, or put into a batch with others.",
        "Correct the data set or the transform for the item that the message names.",
    )
    BUNDLE_REFUSED = (
        "bundle-refused",
        ExitCode.ERROR,
        "A device could not unpack the job's files: what arrived is damaged.",
        "Run the command again.",
    )
    PLAN_INVALID = (
        "plan-invalid",
        ExitCode.ERROR,
        "A plan file, or --micro-batch, doesn't fit the model, the batch size or the devices.",
        "Correct the field that the message names, or let `edgeswarm plan --json` write the plan.",
    )
    INSTANCE_INVALID = (
        "instance-invalid",
        ExitCode.ERROR,
        "A file of profiles, or one for `edgeswarm plan --instance`, can't be read.",
        "Correct the field that the message names; --fresh-profiles measures anew.",
    )
    NO_PLAN_FITS = (
        "no-plan-fits",
        ExitCode.CANNOT_BE_PLACED,
        "The devices' memory is too small for the model with this batch size, or the planner has no way to share it.",
        "Free memory on the device that the message names, add a device, or do what else the message lists.",
    )
    NO_DEVICES = (
        "no-devices",
        ExitCode.NOTHING_FOUND,
        "No device answers, or none has the name that was asked for.",
        "Start `edgeswarm-agent run` on each device; give addresses by --peer where mDNS doesn't reach.",
    )
    DEVICE_UNREACHABLE = (
        "device-unreachable",
        ExitCode.ERROR,
        "A device does not answer at its address.",
        "Check that it is on, on this network, and that `edgeswarm-agent run` runs there.",
    )
    DEVICE_BUSY = (
        "device-busy",
        ExitCode.ERROR,
        "Another job holds the device.",
        "Wait for that job's end, stop it, or choose other devices with --device.",
    )
    DEVICE_LOST = (
        "device-lost",
        ExitCode.ERROR,
        "A device went away while it trained: power, network, or its agent ended.",
        "Bring it back, and try again; a training that has a checkpoint goes on with --resume.",
    )
    WORKER_DIED = (
        "worker-died",
        ExitCode.ERROR,
        "The process that computes on a device ended: killed, out of memory, a crash of a library; or it hung, and was ended.",
        "Read the reason in the message; the agent's log there has more.",
    )
    WORKER_FAILED = (
        "worker-failed",
        ExitCode.ERROR,
        "The process that computes on a device met an error that it doesn't know.",
        "Read the details; `edgeswarm-agent doctor` on that device tries out its PyTorch.",
    )
    LINK_BROKEN = (
        "link-broken",
        ExitCode.ERROR,
        "The connection between two devices, or to one, ended in the middle of the work.",
        "Check the cable or the Wi-Fi between them, and try again; a training that has a checkpoint goes on with --resume.",
    )
    STALE_CALL = (
        "stale-call",
        ExitCode.ERROR,
        "A process was asked for something of a job, or of a part of it, that is over.",
        "Run the command again; if it comes again, restart the agent that the message names.",
    )
    CLONED_DEVICE = (
        "cloned-device",
        ExitCode.ERROR,
        "Two devices carry one identity: a disk or an SD card was copied.",
        "Remove the agent's folder on one of them, and join it again.",
    )
    VERSION_DIFFERS = (
        "version-differs",
        ExitCode.ERROR,
        "A device's agent speaks another version of edgeswarm's protocol, or another one was installed while it ran.",
        "Install the same version on all machines, and start their agents again.",
    )
    TRUST = (
        "trust",
        ExitCode.ERROR,
        "A certificate is missing, expired, or of another cluster; or a file of the cluster's keys is damaged.",
        "Join the device with `edgeswarm token create` and `edgeswarm-agent join`; check the clocks.",
    )
    TOKEN = (
        "token",
        ExitCode.ERROR,
        "A join token is mistyped, used up or expired.",
        "Make another one with `edgeswarm token create`.",
    )
    CONFIG = (
        "config",
        ExitCode.USAGE,
        "An option, an environment variable or a line of edgeswarm.toml has a wrong value.",
        "Correct what the message names; `--help` shows what is allowed.",
    )
    AGENT_RUNNING = (
        "agent-running",
        ExitCode.ERROR,
        "An agent with the same folder runs on this device already.",
        "Use that one, end it first, or give this one a folder of its own with --home.",
    )
    PORT_IN_USE = (
        "port-in-use",
        ExitCode.ERROR,
        "Another program listens on the port that edgeswarm was to use.",
        "End that program, or choose another port with --port or --worker-port.",
    )
    OUTPUT_EXISTS = (
        "output-exists",
        ExitCode.ERROR,
        "The folder for the result is there already; nothing is overwritten.",
        "Choose another one with --output, or move that one away.",
    )
    OUTPUT_FAILED = (
        "output-failed",
        ExitCode.ERROR,
        "A file can't be written, of the result, a checkpoint, an agent or a temporary one: disk full, or no right to.",
        "Free space there; results go where --output says, temporary files where TMPDIR does.",
    )
    CHECKPOINT = (
        "checkpoint",
        ExitCode.ERROR,
        "There is no checkpoint to resume from, it is damaged, or it is of another job.",
        "Correct what the message says differs, or train from the start.",
    )
    WEIGHTS = (
        "weights",
        ExitCode.ERROR,
        "The file of the job's `weights` can't be read, or doesn't fit the model.",
        "Give a file whose names and shapes are the model's state_dict.",
    )
    NO_SUCH_JOB = (
        "no-such-job",
        ExitCode.NOTHING_FOUND,
        "No training has the id or name that was asked for.",
        "See which there are: `edgeswarm status --all`.",
    )
    JOB_ENDED = (
        "job-ended",
        ExitCode.ERROR,
        "The training that was to be stopped is over already.",
        "See which run: `edgeswarm status`.",
    )
    MISSING_EXTRA = (
        "missing-extra",
        ExitCode.ERROR,
        "What was asked for needs a library that is not installed.",
        "Install it as the message says.",
    )
    INTERRUPTED = (
        "interrupted",
        ExitCode.INTERRUPTED,
        "Ctrl-C, or the command was asked to stop. The devices are free.",
        "Nothing is to be mended; a training that has a checkpoint goes on with --resume.",
    )
    INTERNAL = (
        "internal",
        ExitCode.ERROR,
        "edgeswarm made a mistake of its own.",
        "Report it with the log file that the message names.",
    )

    def __init__(self, word: str, exit_code: ExitCode, meaning: str, remedy: str) -> None:
        self.word = word
        self.exit_code = exit_code
        self.meaning = meaning
        self.remedy = remedy

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
        """What `to_json` made, elsewhere maybe: its texts are printable."""
        return cls(
            ErrorCode.from_word(document.get("code", "")),
            printable(document.get("message", "unknown error")),
            printable(document.get("remedy", "")),
            detail=printable(document.get("detail", "")),
        )


def said_by(error: BaseException) -> str:
    """`ValueError: no colours`: an exception's kind and the first line of its text, without a full stop at its end.

    What PyTorch's C++ says goes on for pages; the traceback, which is the detail, has all of it.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__
