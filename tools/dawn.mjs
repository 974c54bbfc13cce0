// Compiles the shaders that tools/shaders.rs writes with Dawn's compiler, which Chrome uses, on its null
// backend: no GPU is needed. Arguments: the folder that holds npm's package `webgpu`, the file of shaders.
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { fileURLToPath, pathToFileURL } from "node:url";

const [folder, file, part] = process.argv.slice(2);
const shaders = readFileSync(file, "utf8").split("\n").filter(Boolean).map((line) => JSON.parse(line));
// Dawn in Node has crashed after some hundreds of pipelines, so a process takes no more than this.
const SHARE = 100;

// Browsers want a line for subgroup operations that naga takes without.
const enable = (shader) => {
    const features = [];
    if (/^\s*enable\s+f16\s*;/m.test(shader.text)) features.push("shader-f16");
    if (!/\bsubgroup[A-Z_]/.test(shader.text)) return [features, shader.text];
    return [[...features, "subgroups"], `enable subgroups;\n${shader.text}`];
};

// A variant for devices with more workgroup memory than the null backend has: it is checked as a module, and
// no pipeline is made of it. Its smaller sibling has the same text but for constants.
const wide = (shader) => /\bconst PLAIN_STORAGE: u32 = 32768u;/.test(shader.text);

const compile = async (shaders) => {
    const packages = createRequire(pathToFileURL(join(resolve(folder), "package.json")));
    const { create, globals } = await import(pathToFileURL(packages.resolve("webgpu")));
    Object.assign(globalThis, globals);
    // What is collected while Dawn works is freed under its feet.
    const held = [create(["backend=null"])];
    const adapter = await held[0].requestAdapter();
    const devices = new Map();
    const faults = [];
    for (const shader of shaders) {
        const [requiredFeatures, code] = enable(shader);
        const key = requiredFeatures.join();
        if (!devices.has(key)) devices.set(key, await adapter.requestDevice({ requiredFeatures }));
        const device = devices.get(key);
        device.pushErrorScope("validation");
        const module = device.createShaderModule({ code });
        if (wide(shader)) {
            held.push(module);
            const error = await device.popErrorScope();
            if (error) faults.push(`${shader.name} ${shader.constants}\n${error.message}`);
            continue;
        }
        const buffers = [
            { type: "uniform", hasDynamicOffset: true, minBindingSize: shader.params },
            ...shader.bindings.map((type) => ({ type })),
        ];
        const layout = device.createBindGroupLayout({
            entries: buffers.map((buffer, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer })),
        });
        const pipeline = device.createComputePipeline({
            layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
            compute: { module, entryPoint: "main", constants: shader.overrides },
        });
        held.push(module, layout, pipeline);
        const error = await device.popErrorScope();
        if (error) {
            faults.push(`${shader.name} ${shader.constants} ${JSON.stringify(shader.overrides)}\n${error.message}`);
        }
    }
    return faults;
};

if (part !== undefined) {
    const faults = await compile(shaders.slice(part * SHARE, (Number(part) + 1) * SHARE));
    // Written and left at once: tearing Dawn down is not what is tried here.
    process.stdout.write(JSON.stringify(faults), () => process.kill(process.pid, "SIGKILL"));
} else {
    const faults = [];
    for (let part = 0; part * SHARE < shaders.length; part += 1) {
        const run = () =>
            spawnSync(process.execPath, [fileURLToPath(import.meta.url), folder, file, part], {
                encoding: "utf8",
                maxBuffer: 1 << 28,
                timeout: 120_000,
            });
        let found = run();
        // A crash of Dawn is no verdict on the shaders; one that comes back is a fault.
        if (!found.stdout) found = run();
        if (found.stdout) faults.push(...JSON.parse(found.stdout));
        else faults.push(`shaders from ${part * SHARE} on: Dawn ended by ${found.signal}\n${found.stderr}`);
    }
    for (const fault of faults) console.error(fault);
    const modules = shaders.filter(wide).length;
    console.log(`${shaders.length} shaders, ${faults.length} refused by Dawn's compiler; ${modules} as modules alone`);
    process.exit(shaders.length === 0 || faults.length ? 1 : 0);
}
