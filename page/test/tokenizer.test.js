import assert from 'node:assert/strict';
import { test } from 'node:test';

import { tokenize, unfinished } from '../src/tokenizer.js';

const strings = (name, text) => tokenize(name, text).map(({ token }) => token);

test('words are lower-cased, and punctuation is split off', () => {
  assert.deepEqual(strings('words', 'My brother’s keeper?\nMother-in-law didn\'t'), [
    'my', 'brother', "'s", 'keeper', '?', '<eos>', 'mother-in-law', "didn't",
  ]);
  assert.deepEqual(strings('cased-words', 'He paid $3,000.50.'), ['He', 'paid', '$', '3,000.50', '.']);
  assert.deepEqual(strings('words', 'a <unk> b <script>'), ['a', '<unk>', 'b', '<', 'script', '>']);
});

test('tokens know their places in the text', () => {
  for (const text of ['“Light!” he said,  twice.\n', 'cafe\u0301 cre\u0300me brûlée', '  a\tb']) {
    for (const name of ['words', 'cased-words', 'spaces', 'characters']) {
      let end = 0;
      for (const { start, end: stop } of tokenize(name, text)) {
        assert.ok(start >= end && stop >= start && stop <= text.length, `${name}: ${text}`);
        end = stop;
      }
    }
  }
  const [word] = tokenize('words', ' God');
  assert.deepEqual(word, { token: 'god', start: 1, end: 4 });
});

test('letters and their marks are composed', () => {
  assert.deepEqual(strings('words', 'Cafe\u0301'), ['café']);
  assert.deepEqual(strings('characters', 'e\u0301 x'), ['é', '▁', 'x']);
});

test('a word is unfinished until something follows it', () => {
  const last = (name, text) => unfinished(name, text, tokenize(name, text))?.token ?? null;
  assert.equal(last('words', 'in the beg'), 'beg');
  assert.equal(last('words', 'in the beginning '), null);
  assert.equal(last('words', 'the end.'), null);
  assert.equal(last('words', 'the end\n'), null);
  assert.equal(last('spaces', 'the end.'), 'end.');
  assert.equal(last('characters', 'abc'), null);
  assert.equal(last('words', ''), null);
});
