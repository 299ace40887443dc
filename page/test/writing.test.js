import assert from 'node:assert/strict';
import { test } from 'node:test';

import { tokenize } from '../src/tokenizer.js';
import { continued } from '../src/writing.js';

function written(name, tokens) {
  return tokens.reduce((text, token) => continued(name, text, token), '');
}

test('spaces and capitals are put where people put them', () => {
  const tokens = ['he', 'said', ':', 'my', 'brother', "'s", 'keeper', '?', 'i', 'am', '.', '<eos>', 'and'];
  assert.equal(written('words', tokens), "He said: my brother's keeper? I am.\nAnd ");
  assert.equal(written('words', ['(', 'twice', ')']), '(Twice) ');
  assert.equal(written('spaces', ['the', 'cat', '.', '<eos>', 'it']), 'the cat . \nit '.replace(' \n', '\n'));
  assert.equal(written('characters', ['a', '▁', 'b', '<eos>']), 'a b\n');
});

test('the text is read as the same tokens again, whatever they are', () => {
  const odd = ['a', '-', 'b', "'", 's', "'s", 'n', '3', '.', '5', ',', '<unk>', '<', 'unk', '>', '"', '"', '_'];
  for (const first of odd) {
    for (const second of odd) {
      for (const third of odd) {
        const tokens = [first, second, third];
        const text = written('words', tokens);
        assert.deepEqual(tokenize('words', text).map(({ token }) => token), tokens, text);
      }
    }
  }
});
