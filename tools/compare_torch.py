#!/usr/bin/env python3
"""Times `wgkv sweep` against PyTorch on the same GPU, in turns, in one run.

usage: compare_torch.py WGKV [--rounds N] [--repeats N] [--only PART,...] [--integers] [--json]

    cargo build --locked --release --features cli --bin wgkv
    python3 -m venv target/torch && target/torch/bin/pip install torch numpy
    target/torch/bin/python tools/compare_torch.py target/release/wgkv

Parts: attend, long, score, encode. Every round runs the program and then PyTorch on each part, and the
next one the other way round; each side runs a case so many times after a warm-up and keeps the median,
by timestamps of the GPU here and CUDA events there, and the table shows medians over the rounds. Both
sides get random normal numbers in the same shapes. PyTorch's answers are checked against plain f32
arithmetic on the tensors that are timed; the program checks its own against its CPU path in small shapes
of the same cases before anything is timed. `attend-packed` and `attend-raw` are rows side by side,
`attend-paged` the pages of a pool with what that keeps raw; `ragged` has heads of 4 to 1 in length with as
many tokens in all, and its line says how much longer they take than even ones. With --integers attention
multiplies integers where books are bytes.
"""

import argparse
import json
import math
import statistics
import subprocess
import sys

PARTS = ("attend", "long", "score", "encode")
WARM_UP = 3


def stop(why):
    sys.exit(f"compare_torch.py: {why}")


try:
    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError as missing:
    stop(f"{missing}. It needs PyTorch 2.5 or later with CUDA: pip install torch")


def timed(work, repeats):
    """Median milliseconds of a call, by the GPU's clock."""
    for _ in range(WARM_UP):
        work()
    times = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times)


def check(name, got, want, allowed):
    error = ((got - want).double().norm() / want.double().norm()).item()
    if not error <= allowed:
        stop(f"{name}: PyTorch is {error:.1e} from plain arithmetic, {allowed:.1e} allowed")


def normal(*shape, dtype=torch.float16):
    return torch.randn(shape, device="cuda", dtype=torch.float32).to(dtype)


def attention(batch, heads, group, tokens, dim):
    """Decode attention on f16 in every form that SDPA has: name -> call."""
    keys, values = normal(batch, heads, tokens, dim), normal(batch, heads, tokens, dim)
    query = normal(batch, heads, group, dim)
    wide = query.reshape(batch, heads * group, 1, dim)
    row = query[0, 0].float() @ keys[0, 0].float().T / math.sqrt(dim)
    want = torch.softmax(row, -1) @ values[0, 0].float()
    calls = {}
    for backend in (
        SDPBackend.FLASH_ATTENTION,
        SDPBackend.CUDNN_ATTENTION,
        SDPBackend.EFFICIENT_ATTENTION,
        SDPBackend.MATH,
    ):
        # Query heads of a KV head as heads, or as tokens of it, which asks for the same sums.
        for form, q, grouped in (("heads", wide, group > 1), ("tokens", query, False)):
            if form == "tokens" and group == 1:
                continue

            def call(q=q, grouped=grouped, backend=backend):
                with sdpa_kernel(backend):
                    return F.scaled_dot_product_attention(q, keys, values, enable_gqa=grouped)

            try:
                got = call().reshape(batch, heads, group, dim)[0, 0].float()
            except RuntimeError:
                continue
            name = f"{backend.name.lower().removesuffix('_attention')}, {form}"
            check(f"attention, {name}", got, want, 5e-3)
            calls[name] = call
    return calls


