// The library at work, beside the page so that the page goes on answering. Takes { call, verb, values } and
// answers { call, progress } any number of times, then { call, answer } or { call, fault }.
import init, { Lab } from "./wgkv_web.js";

let lab;
let stopped = false;

// Lets messages in, now and then.
let rested = performance.now();
const rest = async () => {
    if (performance.now() - rested < 50) return;
    await new Promise((done) => setTimeout(done));
    rested = performance.now();
};

const verbs = {
    open: async () => {
        await init();
        lab = await Lab.open();
        return { faults: await lab.self_test(), about: lab.about() };
    },
    compress: (progress, { file, bits, keep }) => lab.compress(new Uint8Array(file), bits, keep, progress),
    conform: (progress, { quick, cases }) => lab.conform(quick, cases, progress),
};

onmessage = async ({ data: { call, verb, values } }) => {
    if (verb === "stop") {
        stopped = true;
        return;
    }
    stopped = false;
    const progress = async (...told) => {
        postMessage({ call, progress: told });
        await rest();
        return !stopped;
    };
    try {
        postMessage({ call, answer: await verbs[verb](progress, values) });
    } catch (error) {
        // The library stops at nothing but memory that there is not, and its state is lost then.
        const lost = error instanceof WebAssembly.RuntimeError || error instanceof RangeError;
        const text = error.message ?? String(error);
        const fault = lost ? `The page ran out of memory or met a fault of its own (${text}): load it again.` : text;
        postMessage({ call, fault });
    }
};
