// assemble.mjs - puts the page together: node webui/assemble.mjs OUT
//
// Copies the page's own files and the four libraries it stands on (from node_modules) into OUT, which the server then
// serves as it is. There is no bundler: what the browser loads is what is written here. The one convention: libraries
// name each other by package ("preact"), which a browser can only resolve with an inline import map, and our content
// security policy forbids inline scripts; so those names are turned into relative paths while copying.
import { cp, mkdir, readFile, readdir, rm, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";

const HERE = path.dirname(fileURLToPath(import.meta.url));
const MODULES = path.join(HERE, "..", "node_modules");
const NOT_SERVED = new Set(["assemble.mjs", "CMakeLists.txt", "vendor"]);

const LIBRARIES = [
    { from: "preact/dist/preact.module.js", to: "preact.js" },
    { from: "preact/hooks/dist/hooks.module.js", to: "hooks.js" },
    { from: "htm/dist/htm.module.js", to: "htm.js" },
    { from: "uplot/dist/uPlot.esm.js", to: "uplot.js" },
    { from: "uplot/dist/uPlot.min.css", to: "uplot.css" },
];
const LICENCES = ["preact", "htm", "uplot"];

async function copyOwnFiles(out) {
    for (const name of await readdir(HERE)) {
        if (!NOT_SERVED.has(name) && !name.startsWith(".")) {
            await cp(path.join(HERE, name), path.join(out, name), { recursive: true });
        }
    }
}

async function copyLibraries(vendor) {
    await mkdir(vendor, { recursive: true });
    for (const { from, to } of LIBRARIES) {
        const text = await readFile(path.join(MODULES, from), "utf8");
        const resolved = text
            .replace(/from\s*"preact"/g, 'from"./preact.js"')
            .replace(/\n?\/\/# sourceMappingURL=.*\n?$/, "\n");
        await writeFile(path.join(vendor, to), resolved);
    }
    const licences = [];
    for (const name of LICENCES) {
        const { version } = JSON.parse(
            await readFile(path.join(MODULES, name, "package.json"), "utf8"),
        );
        const text = await readFile(path.join(MODULES, name, "LICENSE"), "utf8");
        licences.push(`${name} ${version}\n\n${text.trim()}\n`);
    }
    await writeFile(path.join(vendor, "LICENSES.txt"), licences.join("\n----\n\n"));
}

async function main(out) {
    if (!out) {
        throw new Error("say where to put the page: node webui/assemble.mjs OUT");
    }
    await rm(out, { recursive: true, force: true });
    await mkdir(out, { recursive: true });
    await copyOwnFiles(out);
    await copyLibraries(path.join(out, "vendor"));
}

main(process.argv[2]).catch((error) => {
    const hint = error.code === "ENOENT" ? " (are the packages installed? npm ci)" : "";
    process.stderr.write(`assemble: ${error.message}${hint}\n`);
    process.exitCode = 1;
});
