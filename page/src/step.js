// One step of the model, run by ONNX Runtime Web in a single thread.

import * as ort from './runtime/ort.wasm.bundle.min.mjs';

ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = { wasm: new URL('./runtime/ort-wasm-simd-threaded.wasm', import.meta.url).href };

export class Step {
  static async load(bytes) {
    // Without this, weights of 8 bits would be converted to float32 in every step, not once.
    const extra = { session: { disable_quant_qdq: '1' } };
    const options = { executionProviders: ['wasm'], graphOptimizationLevel: 'all', extra };
    return new Step(await ort.InferenceSession.create(bytes, options));
  }

  constructor(session) {
    this.session = session;
    this.inputs = session.inputNames.filter((name) => name !== 'token');
    this.usual = session.outputNames.filter((name) => !/^(gates|level)_/.test(name));
    const shapes = Object.fromEntries(session.inputMetadata.map(({ name, shape }) => [name, shape]));
    this.zeros = Object.fromEntries(
      this.inputs.map((name) => [name, new ort.Tensor('float32', new Float32Array(shapes[name][1]), shapes[name])]),
    );
  }

  /** The state before the first token. */
  initial() {
    return this.zeros;
  }

  /** Read a token after a state; with `inside`, the gates and levels of every layer come along. */
  async run(token, state, inside = false) {
    const feeds = { token: new ort.Tensor('int64', BigInt64Array.of(BigInt(token)), [1]), ...state };
    const found = await this.session.run(feeds, inside ? this.session.outputNames : this.usual);
    const data = (name) => found[name].data;
    return {
      logProbabilities: data('log_probabilities'),
      hidden: data('hidden'),
      state: Object.fromEntries(this.inputs.map((name) => [name, found[`next_${name}`]])),
      inside: inside ? this.layers(data, state) : null,
    };
  }

  /** Of every layer: its input at each level, its state before and after the word, and its gates. */
  layers(data, state) {
    const names = this.session.outputNames;
    return names
      .filter((name) => name.startsWith('gates_'))
      .map((name) => {
        const number = name.slice('gates_'.length);
        const levels = names.filter((other) => other.startsWith(`level_${number}_`));
        const [before, after] = [state[`h_${number}`].data, data(`next_h_${number}`)];
        return { levels: levels.map(data), before, gates: data(name), after };
      });
  }
}
