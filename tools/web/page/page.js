const at = (id) => document.getElementById(id);
const number = (value, digits = 0) =>
    value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const percent = (value) => (value === null ? "no number" : `${number(100 * value, 2)}%`);
const size = (bytes) => {
    if (bytes < 1024) return `${number(bytes)} B`;
    const steps = Math.min(3, Math.floor(Math.log2(bytes) / 10));
    return `${number(bytes / 1024 ** steps, 1)} ${["B", "KiB", "MiB", "GiB"][steps]}`;
};

const say = (id, text, fault = false) => {
    at(id).textContent = text;
    at(id).classList.toggle("fault", fault);
};

// The library works in a worker, so that the page answers meanwhile.
const worker = new Worker("worker.js", { type: "module" });
const calls = new Map();
let numbers = 0;
const ask = (verb, values = {}, progress = () => {}) => new Promise((done, failed) => {
    numbers += 1;
    calls.set(numbers, { done, failed, progress });
    worker.postMessage({ call: numbers, verb, values }, values.file ? [values.file] : []);
});
worker.onmessage = ({ data: { call, progress, answer, fault } }) => {
    const asked = calls.get(call);
    if (progress) return asked.progress(...progress);
    calls.delete(call);
    return fault === undefined ? asked.done(answer) : asked.failed(new Error(fault));
};
worker.onerror = (event) => {
    const fault = new Error(`the page's worker failed: ${event.message ?? "its files are not beside the page"}`);
    for (const { failed } of calls.values()) failed(fault);
    calls.clear();
};

