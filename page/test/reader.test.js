import assert from 'node:assert/strict';
import { test } from 'node:test';

import { rank } from '../src/ranking.js';
import { Reader } from '../src/reader.js';

const SIZE = 7;

/** A step whose state is the whole text so far, so that any mistake in it shows. */
class Memory {
  constructor() {
    this.steps = 0;
  }

  initial() {
    return [];
  }

  async run(token, before, inside = false) {
    this.steps++;
    const state = [...before, token];
    const mix = state.reduce((sum, value, at) => (sum * 31 + value * (at + 1)) % 1009, 7);
    const raw = Float64Array.from({ length: SIZE }, (_, id) => Math.sin(mix * (id + 1)));
    const total = Math.log(raw.reduce((sum, value) => sum + Math.exp(value), 0));
    const hidden = Float32Array.of(Math.cos(mix), Math.sin(mix));
    return { logProbabilities: raw.map((value) => value - total), hidden, state, inside: inside ? state : null };
  }
}

const CACHE = { mixture: 0.2, theta: 1, window: 20 };
const text = Array.from({ length: 300 }, (_, at) => (at * at + 3 * at) % SIZE);

async function read(tokens) {
  const reader = new Reader(new Memory(), CACHE);
  for (const token of tokens) await reader.read(token);
  return reader;
}

test('scores are those of the words after what came before', async () => {
  const reader = await read(text.slice(0, 40));
  const step = new Memory();
  assert.equal(reader.scores[0], null);
  for (let at = 1; at < 40; at++) {
    const { logProbabilities } = await step.run(text[at - 1], text.slice(0, at - 1));
    assert.equal(reader.scores[at].model, logProbabilities[text[at]]);
  }
  assert.equal(reader.scores[1].memory, reader.scores[1].model); // nothing is remembered yet
  assert.notEqual(reader.scores[9].memory, reader.scores[9].model);
});

test('places among all words are those of the suggestions', async () => {
  const reader = await read(text.slice(0, 40));
  let moved = 0;
  for (let at = 1; at < 40; at++) {
    const { rank: alone, memoryRank: together } = reader.scores[at];
    assert.equal(rank(await reader.predict(at, false), text[at]), alone);
    assert.equal(rank(await reader.predict(at, true), text[at]), together);
    if (alone !== together) moved++;
  }
  assert.ok(moved > 3);
});

test('after an edit everything is as if the text had been read at once', async () => {
  for (const length of [1, 2, 17, 100, 235, 236, 237, 299, 300]) {
    const reader = await read(text);
    await reader.rewind(length);
    const edited = [...text.slice(0, length), 5, 1, 5];
    for (const token of edited.slice(length)) await reader.read(token);
    const fresh = await read(edited);
    assert.deepEqual(reader.scores, fresh.scores);
    assert.deepEqual(reader.next, fresh.next);
  }
});

test('an edit near the end, or far from it, costs a few steps', async () => {
  const reader = await read(text);
  for (const [length, most] of [[299, 1], [250, 1], [100, 16]]) {
    reader.step.steps = 0;
    await reader.after(length);
    assert.ok(reader.step.steps <= most, `${length}: ${reader.step.steps}`);
  }
});

test('states of a long text are given up', async () => {
  const reader = await read(text);
  assert.ok(reader.states.filter(Boolean).length < 64 + 300 / 16 + 3);
});

test('influences compare with the same text without a word', async () => {
  const reader = await read(text.slice(0, 20));
  const found = [];
  for await (const each of reader.influences(12, 4)) if (each) found.push(each);
  assert.deepEqual(found.map(({ position }) => position), [11, 10, 9, 8]);
  for (const { position, nats } of found) {
    const without = await read([...text.slice(0, position), ...text.slice(position + 1, 12)]);
    assert.equal(nats, reader.scores[12].model - without.next[text[12]]);
  }
});

test('one looks inside at the last of the tokens', async () => {
  const reader = await read(text.slice(0, 20));
  assert.deepEqual((await reader.after(20, true)).inside, text.slice(0, 20));
  assert.deepEqual((await reader.after(3, true)).inside, text.slice(0, 3));
});
