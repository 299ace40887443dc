import assert from 'node:assert/strict';
import { test } from 'node:test';

import { draw, likeliest, rank } from '../src/ranking.js';

const logs = [0.1, 0.4, 0.2, 0.3].map(Math.log);

test('the likeliest come first, of equals the lower id', () => {
  assert.deepEqual(likeliest(logs, 3), [1, 3, 2]);
  assert.deepEqual(likeliest(logs, 9), [1, 3, 2, 0]);
  assert.deepEqual(likeliest(logs, 2, (id) => id !== 1), [3, 2]);
  assert.deepEqual(likeliest([-1, -1, -1], 2), [0, 1]);
  const many = Array.from({ length: 1000 }, (_, id) => Math.sin(id * id));
  const sorted = [...many.keys()].sort((a, b) => many[b] - many[a] || a - b);
  assert.deepEqual(likeliest(many, 50), sorted.slice(0, 50));
});

test('ranks count from 1', () => {
  assert.deepEqual(logs.map((_, id) => rank(logs, id)), [4, 1, 3, 2]);
});

test('draws follow the probabilities', () => {
  assert.equal(draw(logs, 0), 1);
  assert.equal(draw(logs, 0, 1), 3); // the likeliest is barred
  const counts = [0, 0, 0, 0];
  for (let number = 0; number < 1000; number++) counts[draw(logs, 1, null, () => (number + 0.5) / 1000)]++;
  assert.deepEqual(counts, [100, 400, 200, 300]);
  assert.equal(draw(logs, 1, 3, () => 0.999999), 2);
  const cold = [0, 0, 0, 0];
  for (let number = 0; number < 1000; number++) cold[draw(logs, 0.5, null, () => (number + 0.5) / 1000)]++;
  assert.ok(Math.abs(cold[1] - (1000 * 0.16) / 0.3) <= 1);
});
