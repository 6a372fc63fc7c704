"""The control service of an agent: each call of protos/edgeswarm/wire/v1/agent.proto, as that file describes it.

Everything that decides or waits is in `Device`, `BundleStore` and `WorkerProcess`; here is what the wire needs: who may
call, requests to values, values to replies. An EdgeswarmError that is raised here reaches the caller as it is.
"""

from __future__ import annotations

import dataclasses
import queue
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc

import edgeswarm
from edgeswarm.errors import EdgeswarmError, ErrorCode
from edgeswarm.prepare_parts import REHEARSE
from edgeswarm.security.certificates import Role
from edgeswarm.security.identity import Identity
from edgeswarm.wire.channel import require_role
from edgeswarm.wire.fetch import PREPARE_SECONDS
from edgeswarm.wire.link_probe import measure_link
from edgeswarm.wire.v1 import agent_pb2, agent_pb2_grpc, worker_pb2
from edgeswarm.wire.version import PROTOCOL_VERSION

from .bundles import BundleStore
from .device import Device, LastPart
from .installed_version import InstalledVersion
from .reservation import JobCall, since
from .supervisor import WorkerProcess
from .telemetry.card import read_training_memory
from .telemetry.hardware_now import HardwareNow

# What a call waits for the worker at most, where its caller's deadline isn't sooner. For Prepare it is PREPARE_SECONDS.
HALT_SECONDS = 10.0
START_SECONDS = 10.0
# Between two curves. A slow device's second batch size may take 32 times the request's `longest_seconds`, and is repeated.
PROFILE_SECONDS = 900.0


@dataclass(frozen=True)
class AgentParts:
    """What the service speaks for."""

    identity: Identity
    device: Device
    bundles: BundleStore
    hardware: HardwareNow
    memory_limit_bytes: int | None = None


