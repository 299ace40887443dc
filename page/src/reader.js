// Reads tokens one by one and keeps what was found, so that an edit costs only what comes after it.

import { cachedWords, mixed, mixedAll } from './cache.js';
import { rank } from './ranking.js';

const EVERY = 16; // states are kept at every 16th position ...
const RECENT = 64; // ... and at the last 64

export class Reader {
  /**
   * `step` is a step model: `initial()` is its first state, and `run(token, state)` resolves to
   * `{logProbabilities, hidden, state}`. `cache` holds the settings of the continuous cache.
   */
  constructor(step, cache) {
    this.step = step;
    this.cache = cache;
    this.tokens = [];
    this.hidden = [];
    this.scores = [];
    this.states = [];
    this.next = null;
  }

  /** How many tokens have been read, with the `<eos>` that every text begins after. */
  get length() {
    return this.tokens.length;
  }

  /** Read a token, and return its score; null for the first, which nothing comes before. */
  async read(token) {
    const score = this.length ? this.score(token) : null;
    const before = this.length ? this.states[this.length - 1] : this.step.initial();
    const found = await this.step.run(token, before);
    this.tokens.push(token);
    this.scores.push(score);
    this.hidden.push(found.hidden);
    this.states.push(found.state);
    this.next = found.logProbabilities;
    const old = this.length - 1 - RECENT;
    if (old > 0 && old % EVERY) this.states[old] = null;
    return score;
  }

  /** What the model, alone and with the cache, made of a token: log-probability in nats and place among all words. */
  score(token) {
    const cached = this.cached(this.length);
    const model = this.next[token];
    const memory = mixed(model, cached && (cached.get(token) ?? 0), this.cache);
    const ranks = [this.next, mixedAll(this.next, cached, this.cache)].map((values) => rank(values, token));
    return { model, memory, rank: ranks[0], memoryRank: ranks[1] };
  }

  /** Forget all but the first `length` tokens. */
  async rewind(length) {
    if (length >= this.length) return;
    const found = length ? await this.after(length) : null;
    for (const list of [this.tokens, this.hidden, this.scores, this.states]) list.length = length;
    this.next = found && found.logProbabilities;
    if (length) this.states[length - 1] = found.state;
  }

  /** What the model gave after the first `length` tokens; `inside` asks for gates and levels. */
  async after(length, inside = false) {
    if (length === this.length && !inside) {
      return { logProbabilities: this.next, state: this.states[length - 1] };
    }
    let at = length - 1;
    while (at > 0 && !this.states[at - 1]) at--;
    let state = at > 0 ? this.states[at - 1] : this.step.initial();
    let found;
    for (; at < length; at++) {
      found = await this.step.run(this.tokens[at], state, inside && at === length - 1);
      state = found.state;
    }
    return found;
  }

  /** Log-probabilities of the word after the first `length` tokens, with or without the cache. */
  async predict(length, memory) {
    const { logProbabilities } = await this.after(length);
    return memory ? mixedAll(logProbabilities, this.cached(length), this.cache) : logProbabilities;
  }

  /** The cache's words after the first `length` tokens; null while it is empty. */
  cached(length) {
    return length > 1 ? cachedWords(this.hidden, this.tokens, length - 1, this.cache) : null;
  }

  /**
   * How much each of up to `count` tokens before position `at` helped to predict the token there: the nats
   * by which it is less likely without that token. Yields `{position, nats}`, nearest first, and null between
   * two steps, so that the caller can stop.
   */
  async *influences(at, count) {
    const { logProbabilities } = await this.after(at);
    const whole = logProbabilities[this.tokens[at]];
    for (let left = at - 1; left > 0 && left >= at - count; left--) {
      let { state, logProbabilities: found } = await this.after(left);
      for (let i = left + 1; i < at; i++) {
        yield null;
        ({ state, logProbabilities: found } = await this.step.run(this.tokens[i], state));
      }
      yield { position: left, nats: whole - found[this.tokens[at]] };
    }
  }
}
