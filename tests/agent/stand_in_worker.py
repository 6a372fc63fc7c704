"""A worker that computes nothing, for faults that the real one can't be made to have at will.

    python stand_in_worker.py MODE --events-fd N ...

MODE says what happens at the `start` command: `answer` (rounds are reported), or a fault by its name. `at-once:FAULT`
has the fault before the hello, `after-hello:FAULT` right behind it.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.wire.v1 import agent_pb2, worker_pb2
from edgeswarm_agent.pipe import MessagePipe

PORT = 4321
# What was to be loaded ahead so far; it comes back in the reply to `prepare` as well.
AHEAD: list[str] = []


def fault(mode: str, pipe: MessagePipe) -> None:
    if mode == "exit-3":
        sys.stderr.write("it was nice here\n")
        sys.exit(3)
    elif mode == "raise":
        raise RuntimeError("the model ate the homework")
    elif mode == "no-module":
        import a_module_that_nobody_has  # type: ignore[import-not-found]  # noqa: F401
    elif mode in {"SIGILL", "SIGKILL", "SIGSTOP"}:
        os.kill(os.getpid(), signal.Signals[mode])
    elif mode == "chatter":
        for number in range(60_000):
            sys.stdout.write(f"line {number} of many that nobody reads\n")
        sys.exit(3)
    elif mode == "asleep":
        sys.stderr.write("asleep\n")
        time.sleep(60)
    elif mode == "garbage":
        os.write(int(sys.argv[sys.argv.index("--events-fd") + 1]), b"\xff" * 64)
        time.sleep(60)
    elif mode == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A child that would keep the pipes open after its parent's end.
        subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(60)"])
        reports = agent_pb2.RoundReports(reports=[agent_pb2.RoundReport(round=99)])
        pipe.send(worker_pb2.WorkerEvent(rounds=reports))
        time.sleep(60)
    elif mode == "failure":
        from edgeswarm_agent.device import error_json  # here: it imports much, and workers start often

        error = EdgeswarmError(ErrorCode.LINK_BROKEN, "The link to nano-2 broke.", "Look at its cable.")
        failure = agent_pb2.Failure(error_json=error_json(error), suspects=["nano-2"])
        pipe.send(worker_pb2.WorkerEvent(failure=failure))


def answer(command: worker_pb2.WorkerCommand, pipe: MessagePipe, mode: str) -> None:
    kind, number = command.WhichOneof("command"), command.number
    if kind == "prepare":
        # The folder comes back in the reply, so that a test can look at what the daemon unpacked.
        files = os.listdir(command.prepare.bundle_folder)
        reply = agent_pb2.PrepareReply(
            parameter_bytes=12,
            seconds=dict.fromkeys([*files, *AHEAD], 1.0),
            opened_data=command.prepare.request.training.data_mode == "local",
        )
        pipe.send(worker_pb2.WorkerEvent(number=number, ready=reply))
    elif kind == "start":
        if mode != "answer":
            fault(mode, pipe)
            return
        pipe.send(worker_pb2.WorkerEvent(number=number, started=worker_pb2.Started()))
        for round_number in range(command.start.first_round, command.start.end_round):
            reports = agent_pb2.RoundReports(reports=[agent_pb2.RoundReport(round=round_number)])
            pipe.send(worker_pb2.WorkerEvent(rounds=reports))
        if command.start.evaluate:
            report = agent_pb2.EvaluationReport(round=command.start.end_round)
            pipe.send(worker_pb2.WorkerEvent(evaluation=report))
        done = agent_pb2.RoundsDone(next_round=command.start.end_round)
        pipe.send(worker_pb2.WorkerEvent(rounds_done=done))
    elif kind == "profile":
        for layer in command.profile.layers:
            pipe.send(worker_pb2.WorkerEvent(number=number, curve=agent_pb2.LayerCurve(signature=layer.signature)))
        held_bytes = command.profile.memory_limit_bytes or 7
        pipe.send(worker_pb2.WorkerEvent(number=number, profiled=agent_pb2.ProcessCost(base_bytes=held_bytes)))
    elif kind == "load_ahead":
        ahead = command.load_ahead
        AHEAD.append(f"ahead: {ahead.job_file}{', data' if ahead.opens_data else ''}")
    elif kind == "halt":
        pipe.send(worker_pb2.WorkerEvent(number=number, halted=worker_pb2.Halted(next_round=5)))


def main() -> None:
    mode = sys.argv[1]
    events = int(sys.argv[sys.argv.index("--events-fd") + 1])
    pipe = MessagePipe(os.fdopen(os.dup(0), "rb"), os.fdopen(events, "wb", buffering=0))
    if mode.startswith("at-once:"):
        fault(mode.partition(":")[2], pipe)
    pipe.send(worker_pb2.WorkerEvent(hello=worker_pb2.WorkerHello(process_id=os.getpid(), port=PORT)))
    progress = agent_pb2.WorkerProgress(action="thinking", waiting_for=["nano-9"], action_seconds=1.0)
    pipe.send(worker_pb2.WorkerEvent(progress=progress))
    if mode.startswith("after-hello:"):
        fault(mode.partition(":")[2], pipe)
    while (command := pipe.receive(worker_pb2.WorkerCommand)) is not None:
        answer(command, pipe, mode)


if __name__ == "__main__":
    main()
