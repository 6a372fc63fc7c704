from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class JobReference(_message.Message):
    __slots__ = ("job_id", "term", "epoch")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    term: int
    epoch: int
    def __init__(self, job_id: _Optional[str] = ..., term: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeviceDescription(_message.Message):
    __slots__ = ("node_id", "version", "protocol_version", "board", "platform", "hardware", "hardware_key", "cpu_cores", "memory_total_bytes", "memory_budget_bytes", "torch_version", "slow_down", "busy_with_job", "busy_since", "clock_seconds", "accelerator", "instance")
    class HardwareEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    BOARD_FIELD_NUMBER: _ClassVar[int]
    PLATFORM_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_KEY_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BUDGET_BYTES_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    SLOW_DOWN_FIELD_NUMBER: _ClassVar[int]
    BUSY_WITH_JOB_FIELD_NUMBER: _ClassVar[int]
    BUSY_SINCE_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ACCELERATOR_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    version: str
    protocol_version: int
    board: str
    platform: str
    hardware: _containers.ScalarMap[str, str]
    hardware_key: str
    cpu_cores: float
    memory_total_bytes: int
    memory_budget_bytes: int
    torch_version: str
    slow_down: float
    busy_with_job: str
    busy_since: str
    clock_seconds: float
    accelerator: str
    instance: str
    def __init__(self, node_id: _Optional[str] = ..., version: _Optional[str] = ..., protocol_version: _Optional[int] = ..., board: _Optional[str] = ..., platform: _Optional[str] = ..., hardware: _Optional[_Mapping[str, str]] = ..., hardware_key: _Optional[str] = ..., cpu_cores: _Optional[float] = ..., memory_total_bytes: _Optional[int] = ..., memory_budget_bytes: _Optional[int] = ..., torch_version: _Optional[str] = ..., slow_down: _Optional[float] = ..., busy_with_job: _Optional[str] = ..., busy_since: _Optional[str] = ..., clock_seconds: _Optional[float] = ..., accelerator: _Optional[str] = ..., instance: _Optional[str] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("job", "description", "lease_seconds", "bundle_sha256")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    description: str
    lease_seconds: float
    bundle_sha256: str
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., description: _Optional[str] = ..., lease_seconds: _Optional[float] = ..., bundle_sha256: _Optional[str] = ...) -> None: ...

class ReserveReply(_message.Message):
    __slots__ = ("has_bundle",)
    HAS_BUNDLE_FIELD_NUMBER: _ClassVar[int]
    has_bundle: bool
    def __init__(self, has_bundle: bool = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ...) -> None: ...

class AgentEvent(_message.Message):
    __slots__ = ("clock_seconds", "heartbeat", "rounds", "rounds_done", "failure", "evaluation")
    CLOCK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_DONE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_FIELD_NUMBER: _ClassVar[int]
    clock_seconds: float
    heartbeat: Heartbeat
    rounds: RoundReports
    rounds_done: RoundsDone
    failure: Failure
    evaluation: EvaluationReport
    def __init__(self, clock_seconds: _Optional[float] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., rounds: _Optional[_Union[RoundReports, _Mapping]] = ..., rounds_done: _Optional[_Union[RoundsDone, _Mapping]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., evaluation: _Optional[_Union[EvaluationReport, _Mapping]] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("number", "worker", "memory_available_bytes")
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    MEMORY_AVAILABLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    number: int
    worker: WorkerProgress
    memory_available_bytes: int
    def __init__(self, number: _Optional[int] = ..., worker: _Optional[_Union[WorkerProgress, _Mapping]] = ..., memory_available_bytes: _Optional[int] = ...) -> None: ...

class WorkerProgress(_message.Message):
    __slots__ = ("running", "process_id", "epoch", "round", "action", "waiting_for", "action_seconds", "memory_bytes", "tensor_port", "computing", "action_number", "longest_seconds")
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    PROCESS_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    WAITING_FOR_FIELD_NUMBER: _ClassVar[int]
    ACTION_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PORT_FIELD_NUMBER: _ClassVar[int]
    COMPUTING_FIELD_NUMBER: _ClassVar[int]
    ACTION_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    running: bool
    process_id: int
    epoch: int
    round: int
    action: str
    waiting_for: _containers.RepeatedScalarFieldContainer[str]
    action_seconds: float
    memory_bytes: int
    tensor_port: int
    computing: bool
    action_number: int
    longest_seconds: float
    def __init__(self, running: bool = ..., process_id: _Optional[int] = ..., epoch: _Optional[int] = ..., round: _Optional[int] = ..., action: _Optional[str] = ..., waiting_for: _Optional[_Iterable[str]] = ..., action_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., tensor_port: _Optional[int] = ..., computing: bool = ..., action_number: _Optional[int] = ..., longest_seconds: _Optional[float] = ...) -> None: ...

class RoundReports(_message.Message):
    __slots__ = ("reports",)
    REPORTS_FIELD_NUMBER: _ClassVar[int]
    reports: _containers.RepeatedCompositeFieldContainer[RoundReport]
    def __init__(self, reports: _Optional[_Iterable[_Union[RoundReport, _Mapping]]] = ...) -> None: ...

class RoundReport(_message.Message):
    __slots__ = ("epoch", "round", "seconds", "samples", "loss_sum", "loss_count", "forward_seconds", "backward_seconds", "send_seconds", "waiting_seconds", "all_reduce_seconds", "step_seconds", "other_seconds", "sent_bytes", "received_bytes", "peak_memory_bytes", "cpu_seconds", "gradient_norm", "fetched_sample_bytes", "model_cpu_seconds", "left_out_bytes")
    class WaitingSecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_SUM_FIELD_NUMBER: _ClassVar[int]
    LOSS_COUNT_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEND_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WAITING_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ALL_REDUCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    STEP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    OTHER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    GRADIENT_NORM_FIELD_NUMBER: _ClassVar[int]
    FETCHED_SAMPLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MODEL_CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LEFT_OUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    seconds: float
    samples: int
    loss_sum: float
    loss_count: float
    forward_seconds: float
    backward_seconds: float
    send_seconds: float
    waiting_seconds: _containers.ScalarMap[str, float]
    all_reduce_seconds: float
    step_seconds: float
    other_seconds: float
    sent_bytes: int
    received_bytes: int
    peak_memory_bytes: int
    cpu_seconds: float
    gradient_norm: float
    fetched_sample_bytes: int
    model_cpu_seconds: float
    left_out_bytes: int
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., seconds: _Optional[float] = ..., samples: _Optional[int] = ..., loss_sum: _Optional[float] = ..., loss_count: _Optional[float] = ..., forward_seconds: _Optional[float] = ..., backward_seconds: _Optional[float] = ..., send_seconds: _Optional[float] = ..., waiting_seconds: _Optional[_Mapping[str, float]] = ..., all_reduce_seconds: _Optional[float] = ..., step_seconds: _Optional[float] = ..., other_seconds: _Optional[float] = ..., sent_bytes: _Optional[int] = ..., received_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., cpu_seconds: _Optional[float] = ..., gradient_norm: _Optional[float] = ..., fetched_sample_bytes: _Optional[int] = ..., model_cpu_seconds: _Optional[float] = ..., left_out_bytes: _Optional[int] = ...) -> None: ...

class EvaluationReport(_message.Message):
    __slots__ = ("epoch", "round", "seconds", "samples", "metrics")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    round: int
    seconds: float
    samples: int
    metrics: _containers.RepeatedCompositeFieldContainer[MetricSum]
    def __init__(self, epoch: _Optional[int] = ..., round: _Optional[int] = ..., seconds: _Optional[float] = ..., samples: _Optional[int] = ..., metrics: _Optional[_Iterable[_Union[MetricSum, _Mapping]]] = ...) -> None: ...

class MetricSum(_message.Message):
    __slots__ = ("name", "sum", "count")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SUM_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    name: str
    sum: float
    count: float
    def __init__(self, name: _Optional[str] = ..., sum: _Optional[float] = ..., count: _Optional[float] = ...) -> None: ...

class RoundsDone(_message.Message):
    __slots__ = ("epoch", "next_round")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NEXT_ROUND_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    next_round: int
    def __init__(self, epoch: _Optional[int] = ..., next_round: _Optional[int] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("error_json", "worker_died", "suspects")
    ERROR_JSON_FIELD_NUMBER: _ClassVar[int]
    WORKER_DIED_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    error_json: str
    worker_died: bool
    suspects: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, error_json: _Optional[str] = ..., worker_died: bool = ..., suspects: _Optional[_Iterable[str]] = ...) -> None: ...

class BundlePart(_message.Message):
    __slots__ = ("job", "sha256", "data")
    JOB_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    sha256: str
    data: bytes
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., sha256: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class BundleReceipt(_message.Message):
    __slots__ = ("bytes",)
    BYTES_FIELD_NUMBER: _ClassVar[int]
    bytes: int
    def __init__(self, bytes: _Optional[int] = ...) -> None: ...

class ProfileRequest(_message.Message):
    __slots__ = ("job", "layers", "batch_sizes", "longest_seconds", "memory_limit_bytes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    layers: _containers.RepeatedCompositeFieldContainer[ProfileLayer]
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    longest_seconds: float
    memory_limit_bytes: int
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., layers: _Optional[_Iterable[_Union[ProfileLayer, _Mapping]]] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., longest_seconds: _Optional[float] = ..., memory_limit_bytes: _Optional[int] = ...) -> None: ...

class ProfileLayer(_message.Message):
    __slots__ = ("signature", "stage_graph_json", "batch_sizes", "in_flight")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    STAGE_GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    signature: str
    stage_graph_json: bytes
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    in_flight: bool
    def __init__(self, signature: _Optional[str] = ..., stage_graph_json: _Optional[bytes] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., in_flight: bool = ...) -> None: ...

class ProfileReply(_message.Message):
    __slots__ = ("curve", "process")
    CURVE_FIELD_NUMBER: _ClassVar[int]
    PROCESS_FIELD_NUMBER: _ClassVar[int]
    curve: LayerCurve
    process: ProcessCost
    def __init__(self, curve: _Optional[_Union[LayerCurve, _Mapping]] = ..., process: _Optional[_Union[ProcessCost, _Mapping]] = ...) -> None: ...

class LayerCurve(_message.Message):
    __slots__ = ("signature", "batch_sizes", "forward_seconds", "backward_seconds", "relative_errors", "peak_bytes", "held_sample_bytes", "rest_part", "weights_part")
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZES_FIELD_NUMBER: _ClassVar[int]
    FORWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RELATIVE_ERRORS_FIELD_NUMBER: _ClassVar[int]
    PEAK_BYTES_FIELD_NUMBER: _ClassVar[int]
    HELD_SAMPLE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REST_PART_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_PART_FIELD_NUMBER: _ClassVar[int]
    signature: str
    batch_sizes: _containers.RepeatedScalarFieldContainer[int]
    forward_seconds: _containers.RepeatedScalarFieldContainer[float]
    backward_seconds: _containers.RepeatedScalarFieldContainer[float]
    relative_errors: _containers.RepeatedScalarFieldContainer[float]
    peak_bytes: _containers.RepeatedScalarFieldContainer[int]
    held_sample_bytes: float
    rest_part: float
    weights_part: float
    def __init__(self, signature: _Optional[str] = ..., batch_sizes: _Optional[_Iterable[int]] = ..., forward_seconds: _Optional[_Iterable[float]] = ..., backward_seconds: _Optional[_Iterable[float]] = ..., relative_errors: _Optional[_Iterable[float]] = ..., peak_bytes: _Optional[_Iterable[int]] = ..., held_sample_bytes: _Optional[float] = ..., rest_part: _Optional[float] = ..., weights_part: _Optional[float] = ...) -> None: ...

class ProcessCost(_message.Message):
    __slots__ = ("base_bytes", "frame_seconds", "byte_seconds", "updates", "stretch", "burst_seconds")
    BASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FRAME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    STRETCH_FIELD_NUMBER: _ClassVar[int]
    BURST_SECONDS_FIELD_NUMBER: _ClassVar[int]
    base_bytes: int
    frame_seconds: float
    byte_seconds: float
    updates: _containers.RepeatedCompositeFieldContainer[UpdateCost]
    stretch: float
    burst_seconds: float
    def __init__(self, base_bytes: _Optional[int] = ..., frame_seconds: _Optional[float] = ..., byte_seconds: _Optional[float] = ..., updates: _Optional[_Iterable[_Union[UpdateCost, _Mapping]]] = ..., stretch: _Optional[float] = ..., burst_seconds: _Optional[float] = ...) -> None: ...

class UpdateCost(_message.Message):
    __slots__ = ("optimizer", "tensor_seconds", "byte_seconds")
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    TENSOR_SECONDS_FIELD_NUMBER: _ClassVar[int]
    BYTE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    optimizer: str
    tensor_seconds: float
    byte_seconds: float
    def __init__(self, optimizer: _Optional[str] = ..., tensor_seconds: _Optional[float] = ..., byte_seconds: _Optional[float] = ...) -> None: ...

class ProbeLinkRequest(_message.Message):
    __slots__ = ("node_id", "address", "seconds")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    seconds: float
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class LinkMeasurement(_message.Message):
    __slots__ = ("bandwidth_bytes_per_second", "latency_seconds", "sent_bytes", "send_byte_cpu_seconds", "receive_byte_cpu_seconds")
    BANDWIDTH_BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LATENCY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEND_BYTE_CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RECEIVE_BYTE_CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    bandwidth_bytes_per_second: float
    latency_seconds: float
    sent_bytes: int
    send_byte_cpu_seconds: float
    receive_byte_cpu_seconds: float
    def __init__(self, bandwidth_bytes_per_second: _Optional[float] = ..., latency_seconds: _Optional[float] = ..., sent_bytes: _Optional[int] = ..., send_byte_cpu_seconds: _Optional[float] = ..., receive_byte_cpu_seconds: _Optional[float] = ...) -> None: ...

class PrepareRequest(_message.Message):
    __slots__ = ("job", "plan_json", "stage", "stage_graph_json", "tied", "peers", "sources", "first_round", "training", "evaluation_graph_json", "keeps_layers")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_JSON_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STAGE_GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    TIED_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    TRAINING_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_GRAPH_JSON_FIELD_NUMBER: _ClassVar[int]
    KEEPS_LAYERS_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    plan_json: bytes
    stage: int
    stage_graph_json: bytes
    tied: _containers.RepeatedCompositeFieldContainer[TiedTensor]
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    sources: _containers.RepeatedCompositeFieldContainer[LayerSource]
    first_round: int
    training: TrainingSettings
    evaluation_graph_json: bytes
    keeps_layers: bool
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., plan_json: _Optional[bytes] = ..., stage: _Optional[int] = ..., stage_graph_json: _Optional[bytes] = ..., tied: _Optional[_Iterable[_Union[TiedTensor, _Mapping]]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., sources: _Optional[_Iterable[_Union[LayerSource, _Mapping]]] = ..., first_round: _Optional[int] = ..., training: _Optional[_Union[TrainingSettings, _Mapping]] = ..., evaluation_graph_json: _Optional[bytes] = ..., keeps_layers: bool = ...) -> None: ...

class TiedTensor(_message.Message):
    __slots__ = ("name", "stages")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STAGES_FIELD_NUMBER: _ClassVar[int]
    name: str
    stages: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., stages: _Optional[_Iterable[int]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("node_id", "address")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    address: str
    def __init__(self, node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class LayerSource(_message.Message):
    __slots__ = ("layer", "node_id", "address")
    LAYER_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    layer: int
    node_id: str
    address: str
    def __init__(self, layer: _Optional[int] = ..., node_id: _Optional[str] = ..., address: _Optional[str] = ...) -> None: ...

class TrainingSettings(_message.Message):
    __slots__ = ("bundle_sha256", "job_file", "batch_size", "epochs", "seed", "dataset_length", "data_mode", "data_service", "loss_counts", "least_batch", "evaluation_length", "wire_dtype")
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    JOB_FILE_FIELD_NUMBER: _ClassVar[int]
    BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    DATASET_LENGTH_FIELD_NUMBER: _ClassVar[int]
    DATA_MODE_FIELD_NUMBER: _ClassVar[int]
    DATA_SERVICE_FIELD_NUMBER: _ClassVar[int]
    LOSS_COUNTS_FIELD_NUMBER: _ClassVar[int]
    LEAST_BATCH_FIELD_NUMBER: _ClassVar[int]
    EVALUATION_LENGTH_FIELD_NUMBER: _ClassVar[int]
    WIRE_DTYPE_FIELD_NUMBER: _ClassVar[int]
    bundle_sha256: str
    job_file: str
    batch_size: int
    epochs: int
    seed: int
    dataset_length: int
    data_mode: str
    data_service: Peer
    loss_counts: bool
    least_batch: int
    evaluation_length: int
    wire_dtype: str
    def __init__(self, bundle_sha256: _Optional[str] = ..., job_file: _Optional[str] = ..., batch_size: _Optional[int] = ..., epochs: _Optional[int] = ..., seed: _Optional[int] = ..., dataset_length: _Optional[int] = ..., data_mode: _Optional[str] = ..., data_service: _Optional[_Union[Peer, _Mapping]] = ..., loss_counts: bool = ..., least_batch: _Optional[int] = ..., evaluation_length: _Optional[int] = ..., wire_dtype: _Optional[str] = ...) -> None: ...

class PrepareReply(_message.Message):
    __slots__ = ("parameter_bytes", "peak_memory_bytes", "seconds", "base_bytes", "fetch_peak_memory_bytes", "opened_data")
    class SecondsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    PARAMETER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BASE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FETCH_PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPENED_DATA_FIELD_NUMBER: _ClassVar[int]
    parameter_bytes: int
    peak_memory_bytes: int
    seconds: _containers.ScalarMap[str, float]
    base_bytes: int
    fetch_peak_memory_bytes: int
    opened_data: bool
    def __init__(self, parameter_bytes: _Optional[int] = ..., peak_memory_bytes: _Optional[int] = ..., seconds: _Optional[_Mapping[str, float]] = ..., base_bytes: _Optional[int] = ..., fetch_peak_memory_bytes: _Optional[int] = ..., opened_data: bool = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("job", "first_round", "end_round", "evaluate")
    JOB_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROUND_FIELD_NUMBER: _ClassVar[int]
    END_ROUND_FIELD_NUMBER: _ClassVar[int]
    EVALUATE_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    first_round: int
    end_round: int
    evaluate: bool
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., first_round: _Optional[int] = ..., end_round: _Optional[int] = ..., evaluate: bool = ...) -> None: ...

class StartReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HaltRequest(_message.Message):
    __slots__ = ("job", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    reason: str
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class HaltReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LoadAheadRequest(_message.Message):
    __slots__ = ("job", "bundle_sha256", "job_file")
    JOB_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    JOB_FILE_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    bundle_sha256: str
    job_file: str
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., bundle_sha256: _Optional[str] = ..., job_file: _Optional[str] = ...) -> None: ...

class LoadAheadReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RenewWorkerRequest(_message.Message):
    __slots__ = ("job",)
    JOB_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ...) -> None: ...

class RenewWorkerReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("job", "reason")
    JOB_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    job: JobReference
    reason: str
    def __init__(self, job: _Optional[_Union[JobReference, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class ReleaseReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PingReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
