import assert from 'node:assert/strict';
import { test } from 'node:test';

import { attention, cachedWords, mixed, mixedAll } from '../src/cache.js';

const hidden = [[1, 0], [0, 1], [1, 1], [1, 0]].map((values) => Float32Array.from(values));
const settings = { mixture: 0.25, theta: 2, window: 2 };
const close = (found, expected) => assert.ok(Math.abs(found - expected) < 1e-12, `${found} ${expected}`);

test('similar states weigh more, within the window', () => {
  const { first, weights } = attention(hidden, 3, settings);
  assert.equal(first, 1);
  const [a, b] = [Math.exp(0), Math.exp(2)]; // theta times the products of states 1 and 2 with state 3
  close(weights[0], a / (a + b));
  close(weights[1], b / (a + b));
});

test('each position stands for the word after it', () => {
  const found = cachedWords(hidden, [9, 5, 6, 6], 3, settings);
  assert.deepEqual([...found.keys()], [6]);
  close(found.get(6), 1);
});

test('probabilities are mixed', () => {
  close(mixed(Math.log(0.2), 0.6, settings), Math.log(0.75 * 0.2 + 0.25 * 0.6));
  assert.equal(mixed(-1, null, settings), -1); // an empty cache
  assert.equal(mixed(-1, 0.5, { ...settings, mixture: 0 }), -1);
  const all = mixedAll([0.5, 0.3, 0.2].map(Math.log), new Map([[2, 1]]), settings);
  close(all.reduce((sum, value) => sum + Math.exp(value), 0), 1);
  close(Math.exp(all[2]), 0.75 * 0.2 + 0.25);
});

test('large products do not overflow', () => {
  const large = [[1000], [1000], [-1000], [1000]].map((values) => Float32Array.from(values));
  const { weights } = attention(large, 3, { ...settings, window: 9 });
  close(weights.reduce((sum, value) => sum + value, 0), 1);
});
