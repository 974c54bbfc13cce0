import init, { Lab } from "./wgkv_web.js";

const at = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (value) => (value === null ? "no number" : `${number(100 * value, 2)}%`);
const size = (bytes) => (bytes < 1 << 20 ? `${number(bytes / 1024, 1)} KiB` : `${number(bytes / (1 << 20), 1)} MiB`);
// Long enough for the page to draw, not bound to its being seen.
const pause = () => new Promise((done) => setTimeout(done));

const say = (id, text, fault = false) => {
    at(id).textContent = text;
    at(id).classList.toggle("fault", fault);
};

const progress = (id) => {
    let drawn = 0;
    return async (done, all, what) => {
        if (performance.now() - drawn < 50) return;
        drawn = performance.now();
        at(`${id}-progress`).max = all;
        at(`${id}-progress`).value = done;
        say(`${id}-status`, `${done} of ${all}: ${what}`);
        await pause();
    };
};

const svg = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
};

const row = (cells) => {
    const line = document.createElement("tr");
    for (const [text, name] of cells) {
        const cell = document.createElement("td");
        cell.textContent = text;
        if (name) cell.className = name;
        line.append(cell);
    }
    return line;
};

const WIDTH = 860;

// Bars of bytes: what went in, then each part of what came out, on one axis.
const drawBytes = (result) => {
    const { total, ...parts } = result.bytes_after;
    const bars = [["input", result.bytes_before], ["output", total]];
    for (const [name, bytes] of Object.entries(parts)) if (bytes) bars.push([`– ${name}`, bytes]);
    const [left, right, step] = [100, 90, 22];
    const height = bars.length * step + 36;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "bytes by part" });
    const scale = (WIDTH - left - right) / result.bytes_before;
    bars.forEach(([name, bytes], place) => {
        const y = place * step;
        picture.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, name));
        const width = Math.max(1, bytes * scale);
        picture.append(svg("rect", { x: left, y: y + 3, width, height: step - 6, class: "mark" }));
        picture.append(svg("text", { x: left + width + 6, y: y + 15, class: "soft" }, size(bytes)));
    });
    const bottom = bars.length * step + 4;
    picture.append(svg("line", { x1: left, x2: WIDTH - right, y1: bottom, y2: bottom, class: "axis" }));
    for (let tick = 0; tick <= 4; tick += 1) {
        const x = left + ((WIDTH - left - right) * tick) / 4;
        const text = size((result.bytes_before * tick) / 4);
        picture.append(svg("text", { x, y: bottom + 16, "text-anchor": "middle", class: "soft" }, text));
    }
    at("bytes").replaceChildren(picture);
};

// A strip for each head over positions, the deeper the more of a column's tokens stay.
const drawHeads = (result) => {
    const strips = result.layers.flatMap(({ layer, batch, heads, tokens, kept }) =>
        kept.map((positions, place) => {
            const sequence = batch > 1 ? `, seq. ${Math.floor(place / heads)}` : "";
            return { name: `layer ${layer}${sequence}, head ${place % heads}`, tokens, positions };
        }),
    );
    const longest = Math.max(...strips.map((strip) => strip.tokens));
    const [left, right, step, columns] = [150, 70, 24, Math.min(longest, 320)];
    const height = strips.length * step + 44;
    const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, role: "img", "aria-label": "kept tokens" });
    const width = WIDTH - left - right;
    strips.forEach(({ name, tokens, positions }, place) => {
        const y = place * step;
        const held = new Array(columns).fill(0);
        const there = new Array(columns).fill(0);
        const column = (position) => Math.floor((position * columns) / longest);
        for (let position = 0; position < tokens; position += 1) there[column(position)] += 1;
        for (const position of positions) held[column(position)] += 1;
        const end = (width * tokens) / longest;
        picture.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, name));
        picture.append(svg("rect", { x: left, y: y + 2, width: end, height: step - 5, class: "frame" }));
        held.forEach((count, index) => {
            if (count === 0) return;
            const box = { x: left + (index * width) / columns, y: y + 2, width: width / columns, height: step - 5 };
            picture.append(svg("rect", { ...box, class: "mark", opacity: count / there[index] }));
        });
        const text = `${number(positions.length)} kept`;
        picture.append(svg("text", { x: left + width + 6, y: y + 15, class: "soft" }, text));
    });
    const bottom = strips.length * step + 2;
    for (let tick = 0; tick <= 4; tick += 1) {
        const x = left + (width * tick) / 4;
        picture.append(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: "axis" }));
        const text = number(Math.round((longest * tick) / 4));
        picture.append(svg("text", { x, y: bottom + 18, "text-anchor": "middle", class: "soft" }, text));
    }
    const middle = { x: left + width / 2, y: bottom + 36, "text-anchor": "middle" };
    picture.append(svg("text", middle, "position in the sequence (tokens)"));
    at("heads").replaceChildren(picture);
};

