// Puts the page and its runtime into the Python package: `npm run build`. Nothing is transformed, so what a
// browser runs is what is in src/.

import { cpSync, mkdirSync, rmSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const here = (path) => fileURLToPath(new URL(path, import.meta.url));
const site = here('../src/torch_pru/page/site/');
const RUNTIME = ['ort.wasm.bundle.min.mjs', 'ort-wasm-simd-threaded.wasm'];

rmSync(site, { recursive: true, force: true });
cpSync(here('src/'), site, { recursive: true });
mkdirSync(`${site}runtime`);
for (const name of RUNTIME) cpSync(here(`node_modules/onnxruntime-web/dist/${name}`), `${site}runtime/${name}`);
