// Drives the page in a headless Chromium: compresses the sample and small files of every type, compares with
// what the program says of them, gives it files that it must refuse in words, runs the conformance suite, and
// takes pictures. Arguments: the folder of npm's packages, the page's folder, the program, the folder for
// pictures and files.
import { execFileSync } from "node:child_process";
import { createReadStream, existsSync, readFileSync, rmSync, truncateSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { basename, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import assert from "node:assert/strict";

const [packages, page, program, pictures] = process.argv.slice(2).map((path) => resolve(path));
const { chromium } = createRequire(pathToFileURL(join(packages, "package.json")))("playwright-core");

const begun = performance.now();
const say = (text) => console.log(`${((performance.now() - begun) / 1000).toFixed(0).padStart(4)} s  ${text}`);

const types = { html: "text/html", css: "text/css", js: "text/javascript", wasm: "application/wasm" };
// A GPU that allows what WebGPU promises and no more, whatever the one at hand allows.
const baseline = `
const open = GPUAdapter.prototype.requestDevice;
GPUAdapter.prototype.requestDevice = function (wanted) {
    const limits = { ...wanted.requiredLimits };
    for (const name of ["maxStorageBufferBindingSize", "maxBufferSize"]) delete limits[name];
    return open.call(this, { ...wanted, requiredLimits: limits });
};
`;
const server = createServer((request, response) => {
    const url = new URL(request.url, "http://localhost");
    const name = basename(url.pathname) || "index.html";
    const file = join(page, name);
    if (!existsSync(file)) return response.writeHead(404).end();
    response.writeHead(200, { "content-type": types[name.split(".").pop()] ?? "application/octet-stream" });
    if (name === "worker.js" && request.headers.referer?.includes("baseline")) {
        return response.end(baseline + readFileSync(file));
    }
    return createReadStream(file).pipe(response);
});
await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
const address = `http://127.0.0.1:${server.address().port}/`;

const quiet = [
    "--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
];
const launch = (more) => chromium.launch({ executablePath: "/usr/bin/chromium", args: [...quiet, ...more] });
const open = async (browser, path = "", options = {}) => {
    const tab = await browser.newPage({ viewport: { width: 1000, height: 900 }, ...options });
    tab.on("console", (message) => console.error(`page: ${message.text()}`));
    tab.on("pageerror", (error) => console.error(`page: ${error}`));
    await tab.goto(address + path);
    await tab.waitForFunction(() => document.body.dataset.ready, null, { timeout: 120_000 });
    return tab;
};
const picture = (tab, name) => tab.screenshot({ path: join(pictures, `${name}.png`), fullPage: true });

// The program on the same input, and the positions that its file holds.
const native = (input, bits, keep) => {
    const out = join(pictures, "native.safetensors");
    const text = execFileSync(program, [
        "compress", input, "-o", out, "--target-bits", bits, "--keep", keep, "--backend", "cpu", "--json",
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

// What the page says in the end, and whether it is a fault.
const status = async (tab, id, timeout) => {
    await tab.waitForFunction((place) => {
        const line = document.getElementById(place);
        return line.classList.contains("fault") || /^(Done|Passed)/.test(line.textContent);
    }, `${id}-status`, { timeout });
    const fault = await tab.locator(`#${id}-status.fault`).count() > 0;
    return { fault, text: await tab.textContent(`#${id}-status`) };
};

const compress = async (tab, bits, keep) => {
    await tab.selectOption("#bits", bits);
    await tab.fill("#keep", String(100 * keep));
    await tab.click("#compress button");
    const { fault, text } = await status(tab, "compress", 300_000);
    assert.ok(!fault, text);
    return { figures: await tab.evaluate(() => window.figures), text };
};

const compare = (got, want) => {
    assert.deepEqual(got.bytes_after, want.bytes_after, "bytes");
    assert.equal(got.bytes_before, want.bytes_before, "bytes before");
    assert.deepEqual(got.layers.map((layer) => layer.kept), want.layers.map((layer) => layer.kept), "kept positions");
    near(got.keys, want.k.relative_rms, "error of keys");
    near(got.values, want.v.relative_rms, "error of values");
    near(got.outputs, want.outputs.relative_rms, "error of outputs");
    near(got.outputs_evicted_only, want.outputs_evicted_only.relative_rms, "error by eviction");
};

// A safetensors file of one layer; keys and values by type and shape, the words of an element by its number.
let seed = 1;
const random = () => {
    seed = (seed * 48271) % 2147483647;
    const value = seed / 2147483647 - 0.5;
    return value + Math.sign(value) * 0.01;
};
const wholeFloat = (value) => {
    const bytes = Buffer.alloc(4);
    bytes.writeFloatLE(value);
    return bytes;
};
// Numbers that f16 and bf16 hold as they are: a sign, an exponent, some bits.
const half = (value) => {
    const bits = wholeFloat(value).readUInt32LE();
    const bytes = Buffer.alloc(2);
    bytes.writeUInt16LE(((bits >>> 16) & 0x8000) | ((((bits >>> 23) & 0xff) - 112) << 10) | ((bits >>> 13) & 0x3ff));
    return bytes;
};
const brain = (value) => wholeFloat(value).subarray(2);
const writers = { F32: wholeFloat, F16: half, BF16: brain };
const layer = (dtype, shapes, change = (value) => value) => {
    const parts = [];
    const header = {};
    let end = 0;
    for (const [name, shape] of Object.entries(shapes)) {
        const count = shape.reduce((product, size) => product * size, 1);
        const element = (_, at) => writers[dtype](change(random(), name, at));
        const rows = Buffer.concat(Array.from({ length: count }, element));
        header[`layers.0.${name}`] = { dtype, shape, data_offsets: [end, end + rows.length] };
        end += rows.length;
        parts.push(rows);
    }
    const text = Buffer.from(JSON.stringify(header));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    return Buffer.concat([length, text, ...parts]);
};
const put = (name, bytes) => {
    const path = join(pictures, name);
    writeFileSync(path, bytes);
    return path;
};

// A file that the page must refuse, in words that hold these, and go on.
const refused = async (tab, path, said) => {
    await tab.setInputFiles("#file", path);
    await tab.click("#compress button");
    const { fault, text } = await status(tab, "compress", 120_000);
    assert.ok(fault, `${basename(path)} was taken: ${text}`);
    assert.match(text, said);
    say(`${basename(path)}: ${text}`);
};

const browser = await launch(["--enable-unsafe-webgpu"]);
const tab = await open(browser, "", { colorScheme: "light" });
assert.equal(await tab.evaluate(() => document.body.dataset.ready), "yes", await tab.textContent("#gpu"));
say(await tab.textContent("#gpu"));

const small = { k: [1, 2, 300, 64], v: [1, 2, 300, 80], q: [1, 4, 8, 64] };
for (const dtype of ["F32", "F16", "BF16"]) {
    const path = put(`${dtype}.safetensors`, layer(dtype, small));
    await tab.setInputFiles("#file", path);
    const { figures } = await compress(tab, "2.75", 0.5);
    compare(figures, native(path, "2.75", "0.5"));
    say(`${dtype}: ${figures.bytes_after.total} bytes, as the program says`);
}
{
    const one = put("one.safetensors", layer("F32", { k: [1, 1, 1, 64], v: [1, 1, 1, 64] }));
    await tab.setInputFiles("#file", one);
    const { figures } = await compress(tab, "2.75", 0.5);
    assert.deepEqual(figures.layers[0].kept, [[0]]);
    say(`one token: ${figures.bytes_after.total} bytes`);
}
{
    const holes = (value, name, at) => (name === "k" && at === 64 * 20 + 3 ? NaN : name === "v" && at === 5 ? -Infinity : value);
    const path = put("holes.safetensors", layer("F32", { k: [1, 1, 300, 64], v: [1, 1, 300, 64] }, holes));
    await tab.setInputFiles("#file", path);
    const { figures, text } = await compress(tab, "2.75", 0.5);
    assert.equal(figures.nonfinite, 2);
    assert.match(text, /2 NaN or infinite/);
    assert.ok(!figures.layers[0].kept[0].includes(20), "a key with NaN stays");
    assert.ok([figures.keys, figures.values, figures.outputs].every(Number.isFinite), "an error is no number");
    say(`NaN inside: ${text}`);
}
await refused(tab, put("odd.safetensors", Buffer.from("odd")), /header|short|bytes/);
await refused(tab, put("flat.safetensors", layer("F32", { k: [20, 64], v: [20, 64] })), /\[20, 64\].*expected/);
await refused(tab, put("apart.safetensors", layer("F32", { k: [1, 1, 20, 64], v: [1, 1, 21, 64] })), /same sequences, heads and tokens/);
await refused(tab, put("alone.safetensors", layer("F32", { k: [1, 1, 20, 64] })), /not both/);
await refused(tab, put("narrow.safetensors", layer("F32", { k: [1, 1, 20, 65], v: [1, 1, 20, 65] })), /65/);
await refused(tab, put("empty.safetensors", layer("F32", { k: [1, 1, 0, 64], v: [1, 1, 0, 64] })), /empty/);
await refused(tab, put("asked.safetensors", layer("F32", { k: [1, 2, 20, 64], v: [1, 2, 20, 64], q: [1, 3, 4, 64] })), /does not go with/);
{
    // Larger than a page takes; nothing of it is read.
    const path = put("huge.safetensors", Buffer.alloc(8));
    truncateSync(path, 2 ** 30 + 1);
    await refused(tab, path, /1 GiB/);
    rmSync(path);
}
{
    // A head that one binding of such a GPU does not hold.
    const tight = await open(browser, "?baseline");
    const tokens = 2 ** 21 + 8;
    const header = {
        "layers.0.k": { dtype: "F16", shape: [1, 1, tokens, 32], data_offsets: [0, 64 * tokens] },
        "layers.0.v": { dtype: "F16", shape: [1, 1, tokens, 8], data_offsets: [64 * tokens, 80 * tokens] },
    };
    const text = Buffer.from(JSON.stringify(header));
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    const path = put("long.safetensors", Buffer.concat([length, text]));
    truncateSync(path, 8 + text.length + 80 * tokens);
    assert.match(await tight.textContent("#gpu"), /128\.0 MiB/);
    await refused(tight, path, /max_storage_buffer_binding_size|binding/);
    rmSync(path);
    await tight.close();
}

await tab.check("input[name=source][value=sample]");
const sample = join(page, "smollm2_sample.safetensors");
for (const [bits, keep] of [["4.25", 0.25], ["2.75", 0.5]]) {
    const { figures } = await compress(tab, bits, keep);
    compare(figures, native(sample, bits, String(keep)));
    say(`sample, ${bits} bits, ${100 * keep}% kept: ${figures.bytes_after.total} bytes, as the program says`);
}

// The suite; the page answers while it runs.
await tab.click("#conform button");
let longest = 0;
let done = false;
const watch = (async () => {
    while (!done) {
        const asked = performance.now();
        await tab.evaluate(() => new Promise((drawn) => setTimeout(drawn)));
        longest = Math.max(longest, performance.now() - asked);
        await new Promise((later) => setTimeout(later, 250));
    }
})();
const ended = await status(tab, "conform", 1_200_000);
done = true;
await watch;
const report = await tab.evaluate(() => window.conformance);
for (const [stage, seconds] of Object.entries(await tab.evaluate(() => window.seconds))) {
    console.log(`        ${stage} ${seconds.toFixed(1)} s`);
}
assert.ok(report, ended.text);
for (const stage of report.stages) if (stage.failure) console.error(`${stage.stage}: ${stage.failure}`);
await picture(tab, "light");
assert.ok(report.passed && !ended.fault, ended.text);
assert.ok(report.stages.every((stage) => stage.cases > 0 && stage.compared > 0), "a stage did not run");
assert.ok(longest < 2000, `the page did not answer for ${longest.toFixed(0)} ms`);
say(`conformance: ${report.stages.length} stages passed; the page answered within ${longest.toFixed(0)} ms`);
await tab.emulateMedia({ colorScheme: "dark" });
await picture(tab, "dark");
await tab.emulateMedia({ colorScheme: "light" });
await tab.setViewportSize({ width: 390, height: 844 });
await picture(tab, "phone");
const wide = await tab.evaluate(() => document.documentElement.scrollWidth);
assert.ok(wide <= 390, `a phone's page is ${wide} wide`);

// A run that is stopped says what it has.
await tab.click("#conform button");
await tab.waitForFunction(() => document.querySelectorAll("#stages tr").length > 2, null, { timeout: 120_000 });
await tab.click("#stop");
const stopped = await status(tab, "conform", 300_000);
assert.match(stopped.text, /then stopped/);
say(`stopped: ${stopped.text}`);
await browser.close();

const plain = await launch(["--disable-features=WebGPU", "--host-resolver-rules=MAP page.test 127.0.0.1"]);
const without = await open(plain);
await picture(without, "without");
const told = await without.textContent("#gpu.fault");
assert.match(told, /WebGPU|adapter/);
say(`without a GPU: ${told}`);
await without.goto(address.replace("127.0.0.1", "page.test"));
await without.waitForSelector("#gpu.fault");
assert.match(await without.textContent("#gpu"), /https or localhost/);
say(`from a plain address: ${await without.textContent("#gpu")}`);
await plain.close();
server.close();
