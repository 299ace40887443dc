// A model, which works in a thread of its own (worker.js).

export class Model {
  /** `listener` has a method for each kind of answer that belongs to the newest text. */
  constructor(folder, listener) {
    this.listener = listener;
    this.id = 0;
    this.drawn = null;
    this.worker = new Worker(new URL('./worker.js', import.meta.url), { type: 'module' });
    this.worker.addEventListener('message', ({ data }) => this.receive(data));
    this.worker.addEventListener('error', (event) => listener.failed({ message: event.message ?? 'cannot load' }));
    this.worker.postMessage({ kind: 'load', folder: new URL(folder, document.baseURI).href });
  }

  receive(answer) {
    if (answer.kind === 'drawn') return this.drawn?.(answer.word);
    if (answer.id === undefined || answer.id === this.id) this.listener[answer.kind](answer);
  }

  /**
   * Read a text (token strings), of whose first `have` tokens the scores are known, and suggest words after
   * its first `at` tokens that begin with `prefix`. Answers: `scored`, several times, then `suggested`.
   */
  read(tokens, { have, at, prefix, memory }) {
    this.id++;
    this.worker.postMessage({ kind: 'read', id: this.id, tokens, have, at, prefix, memory });
  }

  /** A word that may come next. */
  draw(temperature, memory) {
    this.worker.postMessage({ kind: 'draw', id: this.id, temperature, memory });
    return new Promise((resolve) => {
      this.drawn = resolve;
    });
  }

  /** Look inside at token `at`. Answers: `looked`, then `influences`. */
  look(at) {
    this.worker.postMessage({ kind: 'look', id: this.id, at });
  }
}
