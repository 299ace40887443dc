// The words that a model knows, and their numbers.

import { UNKNOWN } from './tokenizer.js';

export class Vocabulary {
  /** `text` is a vocabulary.txt: one word a line. */
  constructor(text) {
    this.words = text.replace(/\n$/, '').split('\n');
    this.ids = new Map(this.words.map((word, id) => [word, id]));
    this.unknown = this.ids.get(UNKNOWN) ?? null;
  }

  has(word) {
    return this.ids.has(word);
  }

  /** The number of a word; that of `<unk>` for a word outside, and null where there is none. */
  encode(word) {
    return this.ids.get(word) ?? this.unknown;
  }
}
