#!/usr/bin/env python3
"""Makes tests/data and tools/sample from a folder of reference data, byte for byte and repeatably.

usage: make_test_data.py GOLDEN [REPOSITORY]

GOLDEN holds index.json, nestedkv_cases, nestedkv_budget_scores, nsn_cases, nsn_codebooks, nsn_traces
and smollm2_kv_alice (.safetensors). What a test needs is copied, at most 6 MB in all: the figures of
the reference implementation itself, the largest cases and tensors that follow from others are left out.
Standard library only.
"""

import json
import pathlib
import struct
import sys

DATA_LIMIT = 6_000_000
SAMPLE_LIMIT = 3_000_000

NESTEDKV_LEFT_OUT = {"n8192_normal", "n6000_b187"}
TRACES_LEFT_OUT = {"r64_b2_d64", "r128_b1_d128"}
NSN_LEFT_OUT = {"x_nsn", "decoded"}
INDEX_LEFT_OUT = {
    "errors",
    "peer_tensor",
    "peer_vs_truth_set_differences",
    "peer_equals_stable_argsort_of_peer_scores",
    "peer_vs_f64",
    "tensors",
}

SAMPLE_LAYERS = (7, 22)
SAMPLE_HEADS = 2
QUERY_HEADS_PER_HEAD = 3


def read(path):
    """Header entries (name -> dtype, shape, bytes) and metadata of a safetensors file."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    metadata = header.pop("__metadata__", None)
    body = memoryview(raw)[8 + length :]
    return {
        name: (entry["dtype"], entry["shape"], body[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }, metadata


def write(path, tensors, metadata=None):
    """Writes tensors by falling element size, so that each starts aligned."""
    size = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "U8": 1}
    order = sorted(tensors, key=lambda name: (-size[tensors[name][0]], name))
    header, offset = {}, 0
    if metadata:
        header["__metadata__"] = metadata
    for name in order:
        dtype, shape, data = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for name in order:
            file.write(tensors[name][2])


def reduce_index(value):
    """The index without what only describes the reference implementation."""
    if isinstance(value, dict):
        return {k: reduce_index(v) for k, v in value.items() if k not in INDEX_LEFT_OUT}
    if isinstance(value, list):
        return [reduce_index(v) for v in value]
    return value


def make_data(golden, data):
    index = json.loads((golden / "index.json").read_text())
    index["nestedkv"] = [c for c in index["nestedkv"] if c["case"] not in NESTEDKV_LEFT_OUT]
    index["nsn_traces"] = [c for c in index["nsn_traces"] if c["trace"] not in TRACES_LEFT_OUT]
    data.mkdir(parents=True, exist_ok=True)
    text = json.dumps(reduce_index(index), separators=(",", ":"))
    (data / "index.json").write_text(text + "\n")

    def copy(name, keep):
        tensors, metadata = read(golden / f"{name}.safetensors")
        write(data / f"{name}.safetensors", {k: v for k, v in tensors.items() if keep(k)}, metadata)

    def case(name):
        return name.split("/")[0]

    copy("nestedkv_budget_scores", lambda _: True)
    copy("nestedkv_cases", lambda n: case(n) not in NESTEDKV_LEFT_OUT and "peer" not in n)
    copy("nsn_cases", lambda n: n.split("/")[1] not in NSN_LEFT_OUT)
    copy("nsn_codebooks", lambda n: n != "hadamard_matrix_48")
    copy("nsn_traces", lambda n: case(n) not in TRACES_LEFT_OUT)
    total = sum(path.stat().st_size for path in data.iterdir())
    if total > DATA_LIMIT:
        sys.exit(f"{data} holds {total} bytes, allowed {DATA_LIMIT}")
    print(f"{data}: {total} bytes")


def make_sample(golden, path):
    cache, source = read(golden / "smollm2_kv_alice.safetensors")
    tensors = {}
    for layer in SAMPLE_LAYERS:
        for short, long, heads in (
            ("k", "keys_post_rope", SAMPLE_HEADS),
            ("v", "values", SAMPLE_HEADS),
            ("q", "queries_last64_post_rope", SAMPLE_HEADS * QUERY_HEADS_PER_HEAD),
        ):
            dtype, (all_heads, tokens, head_dim), data = cache[f"layer{layer}/{long}"]
            shape = [1, heads, tokens, head_dim]
            tensors[f"layers.{layer}.{short}"] = (dtype, shape, data[: len(data) // all_heads * heads])
    write(
        path,
        tensors,
        {
            "model": source["model"],
            "model_source": "https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
            "model_license": "Apache-2.0",
            "text": source["text"],
            "text_license": "public domain (Project Gutenberg)",
            "layout": "layers 7 and 22 of 30, KV heads 0 and 1 of 3 with their six query heads; keys and "
            "queries after RoPE; tokens 0..2047; queries of positions 1984..2047",
        },
    )
    total = path.stat().st_size
    if total > SAMPLE_LIMIT:
        sys.exit(f"{path} holds {total} bytes, allowed {SAMPLE_LIMIT}")
    print(f"{path}: {total} bytes")


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    golden = pathlib.Path(sys.argv[1])
    here = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[2]) if len(sys.argv) == 3 else here
    make_data(golden, root / "tests/data")
    make_sample(golden, root / "tools/sample/smollm2_sample.safetensors")


if __name__ == "__main__":
    main()