const progress = (id) => (done, all, what) => {
    at(`${id}-progress`).max = all;
    at(`${id}-progress`).value = done;
    say(`${id}-status`, `${done} of ${all}: ${what}`);
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

// Pictures are as wide as their place, so that their text has the size of the page's; a narrow one has fewer ticks.
const measures = () => {
    const width = Math.max(300, at("bytes").clientWidth);
    return { width, ticks: width < 600 ? 2 : 4 };
};

// Bars of bytes: what went in, then each part of what came out, on one axis.
const drawBytes = (result) => {
    const { total, ...parts } = result.bytes_after;
    const bars = [["input", result.bytes_before], ["output", total]];
    for (const [name, bytes] of Object.entries(parts)) if (bytes) bars.push([`– ${name}`, bytes]);
    const { width: whole, ticks } = measures();
    const [left, right, step] = [100, 75, 22];
    const height = bars.length * step + 36;
    const picture = svg("svg", { viewBox: `0 0 ${whole} ${height}`, role: "img", "aria-label": "bytes by part" });
    // Tables and padding may make a small output larger than its input.
    const most = Math.max(result.bytes_before, total);
    const scale = (whole - left - right) / most;
    bars.forEach(([name, bytes], place) => {
        const y = place * step;
        picture.append(svg("text", { x: left - 8, y: y + 15, "text-anchor": "end" }, name));
        const width = Math.max(1, bytes * scale);
        picture.append(svg("rect", { x: left, y: y + 3, width, height: step - 6, class: "mark" }));
        picture.append(svg("text", { x: left + width + 6, y: y + 15, class: "soft" }, size(bytes)));
    });
    const bottom = bars.length * step + 4;
    picture.append(svg("line", { x1: left, x2: whole - right, y1: bottom, y2: bottom, class: "axis" }));
    for (let tick = 0; tick <= ticks; tick += 1) {
        const x = left + ((whole - left - right) * tick) / ticks;
        const text = size((most * tick) / ticks);
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
    const { width: whole, ticks } = measures();
    const letters = Math.max(...strips.map((strip) => strip.name.length));
    const [left, right, step] = [16 + 6 * letters, 75, 24];
    const columns = Math.min(longest, 320, Math.floor((whole - left - right) / 2));
    const height = strips.length * step + 44;
    const picture = svg("svg", { viewBox: `0 0 ${whole} ${height}`, role: "img", "aria-label": "kept tokens" });
    const width = whole - left - right;
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
    for (let tick = 0; tick <= ticks; tick += 1) {
        const x = left + (width * tick) / ticks;
        picture.append(svg("line", { x1: x, x2: x, y1: bottom, y2: bottom + 5, class: "axis" }));
        const text = number(Math.round((longest * tick) / ticks));
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
    const asked = result.keys_stand_for_queries ? " (the newest keys stand for queries: the file has none)" : "";
    at("errors").replaceChildren(
        row([["keys that stay"], ["themselves, unpacked"], [percent(result.keys), "n"]]),
        row([["values that stay"], ["themselves, unpacked"], [percent(result.values), "n"]]),
        row([["attention outputs, by eviction alone"], [`the whole cache${asked}`],
            [percent(result.outputs_evicted_only), "n"]]),
        row([["attention outputs, evicted and packed"], [`the whole cache${asked}`], [percent(result.outputs), "n"]]),
    );
    at("figures").hidden = false;
    drawBytes(result);
    drawHeads(result);
};

window.addEventListener("resize", () => {
    if (!window.figures) return;
    drawBytes(window.figures);
    drawHeads(window.figures);
});

// A line for each stage, in the order of their first cases, which is filled as cases end.
const stageTable = () => {
    const stages = new Map();
    at("stages").replaceChildren();
    at("report").hidden = false;
    at("download").hidden = true;
    let begun = 0;
    return (done, all, name, compared, failure) => {
        if (compared === undefined) {
            begun = performance.now();
            if (!stages.has(name)) {
                const line = row([[name], ["runs"], ["0", "n"], ["0", "n"], [""], ["0.0", "n"]]);
                at("stages").append(line);
                stages.set(name, { line, cases: 0, compared: 0, seconds: 0, failed: 0 });
            }
            return;
        }
        const stage = stages.get(name);
        stage.cases += 1;
        stage.compared += compared;
        stage.seconds += (performance.now() - begun) / 1000;
        stage.failed += failure === null ? 0 : 1;
        const cells = stage.line.children;
        cells[1].textContent = stage.failed ? "failed" : "passes";
        cells[2].textContent = number(stage.cases);
        cells[3].textContent = number(stage.compared);
        cells[5].textContent = number(stage.seconds, 1);
        window.seconds = Object.fromEntries([...stages].map(([key, value]) => [key, value.seconds]));
    };
};

const showReport = (report) => {
    const text = JSON.stringify(report, null, 1);
    URL.revokeObjectURL(at("download").href);
    at("download").href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
    at("download").hidden = false;
    const lines = new Map([...at("stages").children].map((line) => [line.firstChild.textContent, line]));
    for (const stage of report.stages) {
        const line = lines.get(stage.stage) ?? row([[stage.stage], [""], ["0", "n"], ["0", "n"], [""], ["0.0", "n"]]);
        at("stages").append(line);
        const { worst } = stage;
        const [, result, , , error] = line.children;
        const short = (value) => (value === 0 ? "0" : value.toExponential(1));
        if (stage.cases) error.textContent = worst ? `${short(worst.error)} of ${short(worst.tolerance)}` : "exact";
        result.textContent = stage.failure ? `failed: ${stage.failure}` : stage.cases ? "passed" : "not run";
        result.classList.toggle("fault", Boolean(stage.failure));
    }
};

// Runs one job at a time and says what went wrong.
const job = (id, work) => {
    at(id).addEventListener("submit", async (event) => {
        event.preventDefault();
        const buttons = document.querySelectorAll("button:not([type=button])");
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
    const opened = await ask("open");
    if (opened.faults) throw new Error(`This GPU computes wrongly and cannot be used: ${opened.faults}`);
    const about = JSON.parse(opened.about);
    const name = about.name || "a GPU that the browser does not name";
    const most = size(about.max_storage_buffer_binding_size);
    say("gpu", `Runs on ${name}, which passed the self-test. One head's keys or values may have up to ${most}.`);
    document.querySelector("main").hidden = false;

    at("keep").addEventListener("input", () => { at("kept").textContent = at("keep").value; });
    at("file").addEventListener("change", () => {
        document.querySelector("input[name=source][value=file]").checked = true;
    });
    job("compress", async () => {
        const file = await chosenFile();
        const begun = performance.now();
        const values = { file, bits: Number(at("bits").value), keep: Number(at("keep").value) / 100 };
        window.figures = JSON.parse(await ask("compress", values, progress("compress")));
        showFigures(window.figures);
        const { nonfinite } = window.figures;
        const odd = nonfinite ? ` ${number(nonfinite)} NaN or infinite elements count as 0; keys that hold one go first.` : "";
        say("compress-status", `Done in ${number((performance.now() - begun) / 1000, 1)} s, errors measured.${odd}`);
    });
    job("conform", async () => {
        const [bar, table] = [progress("conform"), stageTable()];
        const tell = (...told) => { bar(...told); table(...told); };
        const begun = performance.now();
        at("stop").hidden = false;
        const values = { quick: at("quick").checked, cases: Number(at("cases").value) };
        try {
            window.conformance = JSON.parse(await ask("conform", values, tell));
        } finally {
            at("stop").hidden = true;
        }
        showReport(window.conformance);
        const { passed, stages } = window.conformance;
        const missed = stages.filter((stage) => stage.cases === 0).length;
        const which = missed ? `${stages.length - missed} of ${stages.length} stages, then stopped` : `all ${stages.length} stages`;
        const time = `${number((performance.now() - begun) / 1000)} s`;
        say("conform-status", passed ? `Passed: ${which}, ${time}.` : "Failed: please send the report in.", !passed);
    });
    at("stop").addEventListener("click", () => worker.postMessage({ verb: "stop" }));
    document.body.dataset.ready = "yes";
};

start().catch((error) => {
    say("gpu", error.message ?? String(error), true);
    document.body.dataset.ready = "no";
});
