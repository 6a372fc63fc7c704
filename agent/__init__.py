"""What runs on a device: the daemon that is found and asked, the worker that computes."""

import os

# gRPC's core writes a line of its own for every handshake that fails; what matters of it reaches a person as an error.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")
