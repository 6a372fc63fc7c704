from edgeswarm.wire.v1 import agent_pb2 as _agent_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkerCommand(_message.Message):
    __slots__ = ("number", "prepare", "start", "halt", "profile", "exit", "load_ahead")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    HALT_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    EXIT_FIELD_NUMBER: _ClassVar[int]
    LOAD_AHEAD_FIELD_NUMBER: _ClassVar[int]
    number: int
    prepare: PrepareCommand
    start: _agent_pb2.StartRequest
    halt: _agent_pb2.HaltRequest
    profile: _agent_pb2.ProfileRequest
    exit: ExitCommand
    load_ahead: LoadAheadCommand
    def __init__(self, number: _Optional[int] = ..., prepare: _Optional[_Union[PrepareCommand, _Mapping]] = ..., start: _Optional[_Union[_agent_pb2.StartRequest, _Mapping]] = ..., halt: _Optional[_Union[_agent_pb2.HaltRequest, _Mapping]] = ..., profile: _Optional[_Union[_agent_pb2.ProfileRequest, _Mapping]] = ..., exit: _Optional[_Union[ExitCommand, _Mapping]] = ..., load_ahead: _Optional[_Union[LoadAheadCommand, _Mapping]] = ...) -> None: ...

class PrepareCommand(_message.Message):
    __slots__ = ("request", "bundle_folder")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    request: _agent_pb2.PrepareRequest
    bundle_folder: str
    def __init__(self, request: _Optional[_Union[_agent_pb2.PrepareRequest, _Mapping]] = ..., bundle_folder: _Optional[str] = ...) -> None: ...

class ExitCommand(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadAheadCommand(_message.Message):
    __slots__ = ("bundle_folder", "job_file", "opens_data")
    BUNDLE_FOLDER_FIELD_NUMBER: _ClassVar[int]
    JOB_FILE_FIELD_NUMBER: _ClassVar[int]
    OPENS_DATA_FIELD_NUMBER: _ClassVar[int]
    bundle_folder: str
    job_file: str
    opens_data: bool
    def __init__(self, bundle_folder: _Optional[str] = ..., job_file: _Optional[str] = ..., opens_data: bool = ...) -> None: ...

class WorkerEvent(_message.Message):
    __slots__ = ("number", "hello", "progress", "ready", "started", "rounds", "rounds_done", "halted", "curve", "profiled", "failure", "evaluation")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    HALTED_FIELD_NUMBER: _ClassVar[int]
    CURVE_FIELD_NUMBER: _ClassVar[int]
    PROFILED_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    number: int
    hello: WorkerHello
    progress: _agent_pb2.WorkerProgress
    ready: _agent_pb2.PrepareReply
    started: Started
    rounds: _agent_pb2.RoundReports
    rounds_done: _agent_pb2.RoundsDone
    halted: Halted
    curve: _agent_pb2.LayerCurve
    profiled: _agent_pb2.ProcessCost
    failure: _agent_pb2.Failure
    evaluation: _agent_pb2.EvaluationReport
    def __init__(self, number: _Optional[int] = ..., hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., progress: _Optional[_Union[_agent_pb2.WorkerProgress, _Mapping]] = ..., ready: _Optional[_Union[_agent_pb2.PrepareReply, _Mapping]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., rounds: _Optional[_Union[_agent_pb2.RoundReports, _Mapping]] = ..., rounds_done: _Optional[_Union[_agent_pb2.RoundsDone, _Mapping]] = ..., halted: _Optional[_Union[Halted, _Mapping]] = ..., curve: _Optional[_Union[_agent_pb2.LayerCurve, _Mapping]] = ..., profiled: _Optional[_Union[_agent_pb2.ProcessCost, _Mapping]] = ..., failure: _Optional[_Union[_agent_pb2.Failure, _Mapping]] = ..., evaluation: _Optional[_Union[_agent_pb2.EvaluationReport, _Mapping]] = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("process_id", "port", "torch_version", "accelerator", "base_bytes")
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    BASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    process_id: int
    port: int
    torch_version: str
    accelerator: str
    base_bytes: int
    def __init__(self, process_id: _Optional[int] = ..., port: _Optional[int] = ..., torch_version: _Optional[str] = ..., accelerator: _Optional[str] = ..., base_bytes: _Optional[int] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Halted(_message.Message):
    __slots__ = ("next_round",)
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    next_round: int
    def __init__(self, next_round: _Optional[int] = ...) -> None: ...
