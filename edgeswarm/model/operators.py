"""The operations that a stage may call: a list, so that a graph from the network can compute and do nothing else.

A graph names an operation as torch does: `aten.conv2d.default`, packet and overload. What reads or writes files, calls back into
Python, prints, or belongs to a custom namespace isn't listed. The list is of packets; their `out` overloads are left out.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import EdgeswarmError, ErrorCode

_ARITHMETIC = """
abs add addcdiv addcmul angle clamp clamp_max clamp_min clip copysign cumprod cumsum deg2rad diff div divide dot exp
exp2 expm1 fmod frac hypot lerp log log10 log1p log2 logaddexp logaddexp2 logcumsumexp logsumexp logit max maximum min
minimum mul multiply mvlgamma nan_to_num neg negative outer pow float_power positive rad2deg reciprocal remainder
rsqrt rsub sigmoid sign sgn sinc sqrt square sub subtract true_divide floor_divide trunc fix xlogy special_xlogy
special_erf erf erfc erfinv special_expit special_log1p special_expm1 digamma lgamma sin cos tan asin acos atan atan2
arctan2 sinh cosh tanh asinh acosh atanh ceil floor round heaviside cross linalg_cross
"""
_COMPARISON = """
all any amax amin aminmax argmax argmin argsort bitwise_and bitwise_not bitwise_or bitwise_xor bitwise_left_shift
bitwise_right_shift bucketize searchsorted eq equal ge greater greater_equal gt le less less_equal lt ne not_equal
isclose isfinite isinf isnan isneginf isposinf isin logical_and logical_not logical_or logical_xor signbit sort topk
kthvalue median nanmedian mode where masked_fill masked_scatter __and__ __or__ __xor__ __iand__ __ior__ __lshift__
__rshift__
"""
_REDUCTION = """
mean nanmean nansum norm frobenius_norm linalg_norm linalg_vector_norm linalg_matrix_norm prod std std_mean sum
sum_to_size var var_mean dist cosine_similarity pairwise_distance cdist _cdist_forward count_nonzero normalize
"""
_LINEAR_ALGEBRA = """
addbmm addmm addmv addr baddbmm bilinear bmm chain_matmul einsum inner kron linear matmul mm mv tensordot trace
linalg_multi_dot _weight_norm _weight_norm_interface scaled_dot_product_attention _scaled_dot_product_attention_math
"""
_CONVOLUTION_AND_POOLING = """
conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d adaptive_avg_pool1d
adaptive_avg_pool2d _adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool3d adaptive_max_pool1d
adaptive_max_pool2d adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d max_pool1d max_pool1d_with_indices max_pool2d
max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool2d max_unpool3d upsample_bicubic2d
upsample_bilinear2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa upsample_linear1d upsample_nearest1d
upsample_nearest2d upsample_nearest3d upsample_trilinear3d _upsample_nearest_exact1d _upsample_nearest_exact2d
_upsample_nearest_exact3d grid_sampler grid_sampler_2d grid_sampler_3d affine_grid_generator im2col col2im
pixel_shuffle pixel_unshuffle channel_shuffle native_channel_shuffle
"""
_NORMALISATION_AND_ACTIVATION = """
batch_norm group_norm instance_norm layer_norm native_layer_norm native_group_norm local_response_norm rms_norm
_fused_rms_norm celu elu gelu glu hardshrink hardsigmoid hardswish hardtanh leaky_relu log_sigmoid log_softmax
_log_softmax mish prelu _prelu_kernel relu relu6 selu silu softmax _softmax softplus softshrink softsign threshold
logsigmoid softmin
"""
_LOSSES = """
binary_cross_entropy binary_cross_entropy_with_logits cosine_embedding_loss cross_entropy_loss ctc_loss
hinge_embedding_loss huber_loss kl_div l1_loss margin_ranking_loss mse_loss multi_margin_loss multilabel_margin_loss
nll_loss nll_loss2d nll_loss_nd poisson_nll_loss smooth_l1_loss soft_margin_loss triplet_margin_loss
"""
_RECURRENT_AND_EMBEDDING = """
embedding embedding_bag one_hot lstm lstm_cell gru gru_cell rnn_relu rnn_relu_cell rnn_tanh rnn_tanh_cell
"""
_SHAPE = """
adjoint alias atleast_1d atleast_2d atleast_3d block_diag broadcast_tensors broadcast_to cat concat concatenate chunk
clone column_stack constant_pad_nd contiguous detach diag diag_embed diagonal dsplit dstack expand expand_as flatten
flip fliplr flipud gather hsplit hstack index index_add index_copy index_fill index_put index_select meshgrid mH
moveaxis movedim mT narrow narrow_copy pad _pad_enum permute ravel reflection_pad1d reflection_pad2d reflection_pad3d
repeat repeat_interleave replication_pad1d replication_pad2d replication_pad3d reshape reshape_as roll rot90 row_stack
scatter scatter_add scatter_reduce select select_scatter slice slice_scatter split split_with_sizes squeeze stack
swapaxes swapdims t take take_along_dim tensor_split tile transpose tril triu unbind unflatten unfold unsafe_chunk
unsafe_split unsqueeze view view_as vsplit vstack numpy_T unsafe_split_with_sizes diagonal_scatter _unsafe_view
_reshape_alias sym_size sym_numel sym_stride sym_storage_offset
"""
_CREATION_AND_TYPE = """
_to_copy arange copy empty empty_like eye fill full full_like lift_fresh lift_fresh_copy linspace logspace new_empty
new_full new_ones new_zeros ones ones_like scalar_tensor to type_as zero zeros zeros_like tril_indices triu_indices
hann_window hamming_window view_as_complex view_as_real polar complex real imag conj resolve_conj resolve_neg
empty_strided new_empty_strided _conj_physical
"""
_RANDOM = """
alpha_dropout bernoulli dropout exponential feature_alpha_dropout feature_dropout geometric log_normal multinomial
native_dropout normal normal_functional poisson rand rand_like randint randint_like randn randn_like randperm random
rrelu rrelu_with_noise uniform
"""
_IN_PLACE_OF = (_ARITHMETIC, _COMPARISON, _NORMALISATION_AND_ACTIVATION, _SHAPE, _CREATION_AND_TYPE, _RANDOM)


def words(*texts: str) -> frozenset[str]:
    return frozenset(word for text in texts for word in text.split())


_FUNCTIONAL = words(
    _ARITHMETIC,
    _COMPARISON,
    _REDUCTION,
    _LINEAR_ALGEBRA,
    _CONVOLUTION_AND_POOLING,
    _NORMALISATION_AND_ACTIVATION,
    _LOSSES,
    _RECURRENT_AND_EMBEDDING,
    _SHAPE,
    _CREATION_AND_TYPE,
    _RANDOM,
)
#: `relu_` beside `relu`: exported graphs keep the in-place operations of the user's code.
_IN_PLACE = frozenset(f"{word}_" for word in words(*_IN_PLACE_OF)) | {"addmm_", "baddbmm_", "index_put_", "copy_"}
ATEN_PACKETS = _FUNCTIONAL | _IN_PLACE

#: Arithmetic with the batch size, and taking one of several results.
_PYTHON_OPERATORS = words("add sub mul floordiv mod neg truediv pow getitem eq ne lt le gt ge and_ or_ not_ pos abs")
_MATH_FUNCTIONS = words("ceil floor sqrt trunc")
_TORCH_SYMBOLIC = words("sym_float sym_int sym_ite sym_max sym_min sym_not")

#: What may share the memory of its first argument, among others.
SHAPE_PACKETS = words(_SHAPE)

#: What may give its first argument back as it is, or all of a list, though its schema says nothing of it.
_MAY_RETURN_ARGUMENT = words(
    "type_as sum_to_size atleast_1d atleast_2d atleast_3d broadcast_tensors meshgrid unsafe_chunk unsafe_split "
    "unsafe_split_with_sizes"
)
#: Whose results are truth values, and whose forms in place give them in the argument's type.
COMPARING_PACKETS = words(
    "eq equal ge greater greater_equal gt le less less_equal lt ne not_equal logical_and logical_not logical_or logical_xor"
)

_RANDOM_PACKETS = words(_RANDOM)
#: Position and name of the argument that must be above zero for an operation to draw, where it may also not draw.
_DRAWS_IF_POSITIVE = {
    "scaled_dot_product_attention": (4, "dropout_p"),
    "_scaled_dot_product_attention_math": (4, "dropout_p"),
    "lstm": (5, "dropout"),
    "gru": (5, "dropout"),
    "rnn_relu": (5, "dropout"),
    "rnn_tanh": (5, "dropout"),
}
_DRAWS_IF_TRAINING = {
    "alpha_dropout": (2, "train"),
    "dropout": (2, "train"),
    "feature_alpha_dropout": (2, "train"),
    "feature_dropout": (2, "train"),
    "native_dropout": (2, "train"),
    "rrelu": (3, "training"),
    "rrelu_with_noise": (4, "training"),
    "lstm": (6, "train"),
    "gru": (6, "train"),
    "rnn_relu": (6, "train"),
    "rnn_tanh": (6, "train"),
}

#: Where a layer's work is: what a model is cut between. Names of packets.
HEAVY_PACKETS = words(
    _LINEAR_ALGEBRA,
    "conv1d conv2d conv3d convolution _convolution conv_transpose1d conv_transpose2d conv_transpose3d",
    "embedding embedding_bag lstm gru rnn_tanh rnn_relu lstm_cell gru_cell rnn_tanh_cell rnn_relu_cell cdist",
) - words("trace kron outer")


def packet_of(op: str) -> str:
    """`conv2d` of `aten.conv2d.default`; empty for what isn't an aten operation."""
    parts = op.split(".")
    return parts[1] if len(parts) == 3 and parts[0] == "aten" else ""


