// A model in a thread of its own, so that typing never waits for it. The newest text always comes first.

import { likeliest, draw } from './ranking.js';
import { Reader } from './reader.js';
import { Step } from './step.js';
import { EOS } from './tokenizer.js';
import { Vocabulary } from './vocabulary.js';

const SLICE = 25; // milliseconds of work before a new message is looked for
const WORDS_BEFORE = 10; // how many context words are left out in turn

let reader = null;
let vocabulary = null;
const text = []; // the tokens that were read, as strings, without the <eos> at the beginning
const waiting = { read: null, draw: null, look: null };
let busy = false;

addEventListener('message', async ({ data }) => {
  if (data.kind === 'load') return load(data.folder);
  waiting[data.kind] = data;
  if (data.kind === 'read') waiting.look = null;
  if (busy) return;
  busy = true;
  try {
    await work();
  } catch (error) {
    postMessage({ kind: 'failed', message: String(error) });
  }
  busy = false;
});

async function load(folder) {
  try {
    const [about, words, bytes] = await Promise.all([
      fetched(`${folder}/model.json`).then((answer) => answer.json()),
      fetched(`${folder}/vocabulary.txt`).then((answer) => answer.text()),
      fetched(`${folder}/step.onnx`).then((answer) => answer.arrayBuffer()),
    ]);
    vocabulary = new Vocabulary(words);
    reader = new Reader(await Step.load(bytes), about.cache);
    await reader.read(vocabulary.encode(EOS));
    postMessage({ kind: 'loaded', bytes: bytes.byteLength, about });
  } catch (error) {
    postMessage({ kind: 'failed', message: String(error) });
  }
}

async function fetched(address) {
  const answer = await fetch(address);
  if (!answer.ok) throw new Error(`${address}: ${answer.status}`);
  return answer;
}

async function work() {
  for (;;) {
    const kind = ['read', 'draw', 'look'].find((name) => waiting[name]);
    if (!kind) return;
    const request = waiting[kind];
    waiting[kind] = null;
    await { read, draw: drawWord, look }[kind](request);
  }
}

/**
 * Read a text, given as strings, and suggest words after its first `at` tokens. The page has the scores of
 * the first `have` tokens already.
 */
async function read({ id, tokens, have, at, prefix, memory }) {
  let same = 0;
  while (same < text.length && same < tokens.length && text[same] === tokens[same]) same++;
  await reader.rewind(same + 1);
  text.length = same;
  let from = Math.min(have, same);
  let start = performance.now();
  const report = () => {
    postMessage({ kind: 'scored', id, from, scores: reader.scores.slice(from + 1) });
    from = text.length;
  };
  for (const token of tokens.slice(same)) {
    const number = vocabulary.encode(token);
    if (number === null) {
      report();
      return postMessage({ kind: 'unreadable', id, token });
    }
    Object.assign(await reader.read(number), { known: vocabulary.has(token) });
    text.push(token);
    if (performance.now() - start > SLICE) {
      report();
      await pause();
      if (waiting.read) return;
      start = performance.now();
    }
  }
  report();
  const logProbabilities = await reader.predict(at + 1, memory);
  const ids = likeliest(logProbabilities, 5, (each) => isSuggested(each, prefix));
  const words = ids.map((each) => ({ word: vocabulary.words[each], logProbability: logProbabilities[each] }));
  postMessage({ kind: 'suggested', id, words });
}

function isSuggested(id, prefix) {
  return id !== vocabulary.unknown && vocabulary.words[id].startsWith(prefix);
}

async function drawWord({ id, temperature, memory }) {
  const logProbabilities = await reader.predict(reader.length, memory);
  const word = vocabulary.words[draw(logProbabilities, temperature, vocabulary.unknown)];
  postMessage({ kind: 'drawn', id, word });
}

/** Look inside the unit at the token with number `at`, then leave out the words before it one by one. */
async function look({ id, at }) {
  const position = at + 1; // after the <eos> at the beginning
  if (position >= reader.length) return;
  const { inside } = await reader.after(position + 1, true);
  postMessage({ kind: 'looked', id, inside });
  let start = performance.now();
  const influences = [];
  for await (const found of reader.influences(position, WORDS_BEFORE)) {
    if (found) influences.push({ at: found.position - 1, nats: found.nats });
    if (performance.now() - start > SLICE) {
      await pause();
      start = performance.now();
    }
    if (waiting.read || waiting.draw || waiting.look) return;
  }
  postMessage({ kind: 'influences', id, influences });
}

const channel = new MessageChannel();

/** Let messages in. */
function pause() {
  return new Promise((resolve) => {
    channel.port1.onmessage = resolve;
    channel.port2.postMessage(null);
  });
}
