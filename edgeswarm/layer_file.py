"""How the file of a layer's state is called in a folder; what is in it, snapshot.py says."""

from __future__ import annotations


def layer_file_name(layer: int) -> str:
    return f"layer-{layer}.safetensors"
