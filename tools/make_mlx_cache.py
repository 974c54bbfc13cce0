#!/usr/bin/env python3
"""Has mlx-lm write the prompt caches of tests/data/mlx, and read those that wgkv writes.

usage: make_mlx_cache.py write FOLDER     with mlx-lm 0.32 and with 0.31 (the names say which)
       make_mlx_cache.py check FILE ...   load_prompt_cache, every element, then a step of generation

Needs mlx[cpu] and mlx-lm. All of a cache goes through mlx-lm's own classes and functions. The elements
follow a rule that the tests know as well: (31 l + 17 s + 7 b + 5 h + 3 n + d) mod 64, less 32, by 4, of
layer l, side s (keys 0, values 1), sequence b, head h, token n, channel d; f16 and bf16 hold it exactly.
"""

import importlib.metadata
import pathlib
import sys

import mlx.core as mx
from mlx_lm.models import cache as mlx_cache

VERSION = importlib.metadata.version("mlx-lm")
RECENT = tuple(map(int, VERSION.split(".")[:2])) >= (0, 32)
MARK = "032" if RECENT else "031"


def rule(layer, side, batch, heads, tokens, channels, first=0):
    b = mx.arange(batch)[:, None, None, None]
    h = mx.arange(heads)[None, :, None, None]
    n = mx.arange(first, first + tokens)[None, None, :, None]
    d = mx.arange(channels)[None, None, None, :]
    return ((31 * layer + 17 * side + 7 * b + 5 * h + 3 * n + d) % 64 - 32) / 4


def fill(caches, dtype, batch, heads, dims, steps):
    """Appends as generation does, step by step, through update_and_fetch."""
    for layer, cache in enumerate(caches):
        first = 0
        for tokens in steps:
            pair = [
                rule(layer, side, batch, heads, tokens, dims[side], first).astype(dtype)
                for side in (0, 1)
            ]
            cache.update_and_fetch(*pair)
            first += tokens
    return caches


class Model:
    """What make_prompt_cache asks of a model."""

    def __init__(self, layers):
        self.layers = [None] * layers


def write(folder):
    folder.mkdir(parents=True, exist_ok=True)

    def save(name, caches, metadata=None):
        path = folder / f"{name}_{MARK}.safetensors"
        mlx_cache.save_prompt_cache(str(path), caches, metadata or {})
        print(path, path.stat().st_size, "bytes, mlx-lm", VERSION)

    notes = {"model": "none", "tokenizer_config": "{}", "of.which": "nested"}
    plain = mlx_cache.make_prompt_cache(Model(3))
    save("f16", fill(plain, mx.float16, 1, 2, (16, 16), (9, 1, 1)), notes)
    pair = mlx_cache.make_prompt_cache(Model(2))
    fill(pair, mx.bfloat16, 2, 1, (16, 8), (20, 1))
    # What was trimmed stays in the memory behind the rows that count.
    mlx_cache.trim_prompt_cache(pair, 4)
    save("bf16", pair)
    many = mlx_cache.make_prompt_cache(Model(11))
    save("layers", fill(many, mx.float16, 1, 1, (8, 8), (2,)))
    rotating = mlx_cache.make_prompt_cache(Model(1), max_kv_size=8)
    save("rotating", fill(rotating, mx.float16, 1, 1, (8, 8), (6, 1, 1, 1)))
    quantized = [mlx_cache.QuantizedKVCache(group_size=32, bits=8)]
    save("quantized", fill(quantized, mx.float16, 1, 1, (32, 32), (3,)))
    if RECENT:
        save("empty", mlx_cache.make_prompt_cache(Model(1)))


def check(path):
    caches, metadata = mlx_cache.load_prompt_cache(str(path), return_metadata=True)
    shapes = set()
    for layer, cache in enumerate(caches):
        assert type(cache) is mlx_cache.KVCache, type(cache)
        batch, heads, _, _ = cache.keys.shape
        tokens = cache.offset
        assert tokens == cache.keys.shape[2] == cache.values.shape[2], (path, tokens)
        # One more token, as the next step of generation adds it.
        dims = [cache.keys.shape[3], cache.values.shape[3]]
        dtype = cache.keys.dtype
        more = [
            rule(layer, side, batch, heads, 1, dims[side], tokens).astype(dtype) for side in (0, 1)
        ]
        pair = cache.update_and_fetch(*more)
        for side, got in enumerate(pair):
            expected = rule(layer, side, batch, heads, tokens + 1, dims[side]).astype(dtype)
            assert got.shape == expected.shape and mx.array_equal(got, expected), (path, layer, side)
        assert cache.offset == tokens + 1
        shapes.add((str(dtype), batch, heads, tokens, *dims))
    assert len(shapes) == 1, shapes
    assert mlx_cache.can_trim_prompt_cache(caches)
    assert mlx_cache.trim_prompt_cache(caches, 1) == 1
    print(f"{path}: mlx-lm {VERSION} reads {len(caches)} layers of {shapes.pop()}, metadata {metadata}")


def main():
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) > 2 and sys.argv[1] == "check":
        for name in sys.argv[2:]:
            check(name)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