const showFigures = (result) => {
    at("ratio").textContent = number(result.ratio, 1);
    at("per-element").textContent = number(result.bits_per_element, 3);
    at("per-input").textContent = number(result.bits_per_input_element, 3);
    at("output-error").textContent = percent(result.outputs);
    at("output-label").textContent = "error of the attention outputs against the uncompressed cache";
    drawBytes(result);
    drawHeads(result);
    const asked = result.keys_stand_for_queries ? " (the newest keys stand for queries: the file has none)" : "";
    at("errors").replaceChildren(
        row([["keys that stay"], ["themselves, unpacked"], [percent(result.keys), "n"]]),
        row([["values that stay"], ["themselves, unpacked"], [percent(result.values), "n"]]),
        row([["attention outputs, by eviction alone"], [`the whole cache${asked}`],
            [percent(result.outputs_evicted_only), "n"]]),
        row([["attention outputs, evicted and packed"], [`the whole cache${asked}`], [percent(result.outputs), "n"]]),
    );
    at("figures").hidden = false;
};

const showReport = (report) => {
    const text = JSON.stringify(report, null, 1);
    URL.revokeObjectURL(at("download").href);
    at("download").href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    at("stages").replaceChildren(
        ...report.stages.map((stage) => row([
            [stage.stage],
            [number(stage.cases), "n"],
            [number(stage.compared), "n"],
            stage.failure ? [stage.failure, "fault"] : ["as it should be"],
        ])),
    );
    at("report").hidden = false;
};

// Runs one job at a time and says what went wrong.
const job = (id, work) => {
    at(id).addEventListener("submit", async (event) => {
        event.preventDefault();
        const buttons = document.querySelectorAll("button");
        buttons.forEach((button) => { button.disabled = true; });
        at(`${id}-progress`).hidden = false;
        say(`${id}-status`, "");
        try {
            await work();
        } catch (error) {
            say(`${id}-status`, error.message ?? String(error), true);
        }
        at(`${id}-progress`).hidden = true;
        buttons.forEach((button) => { button.disabled = false; });
    });
};

const chosenFile = async () => {
    if (document.querySelector("input[name=source]:checked").value === "sample") {
        const answer = await fetch("smollm2_sample.safetensors");
        if (!answer.ok) throw new Error(`the sample is not beside the page (${answer.status}): build it with tools/web/build`);
        return answer.arrayBuffer();
    }
    const [file] = at("file").files;
    if (!file) throw new Error("choose a file first");
    if (file.size > 2 ** 30) throw new Error("a page can hold files of up to 1 GiB; the program wgkv takes larger ones");
    return file.arrayBuffer();
};

const start = async () => {
    if (!window.isSecureContext) {
        throw new Error("browsers give WebGPU to pages from https or localhost only: serve this one with tools/web/serve");
    }
    if (!navigator.gpu) {
        throw new Error(
            "This browser has no WebGPU. Chrome and Edge 113, Safari 26 and Firefox 141 (Windows) or 145 (macOS) " +
            "have it, as do later versions; on Linux, Chrome may want --enable-unsafe-webgpu.",
        );
    }
    await init();
    const lab = await Lab.open();
    const faults = await lab.self_test();
    if (faults) throw new Error(`This GPU computes wrongly and cannot be used: ${faults}`);
    const about = JSON.parse(lab.about());
    const name = about.name || "a GPU that the browser does not name";
    say("gpu", `Runs on ${name}; it computes as it should; tensors of up to ${size(about.max_storage_buffer_binding_size)} a head.`);
    document.querySelector("main").hidden = false;

    at("keep").addEventListener("input", () => { at("kept").textContent = at("keep").value; });
    at("file").addEventListener("change", () => {
        document.querySelector("input[name=source][value=file]").checked = true;
    });
    job("compress", async () => {
        const file = new Uint8Array(await chosenFile());
        const begun = performance.now();
        const keep = Number(at("keep").value) / 100;
        const text = await lab.compress(file, Number(at("bits").value), keep, progress("compress"));
        window.figures = JSON.parse(text);
        showFigures(window.figures);
        say("compress-status", `Done in ${number((performance.now() - begun) / 1000, 1)} s, errors measured.`);
    });
    job("conform", async () => {
        const text = await lab.conform(Number(at("cases").value), progress("conform"));
        window.conformance = JSON.parse(text);
        showReport(window.conformance);
        say("conform-status", window.conformance.passed ? "Passed." : "Failed: please send the report in.", !window.conformance.passed);
    });
    document.body.dataset.ready = "yes";
};

start().catch((error) => {
    say("gpu", error.message ?? String(error), true);
    document.body.dataset.ready = "no";
});
