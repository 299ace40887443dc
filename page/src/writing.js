// How a token is written after a text, so that the text is read as exactly these tokens again.

import { EOS, UNKNOWN, character, tokenize } from './tokenizer.js';

const CLOSING = new Set([...'.,;:!?)]}%…»”’،؛؟।', "'s", "n't", "'re", "'ve", "'ll", "'d", "'m", "'"]);
const OPENING = new Set('([{$£€#«“‘¿¡');
const ENDS = new Set([EOS, '.', '!', '?', '؟', '।']);

/** `before` with `token` after it, and a space where a word may follow. */
export function continued(name, before, token) {
  if (name === 'characters') return before + character(token);
  const kept = before.replace(/ +$/, '');
  if (token === EOS) return `${kept}\n`;
  const tokens = tokenize(name, before).map((each) => each.token);
  const word = name === 'words' ? cased(token, tokens) : token;
  for (const gap of gaps(kept, token, tokens)) {
    const text = kept + gap + word;
    if (isRead(name, text, [...tokens, token])) return OPENING.has(token) ? text : `${text} `;
  }
  return `${kept} ${word} `;
}

function gaps(before, token, tokens) {
  if (before === '' || before.endsWith('\n')) return ['', ' '];
  return CLOSING.has(token) || OPENING.has(tokens.at(-1)) ? ['', ' '] : [' '];
}

function isRead(name, text, expected) {
  const found = tokenize(name, text);
  return found.length === expected.length && found.every(({ token }, at) => token === expected[at]);
}

/** The token with a capital at the beginning of a sentence, for texts that are read in lower case. */
function cased(token, before) {
  const letters = [...token];
  const first = before.length === 0 || startsSentence(before);
  if (!/^\p{L}/u.test(token) || token === UNKNOWN) return token;
  if (!first && token !== 'i' && !token.startsWith("i'")) return token;
  return letters[0].toUpperCase() + letters.slice(1).join('');
}

function startsSentence(tokens) {
  for (let at = tokens.length - 1; at >= 0; at--) {
    if (ENDS.has(tokens[at])) return true;
    if (/^[\p{L}\p{N}<]/u.test(tokens[at])) return false;
  }
  return true;
}
