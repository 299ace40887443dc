import assert from 'node:assert/strict';
import { test } from 'node:test';

import { bits, ordinal, percent, perplexity, roundedPerplexity, shade } from '../src/numbers.js';

test('numbers as people read them', () => {
  assert.equal(bits(Math.log(0.25)), 2);
  assert.deepEqual([0.823, 0.065, 0.0004].map(percent), ['82%', '6.5%', '< 0.1%']);
  assert.deepEqual([1, 2, 3, 11, 22, 1003].map(ordinal), ['1st', '2nd', '3rd', '11th', '22nd', '1,003rd']);
  assert.equal(perplexity([]), null);
  assert.ok(Math.abs(perplexity([Math.log(0.5), Math.log(0.125)]) - 4) < 1e-12);
  assert.deepEqual([null, 48.62, 1234.5, 2e7].map(roundedPerplexity), ['–', '48.6', '1,235', '2.0e+7']);
  assert.deepEqual([0, 1, 15.4, 40].map(shade), [0, 1, 8, 8]);
});