class AgentService(agent_pb2_grpc.AgentServicer):
    """The servicer. Calls that change something need an operator's certificate."""

    def __init__(self, parts: AgentParts) -> None:
        self._parts = parts
        self._device = parts.device
        self._node_id = parts.identity.node_id
        self._installed = InstalledVersion(self._node_id)
        # Two of them under one node id are two boxes: a cloned disk.
        self._instance = secrets.token_hex(8)

    # --- calls that anybody of the cluster may make ---------------------------------------------------------------

    def Describe(
        self, request: agent_pb2.DescribeRequest, context: grpc.ServicerContext
    ) -> agent_pb2.DeviceDescription:
        hardware = self._parts.hardware.read()
        memory = read_training_memory(hardware.accelerator)
        memory = dataclasses.replace(memory, available=memory.available + self._device.ready_worker_bytes())
        holding = self._device.reservation.holding
        return agent_pb2.DeviceDescription(
            node_id=self._node_id,
            version=edgeswarm.__version__,
            protocol_version=PROTOCOL_VERSION,
            board=hardware.board,
            platform=hardware.platform,
            hardware=hardware.values,
            hardware_key=hardware.key,
            cpu_cores=hardware.cpu_cores,
            memory_total_bytes=memory.total,
            memory_budget_bytes=memory.budget(self._parts.memory_limit_bytes),
            torch_version=hardware.torch_version,
            slow_down=hardware.slow_down,
            busy_with_job=holding.job_id if holding else "",
            busy_since=since(holding) if holding else "",
            clock_seconds=time.time(),
            accelerator=hardware.accelerator,
            instance=self._instance,
        )

    def Ping(self, request: agent_pb2.PingRequest, context: grpc.ServicerContext) -> agent_pb2.PingReply:
        return agent_pb2.PingReply()

    # --- a job's beginning and end --------------------------------------------------------------------------------

    def Reserve(self, request: agent_pb2.ReserveRequest, context: grpc.ServicerContext) -> agent_pb2.ReserveReply:
        operator = require_role(context, Role.OPERATOR)
        call = _call(request.job)
        if not call.job_id:
            raise EdgeswarmError(
                ErrorCode.STALE_CALL, f"A reservation of {self._node_id} names no job.", "Give a job id."
            )
        self._installed.refuse_another()
        who = f"{request.description} ({operator})" if request.description else operator
        self._device.reserve(call, who=who, lease_seconds=request.lease_seconds)
        return agent_pb2.ReserveReply(has_bundle=self._parts.bundles.has(request.bundle_sha256))

    def Release(self, request: agent_pb2.ReleaseRequest, context: grpc.ServicerContext) -> agent_pb2.ReleaseReply:
        require_role(context, Role.OPERATOR)
        self._device.release(_call(request.job), request.reason)
        return agent_pb2.ReleaseReply()

    def Watch(self, request: agent_pb2.WatchRequest, context: grpc.ServicerContext) -> Iterator[agent_pb2.AgentEvent]:
        require_role(context, Role.OPERATOR)
        call = _call(request.job)
        watch = self._device.open_watch(call)
        # Called from a thread of gRPC as soon as the stream is over, whoever ended it.
        if not context.add_callback(lambda: self._device.watch_broken(call, watch)):
            self._device.watch_broken(call, watch)
        yield from self._device.events(call, watch)

    def PutBundle(
        self, request_iterator: Iterator[agent_pb2.BundlePart], context: grpc.ServicerContext
    ) -> agent_pb2.BundleReceipt:
        require_role(context, Role.OPERATOR)
        first = next(request_iterator, None)
        if first is None:
            raise EdgeswarmError(ErrorCode.JOB_INVALID, f"An empty bundle came to {self._node_id}.", "Send its parts.")
        self._admit(first.job)

        def parts() -> Iterator[bytes]:
            yield first.data
            for part in request_iterator:
                yield part.data

        return agent_pb2.BundleReceipt(bytes=self._parts.bundles.put(first.sha256, parts()))

    def LoadAhead(self, request: agent_pb2.LoadAheadRequest, context: grpc.ServicerContext) -> agent_pb2.LoadAheadReply:
        require_role(context, Role.OPERATOR)
        self._device.load_ahead(
            _call(request.job),
            request.job_file,
            unpacked=lambda: self._parts.bundles.unpacked(request.bundle_sha256),
        )
        return agent_pb2.LoadAheadReply()

    # --- measuring ------------------------------------------------------------------------------------------------

    def Profile(
        self, request: agent_pb2.ProfileRequest, context: grpc.ServicerContext
    ) -> Iterator[agent_pb2.ProfileReply]:
        require_role(context, Role.OPERATOR)
        call = _call(request.job)
        worker = self._device.measuring_worker(call)
        command = worker_pb2.WorkerCommand(profile=request)
        command.profile.memory_limit_bytes = self._parts.memory_limit_bytes or 0
        with _Conversation(worker, command, context) as conversation:
            done = False
            try:
                while not done:
                    event = conversation.next(PROFILE_SECONDS)
                    if event.HasField("curve"):
                        yield agent_pb2.ProfileReply(curve=event.curve)
                    else:
                        yield agent_pb2.ProfileReply(process=event.profiled)
                        done = True
            finally:
                if not done and worker.alive:
                    # The caller left: nobody waits for the rest.
                    halt = agent_pb2.HaltRequest(job=request.job, reason="the profile's caller left")
                    worker.forget(worker.send(worker_pb2.WorkerCommand(halt=halt)))

    def ProbeLink(
        self, request: agent_pb2.ProbeLinkRequest, context: grpc.ServicerContext
    ) -> agent_pb2.LinkMeasurement:
        require_role(context, Role.OPERATOR)
        return measure_link(
            identity=self._parts.identity, node_id=request.node_id, address=request.address, seconds=request.seconds
        )

    def RenewWorker(
        self, request: agent_pb2.RenewWorkerRequest, context: grpc.ServicerContext
    ) -> agent_pb2.RenewWorkerReply:
        require_role(context, Role.OPERATOR)
        self._device.renew_worker(_call(request.job))
        return agent_pb2.RenewWorkerReply()

    # --- epochs ---------------------------------------------------------------------------------------------------

    def Prepare(self, request: agent_pb2.PrepareRequest, context: grpc.ServicerContext) -> agent_pb2.PrepareReply:
        require_role(context, Role.OPERATOR)
        call = _call(request.job)
        self._device.update(lambda reservation: reservation.begin_epoch(call))
        folder = self._parts.bundles.unpacked(request.training.bundle_sha256)
        worker = self._device.worker(call, start=True)
        prepare = worker_pb2.PrepareCommand(request=request, bundle_folder=str(folder))
        with _Conversation(worker, worker_pb2.WorkerCommand(prepare=prepare), context) as conversation:
            ready = conversation.next(PREPARE_SECONDS).ready
        self._device.prepared(
            LastPart(request.training.job_file, ready.opened_data), rehearsal_seconds=ready.seconds.get(REHEARSE, 0.0)
        )
        return ready

    def Start(self, request: agent_pb2.StartRequest, context: grpc.ServicerContext) -> agent_pb2.StartReply:
        require_role(context, Role.OPERATOR)
        call = _call(request.job)
        self._device.update(lambda reservation: reservation.admit_in_epoch(call))
        worker = self._device.worker(call, start=False)
        with _Conversation(worker, worker_pb2.WorkerCommand(start=request), context) as conversation:
            conversation.next(START_SECONDS)
        return agent_pb2.StartReply()

    def Halt(self, request: agent_pb2.HaltRequest, context: grpc.ServicerContext) -> agent_pb2.HaltReply:
        require_role(context, Role.OPERATOR)
        call = _call(request.job)
        self._device.update(lambda reservation: reservation.admit_halt(call))
        try:
            worker = self._device.worker(call, start=False)
            with _Conversation(worker, worker_pb2.WorkerCommand(halt=request), context) as conversation:
                conversation.next(HALT_SECONDS)
        except EdgeswarmError as error:
            # A worker that is dead has halted; Watch tells of its death.
            if error.code is not ErrorCode.WORKER_DIED:
                raise
        return agent_pb2.HaltReply()

    def _admit(self, job: agent_pb2.JobReference) -> None:
        call = _call(job)
        self._device.update(lambda reservation: reservation.admit(call))


class _Conversation:
    """A command to the worker on behalf of a call, given up when the call's caller goes."""

    def __init__(self, worker: WorkerProcess, command: worker_pb2.WorkerCommand, context: grpc.ServicerContext) -> None:
        self._worker = worker
        self._command = command
        # Counted by a clock that nobody sets: gRPC's is the wall's, and boards get their time from the network, at some time.
        left_seconds = context.time_remaining()
        self._deadline = None if left_seconds is None else time.monotonic() + left_seconds
        self._pending = worker.send(command)
        context.add_callback(lambda: self._pending.abandon("The caller is gone."))

    def __enter__(self) -> _Conversation:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.forget(self._pending)

    def next(self, longest_seconds: float) -> worker_pb2.WorkerEvent:
        """The worker's next answer. Raises: its error, its death, WORKER_FAILED in silence."""
        timeout = longest_seconds
        if self._deadline is not None:
            timeout = min(longest_seconds, max(0.0, self._deadline - time.monotonic()))
        try:
            return self._pending.next(timeout)
        except queue.Empty:
            raise self._worker.silence(self._command, timeout) from None


def _call(job: agent_pb2.JobReference) -> JobCall:
    return JobCall(job_id=job.job_id, term=job.term, epoch=job.epoch)
