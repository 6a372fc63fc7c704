"""The worker's command loop: commands from the daemon in, events out.

[reader thread]  commands --> queue --> [main thread]  prepare, start, profile: everything that computes
                 halt: throws the epoch's switch at once, so that computing ends between two layers
[progress thread]  every second: what it does, for whom it waits
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch

from edgeswarm.errors import EdgeswarmError, ErrorCode, said_by
from edgeswarm.job_file import user_error
from edgeswarm.model.draws import TURNS
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.snapshot import LayerState
from edgeswarm.wire.v1 import agent_pb2, worker_pb2

from ..pipe import MessagePipe, PipeBroken
from ..profiler.profile import run_profile
from ..profiler.wire_cost import WireCost, measure_wire
from .accelerator import held_bytes, made_ready
from .epoch_state import EpochSwitch
from .errors import HaltedError, LinkBrokenError, line_of
from .executor import run_rounds
from .loaded_job import LoadedJob
from .round_reports import RoundReports
from .sample_cache import SampleCache
from .setup import StageEpoch, WorkerContext
from .tensor_server import TensorServer
from .timing import Progress
from .transformed_samples import TransformedCache
from .without_compiler import leave_out_compiler

PROGRESS_SECONDS = 1.0  # a report takes a small device a thousandth of a second
# What these say is true of this device; their messages are made where its name isn't known.
TOLD_WITH_THE_DEVICE = (ErrorCode.GRAPH_REFUSED, ErrorCode.JOB_INVALID)


class Worker:
    """One worker process. `run` returns when the daemon says exit; the end of the pipe ends the process at once."""

    def __init__(
        self,
        pipe: MessagePipe,
        *,
        identity_folder: Path,
        listen: str,
        slow_down: float,
        threads: int,
        sample_cache: SampleCache,
    ) -> None:
        # Numbers below 1e-38 are zeros. A deep network's first gradients may be full of them, and an Intel processor takes some
        # hundred cycles for each (bench/tiny_numbers.py). Threads have it of the thread that starts them: first of all things.
        torch.set_flush_denormal(True)
        leave_out_compiler()
        torch.set_num_threads(threads)
        accelerator = made_ready()
        identity = Identity.load(identity_folder, role=Role.AGENT)
        self._pipe = pipe
        self._progress = Progress(waits_for_turn=lambda: TURNS.first_waits)
        self._server = _tensor_server(identity, listen)
        self._context = WorkerContext(
            identity=identity,
            device=identity.node_id,
            accelerator=accelerator,
            slow_down=slow_down,
            progress=self._progress,
            server=self._server,
            sample_cache=sample_cache,
            transformed_cache=TransformedCache(sample_cache),
        )
        self._commands: queue.SimpleQueue[worker_pb2.WorkerCommand] = queue.SimpleQueue()
        self._epoch: StageEpoch | None = None
        self._job_folder: Path | None = None
        self._loaded: LoadedJob | None = None
        # What a halt ends: the epoch's switch, or the profile's.
        self._switch = EpochSwitch()
        # Halts that came, and those whose turn in the queue has come; each is counted by one thread.
        self._halts_read = 0
        self._halts_done = 0
        self._next_round = 0
        self._reports = RoundReports(send=lambda reports: self._send(0, rounds=reports))

    def run(self) -> None:
        self._send(0, hello=worker_pb2.WorkerHello(
            process_id=os.getpid(),
            port=self._server.port,
            torch_version=torch.__version__,
            accelerator=self._context.accelerator,
            base_bytes=held_bytes(self._context.accelerator),
        ))  # fmt: skip
        threading.Thread(target=self._read_commands, name="commands", daemon=True).start()
        threading.Thread(target=self._report_progress, name="progress", daemon=True).start()
        while True:
            command = self._commands.get()
            kind = command.WhichOneof("command")
            if kind == "exit":
                break
            self._answer(command, kind or "")
        self._end_epoch()
        self._server.stop()

    # --- threads ------------------------------------------------------------------------------------------------

    def _read_commands(self) -> None:
        with contextlib.suppress(PipeBroken):
            while (command := self._pipe.receive(worker_pb2.WorkerCommand)) is not None:
                if command.HasField("halt"):
                    self._halts_read += 1
                    self._switch.halt()
                self._commands.put(command)
        _leave()

    def _report_progress(self) -> None:
        while True:
            doing = self._progress.read()
            self._send(0, progress=agent_pb2.WorkerProgress(
                running=True,
                process_id=os.getpid(),
                epoch=self._progress.epoch,
                round=self._progress.round,
                action=doing.action,
                waiting_for=doing.waiting_for,
                action_seconds=time.monotonic() - doing.since,
                memory_bytes=held_bytes(self._context.accelerator),
                tensor_port=self._server.port,
                computing=bool(doing.kind),
                action_number=doing.number,
                longest_seconds=doing.longest_seconds,
            ))  # fmt: skip
            self._reports.send_held()
            time.sleep(PROGRESS_SECONDS)

    # --- commands -----------------------------------------------------------------------------------------------

    def _answer(self, command: worker_pb2.WorkerCommand, kind: str) -> None:
        actions: dict[str, Callable[[worker_pb2.WorkerCommand], None]] = {
            "prepare": self._prepare,
            "start": self._start,
            "halt": self._halt,
            "profile": self._profile,
            "load_ahead": self._load_ahead,
        }
        try:
            actions[kind](command)
        except HaltedError:
            # The halt command is next in the queue and answers; this one is answered too, so that nobody waits.
            self._fail(command.number, EdgeswarmError(ErrorCode.STALE_CALL, "the epoch was halted"))
        except (Exception, SystemExit) as error:  # the user's code may do either
            self._fail(command.number, error)
        finally:
            self._progress.set("idle")

    def _prepare(self, command: worker_pb2.WorkerCommand) -> None:
        request = command.prepare.request
        kept = self._kept_layers(request) if request.keeps_layers else None
        self._end_epoch(keeps_memory=request.keeps_layers)
        self._job_folder = Path(command.prepare.bundle_folder)
        loaded = self._loaded_job(self._job_folder, request.training.job_file)
        epoch = StageEpoch(self._context, request, loaded=loaded, kept=kept)
        del kept
        self._epoch = epoch
        self._take_switch(epoch.switch)
        self._progress.begin_epoch(request.job.epoch)
        self._next_round = request.first_round
        try:
            ready = epoch.prepare()
        except BaseException:
            self._end_epoch()
            raise
        self._send(command.number, ready=ready)

    def _load_ahead(self, command: worker_pb2.WorkerCommand) -> None:
        ahead = command.load_ahead
        self._progress.set("load job")
        self._loaded_job(Path(ahead.bundle_folder), ahead.job_file).load_ahead(opens_data=ahead.opens_data)

    def _loaded_job(self, folder: Path, job_file: str) -> LoadedJob:
        """For all epochs the same: loaded anew it would lie there twice, since modules stay."""
        if self._loaded is None or not self._loaded.is_of(folder, job_file):
            self._loaded = LoadedJob(folder, job_file, where=self._context.device)
        return self._loaded

    def _kept_layers(self, request: agent_pb2.PrepareRequest) -> dict[int, LayerState]:
        epoch = self._epoch
        if epoch is None or epoch.job.job_id != request.job.job_id:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "prepare keeps layers, and this worker has none of the job")
        return epoch.holder.states(request.first_round)

    def _start(self, command: worker_pb2.WorkerCommand) -> None:
        epoch = self._epoch
        if epoch is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "start came before prepare")
        start = command.start
        if not self._next_round == start.first_round <= start.end_round:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL,
                f"start asked for rounds from {start.first_round} up to {start.end_round}; "
                f"round {self._next_round} comes next here",
            )
        if start.evaluate and epoch.evaluation is None:
            raise EdgeswarmError(ErrorCode.STALE_CALL, "start asked for an evaluation that was not prepared")
        epoch.switch.check()
        epoch.holder.let_go()
        self._send(command.number, started=worker_pb2.Started())
        try:
            try:
                run_rounds(epoch.executor, start.first_round, start.end_round, finished=self._round_finished)
            finally:
                self._reports.send_held()
            if start.evaluate and epoch.evaluation is not None:
                report = epoch.evaluation.run(start.end_round)
                if report is not None:
                    self._send(0, evaluation=report)
        except (Exception, SystemExit) as error:  # the user's code may do either
            cause = epoch.switch.end_with(error)
            if cause is not None:
                self._fail(0, cause)
            return
        epoch.holder.hold(start.end_round)
        self._send(0, rounds_done=agent_pb2.RoundsDone(epoch=epoch.job.epoch, next_round=start.end_round))

    def _round_finished(self, report: agent_pb2.RoundReport) -> None:
        self._next_round = report.round + 1
        self._reports.add(report)

    def _halt(self, command: worker_pb2.WorkerCommand) -> None:
        self._halts_done += 1
        self._end_epoch()
        self._send(command.number, halted=worker_pb2.Halted(next_round=self._next_round))

    def _profile(self, command: worker_pb2.WorkerCommand) -> None:
        self._end_epoch()
        switch = EpochSwitch()
        self._take_switch(switch)
        self._progress.set("profiling")

        def measure_own_wire() -> WireCost:
            wire_switch = EpochSwitch()  # its streams end with it, which is no error of the profile

            def halt_too() -> None:
                wire_switch.halt()

            switch.on_thrown(halt_too)
            return measure_wire(self._context.identity, self._server, switch=wire_switch)

        cost = run_profile(
            command.profile,
            send=lambda curve: self._send(command.number, curve=curve),
            slow_down=self._context.slow_down,
            check_halt=switch.check,
            measure_wire=measure_own_wire,
        )
        self._send(command.number, profiled=cost)

    def _take_switch(self, switch: EpochSwitch) -> None:
        """From now on a halt throws this one; at once where it has come while this command waited in the queue."""
        self._switch = switch
        if self._halts_read > self._halts_done:
            switch.halt()

    def _end_epoch(self, *, keeps_memory: bool = False) -> None:
        epoch, self._epoch = self._epoch, None
        if epoch is not None:
            epoch.close(keeps_memory=keeps_memory)

    # --- events -------------------------------------------------------------------------------------------------

    def _fail(self, number: int, error: BaseException) -> None:
        suspects = [error.peer] if isinstance(error, LinkBrokenError) else []
        readable = readable_error(error, self._context.device, job_folder=self._job_folder)
        document = json.dumps(readable.to_json())
        self._send(number, failure=agent_pb2.Failure(error_json=document, suspects=suspects))

    def _send(
        self,
        number: int,
        *,
        hello: worker_pb2.WorkerHello | None = None,
        progress: agent_pb2.WorkerProgress | None = None,
        ready: agent_pb2.PrepareReply | None = None,
        started: worker_pb2.Started | None = None,
        rounds: agent_pb2.RoundReports | None = None,
        evaluation: agent_pb2.EvaluationReport | None = None,
        rounds_done: agent_pb2.RoundsDone | None = None,
        halted: worker_pb2.Halted | None = None,
        curve: agent_pb2.LayerCurve | None = None,
        profiled: agent_pb2.ProcessCost | None = None,
        failure: agent_pb2.Failure | None = None,
    ) -> None:
        try:
            self._pipe.send(worker_pb2.WorkerEvent(
                number=number,
                hello=hello,
                progress=progress,
                ready=ready,
                started=started,
                rounds=rounds,
                evaluation=evaluation,
                rounds_done=rounds_done,
                halted=halted,
                curve=curve,
                profiled=profiled,
                failure=failure,
            ))  # fmt: skip
        except BrokenPipeError:
            _leave()  # the reader thread ends the process as well


def _leave() -> None:
    """The daemon is gone: nobody is left to compute for, or to end what the job's code has started."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _tensor_server(identity: Identity, listen: str) -> TensorServer:
    try:
        return TensorServer(identity, address=listen)
    except EdgeswarmError as error:
        if error.code is not ErrorCode.PORT_IN_USE:
            raise
        raise EdgeswarmError(
            ErrorCode.PORT_IN_USE,
            f"another program listens on {listen}, the worker's port.",
            "End that program, or start the agent there with another --worker-port.",
        ) from error


def readable_error(error: BaseException, device: str, *, job_folder: Path | None = None) -> EdgeswarmError:
    """What went wrong as a person reads it; the user's code may raise anything.

    job_folder: with the job's files here; what comes out of them is told with their file and line.
    """
    if isinstance(error, EdgeswarmError):
        if error.code not in TOLD_WITH_THE_DEVICE:
            return error
        message = f"{error.message.rstrip('.')} (on {device})."
        return EdgeswarmError(error.code, message, error.remedy, detail=error.detail)
    frames = traceback.extract_tb(error.__traceback__)
    if job_folder is not None:
        folder = job_folder.resolve()
        if any(Path(frame.filename).is_relative_to(folder) for frame in frames):
            return user_error(error, folder, where=device, doing="running the job")
    return EdgeswarmError(
        ErrorCode.WORKER_FAILED,
        f"The worker on {device} failed: {said_by(error)}{line_of(error)}.",
        "The details show where; if it is your job's code, correct it there.",
        detail="".join(traceback.format_exception(error)),
    )
