from edgeswarm.wire.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SampleSet(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLE_SET_TRAINING: _ClassVar[SampleSet]
    SAMPLE_SET_EVALUATION: _ClassVar[SampleSet]

class SamplePart(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SAMPLE_PART_BOTH: _ClassVar[SamplePart]
    SAMPLE_PART_INPUTS: _ClassVar[SamplePart]
    SAMPLE_PART_TARGETS: _ClassVar[SamplePart]
SAMPLE_SET_TRAINING: SampleSet
SAMPLE_SET_EVALUATION: SampleSet
SAMPLE_PART_BOTH: SamplePart
SAMPLE_PART_INPUTS: SamplePart
SAMPLE_PART_TARGETS: SamplePart

class FetchLayerRequest(_message.Message):
    __slots__ = ("job", "layer", "round", "changed_only", "without_optimizer")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAYER_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    CHANGED_ONLY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    job: _agent_pb2.JobReference
    layer: int
    round: int
    changed_only: bool
    without_optimizer: bool
    def __init__(self, job: _Optional[_Union[_agent_pb2.JobReference, _Mapping]] = ..., layer: _Optional[int] = ..., round: _Optional[int] = ..., changed_only: bool = ..., without_optimizer: bool = ...) -> None: ...

class StreamTicket(_message.Message):
    __slots__ = ("port", "ticket")
    PORT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    port: int
    ticket: bytes
    def __init__(self, port: _Optional[int] = ..., ticket: _Optional[bytes] = ...) -> None: ...

class FetchSamplesRequest(_message.Message):
    __slots__ = ("job", "indices", "part", "set")
    JOB_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    SET_FIELD_NUMBER: _ClassVar[int]
    job: _agent_pb2.JobReference
    indices: _containers.RepeatedScalarFieldContainer[int]
    part: SamplePart
    set: SampleSet
    def __init__(self, job: _Optional[_Union[_agent_pb2.JobReference, _Mapping]] = ..., indices: _Optional[_Iterable[int]] = ..., part: _Optional[_Union[SamplePart, str]] = ..., set: _Optional[_Union[SampleSet, str]] = ...) -> None: ...
