// Drives the page in a headless Chromium: compresses the sample, compares with what the program says of it,
// runs the conformance suite, and takes pictures. Arguments: the folder of npm's packages, the page's folder,
// the program, the folder for the pictures.
import { execFileSync } from "node:child_process";
import { createReadStream, existsSync, readFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [packages, page, program, pictures] = process.argv.slice(2).map((path) => resolve(path));
const { chromium } = createRequire(pathToFileURL(join(packages, "package.json")))("playwright-core");

const types = { html: "text/html", css: "text/css", js: "text/javascript", wasm: "application/wasm" };
const server = createServer((request, response) => {
    const name = basename(new URL(request.url, "http://localhost").pathname) || "index.html";
    const file = join(page, name);
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": types[name.split(".").pop()] ?? "application/octet-stream" });
    return createReadStream(file).pipe(response);
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `http://127.0.0.1:${server.address().port}/`;

const quiet = [
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
];
const open = async (more, options) => {
    const browser = await chromium.launch({ executablePath: "/usr/bin/chromium", args: [...quiet, ...more] });
    const tab = await browser.newPage({ viewport: { width: 1000, height: 900 }, ...options });
    tab.on("console", (message) => console.error(`page: ${message.text()}`));
    tab.on("pageerror", (error) => console.error(`page: ${error}`));
    await tab.goto(address);
    await tab.waitForFunction(() => document.body.dataset.ready, null, { timeout: 120_000 });
    return [browser, tab];
};

// The program on the same input, and the positions that its file holds.
const native = (bits, keep) => {
    const out = join(pictures, "native.safetensors");
    const sample = join(page, "smollm2_sample.safetensors");
    const text = execFileSync(program, [
        "compress", sample, "-o", out, "--target-bits", bits, "--keep", keep, "--backend", "cpu", "--json",
    ], { encoding: "utf8" });
    const file = readFileSync(out);
    const length = Number(file.readBigUInt64LE(0));
    const header = JSON.parse(file.subarray(8, 8 + length));
    const words = (name) => {
        const [begin, end] = header[name].data_offsets;
        return Array.from({ length: (end - begin) / 4 }, (_, at) => file.readUInt32LE(8 + length + begin + 4 * at));
    };
    const figures = JSON.parse(text);
    figures.layers.forEach((layer) => {
        const [offsets, positions] = ["offsets", "positions"].map((part) => words(`layers.${layer.layer}.${part}`));
        layer.kept = offsets.slice(1).map((end, row) => positions.slice(offsets[row], end));
    });
    return figures;
};

const near = (got, want, what) =>
    assert.ok(Math.abs(got - want) <= 1e-3 * want, `${what}: ${got} in the browser, ${want} by the program`);

const compress = async (tab, bits, keep) => {
    await tab.selectOption("#bits", bits);
    await tab.fill("#keep", String(100 * keep));
    await tab.click("#compress button");
    await tab.waitForFunction(() => /^Done/.test(document.getElementById("compress-status").textContent) ||
        document.querySelector("#compress-status.fault"), null, { timeout: 300_000 });
    const status = await tab.textContent("#compress-status");
    assert.match(status, /^Done/, status);
    return tab.evaluate(() => window.figures);
};

const webgpu = ["--enable-unsafe-webgpu"];
const [browser, tab] = await open(webgpu, { colorScheme: "light" });
assert.equal(await tab.evaluate(() => document.body.dataset.ready), "yes", await tab.textContent("#gpu"));
for (const [bits, keep] of [["4.25", 0.25], ["2.75", 0.5]]) {
    const got = await compress(tab, bits, keep);
    const want = native(bits, String(keep));
    assert.deepEqual(got.bytes_after, want.bytes_after, "bytes");
    assert.equal(got.bytes_before, want.bytes_before, "bytes before");
    assert.deepEqual(got.layers.map((layer) => layer.kept), want.layers.map((layer) => layer.kept), "kept positions");
    near(got.keys, want.k.relative_rms, "error of keys");
    near(got.values, want.v.relative_rms, "error of values");
    near(got.outputs, want.outputs.relative_rms, "error of outputs");
    near(got.outputs_evicted_only, want.outputs_evicted_only.relative_rms, "error by eviction");
    console.log(`${bits} bits, ${100 * keep}% kept: ${got.bytes_after.total} bytes, as the program says`);
}
// A file that is none is refused in words, and the page goes on.
await tab.setInputFiles("#file", { name: "odd.safetensors", mimeType: "application/octet-stream", buffer: Buffer.from("odd") });
await tab.click("#compress button");
await tab.waitForSelector("#compress-status.fault");
console.log(`a bad file: ${await tab.textContent("#compress-status")}`);

await tab.fill("#cases", "1");
await tab.click("#conform button");
await tab.waitForFunction(() => window.conformance || document.querySelector("#conform-status.fault"), null, { timeout: 900_000 });
const report = await tab.evaluate(() => window.conformance);
assert.ok(report, await tab.textContent("#conform-status"));
for (const stage of report.stages) if (stage.failure) console.error(`${stage.stage}: ${stage.failure}`);
await tab.screenshot({ path: join(pictures, "light.png"), fullPage: true });
assert.ok(report.passed, "conformance");
console.log(`conformance: ${report.stages.length} stages passed`);
await tab.emulateMedia({ colorScheme: "dark" });
await tab.screenshot({ path: join(pictures, "dark.png"), fullPage: true });
await browser.close();

const [plain, without] = await open(["--disable-features=WebGPU"], {});
await without.screenshot({ path: join(pictures, "without.png") });
const refused = await without.textContent("#gpu.fault");
assert.match(refused, /WebGPU|adapter/);
console.log(`without a GPU: ${refused}`);
await plain.close();
server.close();