def anomalies(keys, window):
    """Steps 1 to 3 of the score: three anomalies a token."""
    rows, n, dim = keys.shape
    unit = keys.float()
    unit = unit / unit.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    stable = unit.mean(1, keepdim=True)
    block = min(n, max(128, min(n // 32, 256)))
    pad = (-n) % block
    blocks = F.pad(unit, (0, 0, 0, pad)).view(rows, -1, block, dim).sum(2)
    sizes = torch.full((blocks.shape[1],), float(block), device=keys.device)
    sizes[-1] = block - pad
    episodic = (blocks / sizes[:, None]).repeat_interleave(block, 1)[:, :n]
    sums = unit.cumsum(1)
    trailing = sums - F.pad(sums, (0, 0, window, 0))[:, :n]
    counts = torch.arange(1, n + 1, device=keys.device).clamp_max(window)
    current = trailing / counts[:, None]
    return [-(unit * anchor).sum(-1) for anchor in (stable, episodic, current)]


def spread(values, least):
    low, high = values.amin(-1, keepdim=True), values.amax(-1, keepdim=True)
    span = high - low
    return torch.where(span > least, (values - low) / span.clamp_min(1e-30), 0.0)


def score(keys, window=64, beta=3.0, tau=0.6, kappa=10.0, prior=(0.4, 0.4, 0.2)):
    n = keys.shape[1]
    scales = torch.stack([spread(a, 1e-6) for a in anomalies(keys, window)])
    m = max(1, round(0.1 * n))
    top, bottom = (scales.topk(m, -1, largest=side).values.mean(-1) for side in (True, False))
    logs = torch.tensor(prior, device=keys.device).log()[:, None]
    weights = torch.softmax(logs + beta * (top - bottom), 0)
    blend = (weights[..., None] * scales).sum(0)
    surprise = spread(scales.std(0, correction=0), 1e-12)
    surprise = surprise - surprise.mean(-1, keepdim=True)
    gate = torch.sigmoid(kappa * (surprise - tau))
    return (1 - gate) * blend + gate * scales.amax(0)


def hadamard(dim):
    matrix = torch.ones(1, 1, device="cuda")
    while matrix.shape[0] < dim:
        matrix = torch.cat(
            (torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)), 0
        )
    return matrix / math.sqrt(dim)


def encode(chunks, matrix, book, powers):
    """Scales, means, indices and signs of chunks [pages, r, d] at 2 bits, as the `compat` profile."""
    pages, r, dim = chunks.shape
    x = chunks.float()
    s1 = (x.square().mean(-1, keepdim=True)).sqrt().clamp_min(1e-8)
    x = x / s1
    o = x.mean(1, keepdim=True)
    x = x - o
    s2 = (x.square().mean(-1, keepdim=True)).sqrt().clamp_min(1e-8)
    y = (x / s2) @ matrix
    pieces = y.view(pages, r, dim // 8, 8)
    index = (pieces.abs() @ book.T).argmax(-1).to(torch.uint8)
    signs = ((pieces >= 0) * powers).sum(-1).to(torch.uint8)
    return s1.half(), s2.half(), o.half(), index, signs


def decode(parts, matrix, book, powers):
    s1, s2, o, index, signs = parts
    centroids = book[index.long()]
    flips = torch.where((signs[..., None] & powers.to(torch.uint8)) > 0, 1.0, -1.0)
    y = (centroids * flips).flatten(-2)
    y = y * (math.sqrt(y.shape[-1]) / y.norm(dim=-1, keepdim=True))
    return s1.float() * (s2.float() * (y @ matrix) + o.float())


def packing(rows, tokens, dim, chunk=64):
    torch.manual_seed(7)
    matrix, powers = hadamard(dim), 2 ** torch.arange(8, device="cuda")
    book = normal(256, 8, dtype=torch.float32).abs()
    book = book / book.norm(dim=-1, keepdim=True)
    data = normal(rows * tokens // chunk, chunk, dim)
    compiled = torch.compile(encode, mode="max-autotune-no-cudagraphs")
    parts = compiled(data, matrix, book, powers)
    back = decode([part[:64] for part in parts], matrix, book, powers)
    check("encode", back, data[:64].float(), 0.5)
    return {"compiled": lambda: compiled(data, matrix, book, powers)}


def scoring(rows, tokens, dim):
    keys = normal(rows, tokens, dim)
    compiled = torch.compile(score)
    check("score", compiled(keys)[:1], score(keys[:1].double().float()), 1e-2)
    return {"compiled": lambda: compiled(keys)}


def lines(wgkv, repeats, *options):
    command = [wgkv, "sweep", "--json", "--repeats", str(repeats), *options]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        stop(f"{' '.join(command)}: {ran.stderr.strip()}")
    return [json.loads(line) for line in ran.stdout.splitlines()]


class Part:
    """A shape: options of the program and what PyTorch has to do there, made when it is first used."""

    def __init__(self, shape, options, make, cases):
        self.shape, self.options, self.make, self.cases = shape, options, make, cases

    def ours(self, wgkv, repeats, shape=None):
        options = shape or self.shape
        found = {}
        for extra in self.options:
            limit = str(1 << 62) if shape else "0"
            for line in lines(wgkv, repeats, *options, *extra, "--check", limit):
                found[name_of(line)] = line
        return found


def name_of(line):
    parts = [line["method"]]
    for field, form in (("profile", "{}"), ("bits", "{} bits"), ("group", "x{}")):
        if line.get(field) is not None:
            parts.append(form.format(line[field]))
    if line.get("preset") is not None:
        parts.append(f"preset {line['preset']}")
    parts += [word for word in ("adaptive", "ragged") if line.get(word)]
    return " ".join(parts)


def parts_of(names, integers):
    eight = ["--batch", "8", "--heads", "8", "--dim", "128"]
    packed = "attend-raw,attend-packed"
    default = ["--presets", "2.75", "--ragged"]
    plain = [
        ["--methods", packed, "--bits", "1,2"],
        ["--methods", "attend-packed", "--profile", "tuned", "--bits", "1,2,3", "--presets", "2.75"],
        ["--methods", "attend-paged", "--profile", "tuned", "--bits", "1,2", *default],
        ["--methods", "attend-paged", "--profile", "compat", "--bits", "2"],
    ]
    both = [[*line, "--integer-dots"] if integers else line for line in plain]
    keep = ["--methods", "score,keep,evict", "--adaptive", "--keep", "0.25"]
    parts = {
        "attend": Part(
            [*eight, "--tokens", "32768", "--group", "1,4,8"],
            both,
            lambda: {
                f"x{g}": attention(8, 8, g, 32768, 128) for g in (1, 4, 8)
            },
            ["--batch", "1", "--heads", "2", "--tokens", "512", "--group", "1,4,8"],
        ),
        "long": Part(
            ["--batch", "1", "--heads", "8", "--tokens", "131072", "--group", "4"],
            both,
            lambda: {"x4": attention(1, 8, 4, 131072, 128)},
            ["--batch", "1", "--heads", "2", "--tokens", "1024", "--group", "4"],
        ),
        "score": Part(
            [*eight, "--tokens", "32768"],
            [keep],
            lambda: {"": scoring(64, 32768, 128)},
            ["--batch", "1", "--heads", "2", "--tokens", "1024"],
        ),
        "encode": Part(
            [*eight, "--tokens", "8192"],
            [
                ["--methods", "encode", "--bits", "1,2"],
                ["--methods", "encode", "--profile", "tuned", "--bits", "2,3"],
            ],
            lambda: {"": packing(64, 8192, 128)},
            ["--batch", "1", "--heads", "2", "--tokens", "256"],
        ),
    }
    return {name: parts[name] for name in names}


def theirs(calls, repeats):
    """The fastest form of each case."""
    return {
        case: min((timed(call, repeats), name) for name, call in forms.items())
        for case, forms in calls.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wgkv")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--integers", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        stop("PyTorch finds no CUDA device, so there is nothing to compare with on this machine")
    names = args.only.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown or args.rounds < 1 or args.repeats < 1:
        stop(f"parts are {', '.join(PARTS)}; rounds and repeats from 1 on")
    for name, part in parts_of(names, args.integers).items():
        part.ours(args.wgkv, 1, part.cases)
        calls = part.make()
        ours, others = [], []
        for turn in range(args.rounds):
            sides = [
                lambda: ours.append(part.ours(args.wgkv, args.repeats)),
                lambda: others.append(theirs(calls, args.repeats)),
            ]
            for side in sides if turn % 2 == 0 else sides[::-1]:
                side()
        report(name, ours, others, args.json)
        del calls
        torch.cuda.empty_cache()


def report(part, ours, others, as_json):
    for case in ours[0]:
        of = [line[case] for line in ours]
        group = of[0].get("group")
        key = f"x{group}" if group is not None else ""
        mine = statistics.median(line["median_ms"] for line in of)
        other = statistics.median(round[key][0] for round in others)
        form = others[-1][key][1]
        copy = statistics.median(line["copy_gb_per_s"] for line in of)
        uneven = [line["of_even"] for line in of if line.get("of_even") is not None]
        row = {
            "part": part,
            "case": case,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "wgkv_ms": round(mine, 4),
            "torch_ms": round(other, 4),
            "torch_form": form,
            "ratio": round(other / mine, 3),
            "copy_gb_per_s": round(copy),
            "of_even": round(statistics.median(uneven), 3) if uneven else None,
        }
        if as_json:
            print(json.dumps(row), flush=True)
        else:
            even = f"   {row['of_even']} times even heads" if uneven else ""
            print(
                f"{part:7} {case:48} wgkv {mine:8.4f} ms   PyTorch {other:8.4f} ms ({form})"
                f"   {other / mine:6.2f} times   copy {copy:.0f} GB/s{even}",
                flush=True,
            )


if __name__ == "__main__":
    main()