def is_allowed(op: str) -> bool:
    """Whether a graph may call this operation."""
    parts = op.split(".")
    if len(parts) == 3 and parts[0] == "aten":
        writes_out = parts[2] == "out" or parts[2].endswith("_out")  # `to.dtype_layout` doesn't
        return parts[1] in ATEN_PACKETS and parts[2].isidentifier() and not writes_out
    if len(parts) == 2:
        names = {"operator": _PYTHON_OPERATORS, "math": _MATH_FUNCTIONS, "torch": _TORCH_SYMBOLIC}
        return parts[1] in names.get(parts[0], frozenset())
    return False


def is_random(op: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call draws random numbers (a dropout of an evaluation graph doesn't)."""
    packet = packet_of(op)
    name = packet[:-1] if packet.endswith("_") else packet
    if name in _DRAWS_IF_TRAINING and not _argument(args, kwargs, _DRAWS_IF_TRAINING[name], default=False):
        return False
    if name in _DRAWS_IF_POSITIVE:
        return bool(_argument(args, kwargs, _DRAWS_IF_POSITIVE[name], default=0.0))
    return name in _RANDOM_PACKETS


def resolve(op: str) -> Callable[..., Any]:
    """The callable of an allowed operation. Raises GRAPH_REFUSED, naming the torch version, where this torch lacks it."""
    import torch

    assert is_allowed(op), op
    namespace, name, *overload = op.split(".")
    found: Any
    if namespace == "operator":
        found = getattr(operator, name)
    elif namespace == "math":
        found = getattr(math, name)
    elif namespace == "torch":
        found = getattr(torch, name, None)
    else:
        found = getattr(getattr(torch.ops.aten, name, None), overload[0], None)
    if found is None:
        raise EdgeswarmError(
            ErrorCode.GRAPH_REFUSED,
            f"The model uses the operation {op}, which PyTorch {torch.__version__} doesn't have.",
            "Install a newer PyTorch on the device, or leave the device out: --device names those to use.",
        )
    resolved: Callable[..., Any] = found
    return resolved


def may_return_argument(packet: str, args: Sequence[Any]) -> Callable[[int], bool]:
    """Whether the argument at a place may come back as the result: what a dropout that doesn't draw gets, say."""
    if packet == "einsum" and len(args[1]) == 1:  # of several operands it makes a new tensor
        return lambda place: place == 1
    found = packet.endswith("dropout") or packet in _MAY_RETURN_ARGUMENT
    return lambda place: found and place == 0


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: tuple[int, str], *, default: Any) -> Any:
    position, name = place
    return args[position] if len(args) > position else kwargs.get(name, default)
