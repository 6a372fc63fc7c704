"""torch's DistributedDataParallel over gloo, each rank with its share of the mini-batch (weighted_share.py), in micro-batches of
nearly one size, as large as suits the rank's device.
"""

from __future__ import annotations

from torch.nn.parallel import DistributedDataParallel

from bench.peers.blocks import optimizer, samples, whole_model
from bench.peers.rounds import arguments, in_micro_batches, join, laid_out, memory_format, time_rounds
from bench.peers.weighted_share import backward_of_share


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--shares", required=True, help="samples of each rank, with commas")
    parser.add_argument("--at-once", required=True, help="the micro-batch of each rank, with commas")
    parser.add_argument("--bucket-mib", type=int, default=25, help="DDP's own is 25")
    given = parser.parse_args()
    plain = laid_out(whole_model(given.model), given.channels_last)
    join(given)
    shares = [int(share) for share in given.shares.split(",")]
    begin_of_mine = sum(shares[: given.rank])
    at_once = int(given.at_once.split(",")[given.rank])
    inputs, targets = (
        in_micro_batches(each[begin_of_mine : begin_of_mine + shares[given.rank]].clone(), at_once)
        for each in samples(given.model, given.mini_batch, memory_format=memory_format(given.channels_last))
    )
    # Each rank's batch statistics are its own; they are not sent around before every micro-batch.
    model = DistributedDataParallel(
        plain,
        broadcast_buffers=False,
        gradient_as_bucket_view=True,
        bucket_cap_mb=given.bucket_mib,
    )
    step = optimizer(model)
    parts = list(zip(inputs, targets, strict=True))

    def train_round() -> None:
        step.zero_grad()
        backward_of_share(model, parts, ranks=given.world, samples_of_all=given.mini_batch)
        step.step()

    time_rounds(given, train_round)


if __name__ == "__main__":
    main()
