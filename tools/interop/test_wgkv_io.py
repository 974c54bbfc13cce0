#!/usr/bin/env python3
"""Tries wgkv_io.py with the program: test_wgkv_io.py path/to/wgkv"""

import contextlib
import io
import pathlib
import re
import subprocess
import sys
import tempfile
import types
import unittest

import numpy as np
import wgkv_io

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = pathlib.Path(sys.argv.pop()).resolve() if len(sys.argv) > 1 else None


def rows(seed, shape, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


class Files(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name):
        return str(self.folder / name)

    def wgkv(self, *args):
        subprocess.run([PROGRAM, *args, "--backend", "cpu"], check=True, capture_output=True)

    def there_and_back(self, *args):
        self.wgkv("compress", self.path("kv.st"), "-o", self.path("packed.st"), "--keep", "1", *args)
        self.wgkv("dequantize", self.path("packed.st"), "-o", self.path("back.st"))
        return wgkv_io.compare(wgkv_io.load(self.path("kv.st")), wgkv_io.load(self.path("back.st")))

    def test_caches_of_transformers(self):
        """Every form that past_key_values has had, with values of their own width."""
        layers = [(rows(2 * i, (1, 2, 150, 64)), rows(2 * i + 1, (1, 2, 150, 32))) for i in (0, 1)]
        forms = [
            types.SimpleNamespace(layers=[types.SimpleNamespace(keys=k, values=v) for k, v in layers]),
            types.SimpleNamespace(
                key_cache=[k for k, _ in layers], value_cache=[v for _, v in layers]
            ),
            tuple(layers),
            [types.SimpleNamespace(state=pair) for pair in layers],
        ]
        for form in forms:
            wgkv_io.save(form, self.path("kv.st"))
            for (keys, values), read in zip(layers, wgkv_io.load(self.path("kv.st"))):
                np.testing.assert_array_equal(keys, read[0])
                np.testing.assert_array_equal(values, read[1])
        # Random rows at 4 bits a value, some of them raw.
        for errors in self.there_and_back("--target-bits", "4.25"):
            for error in errors:
                self.assertTrue(0.01 < error < 0.12, error)

    def test_caches_of_mlx_lm(self):
        """Files that mlx-lm wrote: as the script reads them, and as the program does."""
        for name in ("f16_031", "f16_032", "bf16_031", "bf16_032"):
            source = ROOT / "tests/data/mlx" / f"{name}.safetensors"
            layers = wgkv_io.from_mlx(source)
            for layer, pair in enumerate(layers):
                for side, got in enumerate(pair):
                    batch, heads, tokens, channels = np.indices(got.shape)
                    rule = 31 * layer + 17 * side + 7 * batch + 5 * heads + 3 * tokens + channels
                    np.testing.assert_array_equal(got, (rule % 64 - 32) / 4)
            wgkv_io.main(["mlx", str(source), self.path("kv.st")])
            for errors in self.there_and_back("--target-bits", "4.25", "--chunk", "4"):
                self.assertTrue(max(errors) < 0.2, errors)

    def test_the_sample(self):
        sample = ROOT / "tools/sample/smollm2_sample.safetensors"
        layers = wgkv_io.load(sample)
        self.assertEqual([keys.dtype for keys, _ in layers], [np.float16] * 2)
        queries, _ = wgkv_io.read(sample)
        queries = [queries[f"layers.{layer}.q"] for layer in (7, 22)]
        wgkv_io.save(layers, self.path("kv.st"), queries)
        for keys, values in self.there_and_back():
            self.assertTrue(0.01 < keys < 0.15 and 0.01 < values < 0.35, (keys, values))
        with contextlib.redirect_stdout(io.StringIO()) as said:
            wgkv_io.main(["compare", str(sample), str(sample)])
        # Layers have the numbers of the file.
        self.assertEqual(re.findall(r"layer (\d+):", said.getvalue()), ["7", "22"])
        with self.assertRaises(SystemExit) as refused:
            wgkv_io.main(["compare", str(sample), self.path("kv.st")])
        self.assertIn("[7, 22] against layers [0, 1]", str(refused.exception))

    def test_what_is_not_read_is_named(self):
        for name in ("rotating_031", "rotating_032", "quantized_031", "empty_032"):
            with self.assertRaises(SystemExit) as refused:
                wgkv_io.from_mlx(ROOT / "tests/data/mlx" / f"{name}.safetensors")
            self.assertIn(name, str(refused.exception))
        wgkv_io.save([(rows(1, (1, 1, 90, 16)), rows(2, (1, 1, 90, 16)))], self.path("kv.st"))
        self.wgkv("compress", self.path("kv.st"), "-o", self.path("packed.st"))
        with self.assertRaises(SystemExit) as refused:
            wgkv_io.load(self.path("packed.st"))
        self.assertIn("dequantize", str(refused.exception))


if __name__ == "__main__":
    if PROGRAM is None:
        raise SystemExit(__doc__)
    unittest.main()
