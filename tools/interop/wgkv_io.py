#!/usr/bin/env python3
"""KV caches of Hugging Face transformers and mlx-lm, into files of wgkv and back.

usage: wgkv_io.py mlx PROMPT_CACHE OUT    a prompt cache file of mlx-lm as keys and values
       wgkv_io.py compare A B             relative errors of B against A, layer by layer

Needs numpy and safetensors (pip install safetensors numpy). From Python:

    import wgkv_io
    wgkv_io.save(model(**inputs, use_cache=True).past_key_values, "kv.safetensors")
    # wgkv compress kv.safetensors -o packed.safetensors --keep 1
    # wgkv dequantize packed.safetensors -o back.safetensors
    for keys, values in wgkv_io.load("back.safetensors"):    # numpy, [batch, heads, tokens, channels]
        ...

A file holds layers.<i>.k and layers.<i>.v, [batch, KV heads, tokens, channels], in f32, f16 or bf16.
"""

import json
import re
import sys

import numpy as np
from safetensors.numpy import save_file


def array(tensor):
    """A tensor of torch, mlx or numpy as numpy; bf16, which numpy lacks, as f32, which holds it."""
    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        tensor = tensor.float() if "bfloat16" in str(tensor.dtype) else tensor
    elif "bfloat16" in str(tensor.dtype):
        import mlx.core

        tensor = tensor.astype(mlx.core.float32)
    return np.ascontiguousarray(np.array(tensor))


def pairs(cache):
    """Keys and values of each layer of a cache: transformers' DynamicCache of any version, the older
    tuples, a list of mlx-lm's caches, or a list of pairs."""
    if hasattr(cache, "layers"):
        return [(layer.keys, layer.values) for layer in cache.layers]
    if hasattr(cache, "key_cache"):
        return list(zip(cache.key_cache, cache.value_cache))
    return [layer.state[:2] if hasattr(layer, "state") else layer[:2] for layer in cache]


def save(cache, path, queries=None):
    """Writes a cache as wgkv reads it; queries, a list of [batch, query heads, tokens, channels] a layer,
    go with it to have errors of attention outputs reported."""
    tensors = {}
    for layer, (keys, values) in enumerate(pairs(cache)):
        tensors[f"layers.{layer}.k"] = array(keys)
        tensors[f"layers.{layer}.v"] = array(values)
    for layer, rows in enumerate(queries or []):
        tensors[f"layers.{layer}.q"] = array(rows)
    save_file(tensors, path)


def read(path):
    """Tensors and metadata of a safetensors file; bf16 comes as f32."""
    kinds = {"F32": "<f4", "F16": "<f2", "U32": "<u4", "I32": "<i4", "U8": "u1"}
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":
            words = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << 16
            flat = words.view(np.float32)
        else:
            flat = np.frombuffer(data[begin:end], kinds[entry["dtype"]])
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def numbered(path):
    """Keys and values of a file that wgkv wrote, by the number of their layer, in order."""
    tensors, _ = read(path)
    found = (re.fullmatch(r"layers\.(\d+)\.k", name) for name in tensors)
    layers = sorted(int(match[1]) for match in found if match)
    if not layers:
        raise SystemExit(f"{path} has no layers.<i>.k: packed files go through wgkv dequantize first")
    return {i: (tensors[f"layers.{i}.k"], tensors[f"layers.{i}.v"]) for i in layers}


def load(path):
    """Keys and values of each layer of a file that wgkv wrote, in the order of the layers."""
    return list(numbered(path).values())


def from_mlx(path):
    """Keys and values of each layer of a prompt cache file of mlx-lm, 0.31 and 0.32, cut to its tokens."""
    tensors, metadata = read(path)
    classes = [metadata[name] for name in metadata if re.fullmatch(r"[12]\.\d+", name)]
    other = {kind for kind in classes if kind.endswith("Cache")} - {"KVCache", "ConcatenateKVCache"}
    if other:
        raise SystemExit(f"{path} holds {', '.join(sorted(other))}, only KVCache is read")
    layers = []
    while f"{len(layers)}.0" in tensors:
        keys, values = (tensors[f"{len(layers)}.{side}"] for side in (0, 1))
        held = tensors.get(f"{len(layers)}.2")
        if keys.ndim != 4:
            raise SystemExit(f"{path} holds a layer without tokens")
        tokens = keys.shape[2] if held is None else int(held)
        layers.append((keys[:, :, :tokens], values[:, :, :tokens]))
    if not layers:
        raise SystemExit(f"{path} is no prompt cache of mlx-lm, or an empty one")
    return layers


def compare(one, other):
    """Relative errors (rms) of keys and values of each layer."""
    def error(a, b):
        a, b = a.astype(np.float64), b.astype(np.float64)
        if a.shape != b.shape:
            raise SystemExit(f"{a.shape} against {b.shape}: tokens were evicted (compress with --keep 1)")
        return float(np.sqrt(((a - b) ** 2).sum() / max((a**2).sum(), 1e-30)))

    return [tuple(error(a, b) for a, b in zip(*layer)) for layer in zip(one, other, strict=True)]


def main(args):
    match args:
        case ["mlx", source, out]:
            layers = from_mlx(source)
            save(layers, out)
            print(f"{len(layers)} layers, keys {layers[0][0].shape}, values {layers[0][1].shape}")
        case ["compare", one, other]:
            one, other = numbered(one), numbered(other)
            if list(one) != list(other):
                raise SystemExit(f"layers {list(one)} against layers {list(other)}")
            errors = compare(one.values(), other.values())
            for layer, (keys, values) in zip(one, errors):
                print(f"layer {layer}: keys {100 * keys:.2f}%, values {100 * values:.2f}%")
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        raise SystemExit(error) from None
