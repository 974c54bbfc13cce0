#!/usr/bin/env python3
"""Times this library's CPU path against VeloxQuant-MLX on the same machine, in turns, in one run.

usage: compare_peer.py PEER_JOBS [ROUNDS]

    python3 -m venv target/peer
    target/peer/bin/pip install VeloxQuant-MLX==0.94.15 'mlx[cpu]'
    cargo build --locked --release --features parallel --example peer_jobs
    target/peer/bin/python tools/compare_peer.py target/release/examples/peer_jobs

PEER_JOBS is the example built above; it runs one job a line of its input. Each round runs every job
once on either side, in alternating order; the table shows medians and their ratio. Shapes: 1 sequence,
8 KV heads, head dimension 128, f16, standard normal rows. The peer evaluates lazily, so each of its
jobs ends with an evaluation of what it returns.
"""

import os
import statistics
import subprocess
import sys
import time

import mlx.core as mx
from veloxquant_mlx.cache.base import KVCacheConfig
from veloxquant_mlx.cache.nsnquant_cache import NSNQuantKVCache
from veloxquant_mlx.quantizers.nestedkv import nestedkv_compress_prefill_batched

HEADS, DIM, BUDGET, SINKS, CONTEXT, STEPS = 8, 128, 512, 4, 4096, 256


def rows(tokens, seed):
    keys = mx.random.normal((1, HEADS, tokens, DIM), key=mx.random.key(seed)).astype(mx.float16)
    mx.eval(keys)
    return keys


def timed(work):
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1e3


def evict(tokens):
    keys, values = rows(tokens, 1)[0], rows(tokens, 2)[0]
    # The cache class puts eviction off to the first decoded token; this is what it calls then.
    return lambda: timed(
        lambda: mx.eval(*nestedkv_compress_prefill_batched(keys, values, SINKS, BUDGET))
    )


def packed():
    return NSNQuantKVCache(KVCacheConfig(method="nsnquant", head_dim=DIM, nsn_bits=2))


def prefill():
    keys, values = rows(CONTEXT, 3), rows(CONTEXT, 4)
    return lambda: timed(lambda: mx.eval(*packed().update_and_fetch(keys, values)))


def decode():
    keys, values = rows(CONTEXT, 3), rows(CONTEXT, 4)
    steps = [(rows(1, 10 + 2 * i), rows(1, 11 + 2 * i)) for i in range(STEPS)]

    def job():
        cache = packed()
        mx.eval(*cache.update_and_fetch(keys, values))

        def work():
            for key, value in steps:
                mx.eval(*cache.update_and_fetch(key, value))

        return timed(work)

    return job


class Ours:
    """The example, kept running; a line in, milliseconds out."""

    def __init__(self, program):
        environment = {**os.environ, "RAYON_NUM_THREADS": str(os.cpu_count())}
        self.process = subprocess.Popen(
            [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def job(self, line):
        def run():
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
            if not answer:
                sys.exit(f"{line}: the program ended with {self.process.wait()}")
            return float(answer)

        return run


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    ours = Ours(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) == 3 else 7
    peer_prefill, peer_decode = prefill(), decode()
    # Name, the peer's job, our job.
    jobs = [
        (f"evict {tokens} tokens, budget {BUDGET}", evict(tokens), ours.job(f"evict {tokens} {BUDGET}"))
        for tokens in (1024, 4096, 16384)
    ]
    jobs += [
        (f"pack {CONTEXT} tokens", peer_prefill, ours.job(f"pack {CONTEXT}")),
        (f"pack {CONTEXT} tokens and fetch", peer_prefill, ours.job(f"fetch {CONTEXT}")),
        (f"{STEPS} decode steps after {CONTEXT}", peer_decode, ours.job(f"decode {CONTEXT} {STEPS}")),
    ]
    for _, peer, own in jobs:
        peer(), own()
    times = [([], []) for _ in jobs]
    for turn in range(rounds):
        for (_, peer, own), (peer_times, own_times) in zip(jobs, times):
            pair = [(peer, peer_times), (own, own_times)]
            for job, into in pair if turn % 2 == 0 else reversed(pair):
                into.append(job())
    print(f"medians of {rounds}, {os.cpu_count()} cores, ms (smallest to largest)")
    for (name, _, _), (peer_times, own_times) in zip(jobs, times):
        peer, own = statistics.median(peer_times), statistics.median(own_times)
        spread = [f"{min(t):.2f} to {max(t):.2f}" for t in (peer_times, own_times)]
        print(f"{name:34} peer {peer:9.2f} ({spread[0]})  wgkv {own:8.2f} ({spread[1]})  {peer / own:6.1f} x")


if __name__ == "__main__":
    main()
