// Text to tokens, as torch_pru.lm.data.tokenizer does it, with the place of each token in the text.

export const EOS = '<eos>';
export const UNKNOWN = '<unk>';
const SPACE = '▁';
const TAB = '␉';

// Python's white space, which is not quite JavaScript's.
const WHITE = '\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000';
const WHITE_SPACE = new RegExp(`^[${WHITE}]$`, 'u');
const RUNS = new RegExp(`\\r\\n|\\r|\\n|[^${WHITE}]+`, 'gu');
const SPACED = new RegExp(`\\n|[^${WHITE}]+`, 'gu');

const LETTER = '[\\p{L}\\p{Nl}\\p{No}]';
const MARK = '[\\p{M}&&[\\u{300}-\\u{ffff}]]';
const WORD = `${LETTER}+(?:${MARK}+${LETTER}*)*`;
const END = '(?![\\p{L}\\p{N}_])';
const WORDS = new RegExp(
  `${UNKNOWN}|${WORD}(?:(?:-|'(?!s${END}))${WORD})*|'s${END}|\\p{Nd}+(?:[.,]\\p{Nd}+)*|[^\\0]`,
  'gv',
);
const WORD_END = /[\p{L}\p{N}\p{M}_'’-]$/u;

/**
 * The tokens of a text: `[{token, start, end}]`, where `start` and `end` are places in the text.
 * `name` is one of words, cased-words, characters, spaces.
 */
export function tokenize(name, text) {
  if (name === 'characters') return characters(text);
  if (name === 'spaces') return spaced(text);
  const tokens = [];
  for (const { 0: run, index } of text.matchAll(RUNS)) {
    const end = index + run.length;
    if (run === '\n' || run === '\r' || run === '\r\n') {
      tokens.push({ token: EOS, start: index, end });
    } else {
      tokens.push(...words(run, index, name === 'words'));
    }
  }
  return tokens;
}

/** The word that is being typed at the end of a text, or null: nothing follows it yet. */
export function unfinished(name, text, tokens) {
  const last = tokens.at(-1);
  if (name === 'characters' || !last || last.token === EOS || last.end !== text.length) return null;
  return name === 'spaces' || WORD_END.test(text) ? last : null;
}

function words(run, start, lower) {
  const normal = run.normalize('NFC').replace(/[‘’]/g, "'").replace(/[“”]/g, '"');
  const read = lower ? normal.toLowerCase() : normal;
  const found = [...read.matchAll(WORDS)];
  const same = read.length === run.length; // else the tokens share the place of the whole run
  return found.map(({ 0: token, index }, number) => ({
    token,
    start: same ? start + index : number === 0 ? start : start + run.length,
    end: same ? start + index + token.length : start + run.length,
  }));
}

function spaced(text) {
  return [...text.matchAll(SPACED)].map(({ 0: token, index }) => ({
    token: token === '\n' ? EOS : token,
    start: index,
    end: index + token.length,
  }));
}

function characters(text) {
  const tokens = [];
  for (const { 0: run, index } of text.matchAll(/\r\n|[^]/gu)) {
    // A letter and its marks are composed, where Unicode has a single sign for them.
    tokens.push({ token: run, start: index, end: index + run.length });
  }
  return composed(tokens, text).map((each) => ({ ...each, token: sign(each.token) }));
}

function composed(tokens, text) {
  if (text.normalize('NFC') === text) return tokens;
  const found = [];
  for (const { 0: cluster, index } of text.matchAll(/\r\n|[^\p{M}]?\p{M}*/gu)) {
    if (!cluster) continue;
    const end = index + cluster.length;
    const signs = cluster === '\r\n' ? [cluster] : [...cluster.normalize('NFC')];
    signs.forEach((token, number) => found.push({ token, start: number ? end : index, end }));
  }
  return found;
}

function sign(text) {
  if (text === '\n' || text === '\r' || text === '\r\n') return EOS;
  if (text === '\t') return TAB;
  return WHITE_SPACE.test(text) ? SPACE : text;
}

/** A token of a vocabulary as people read it. */
export function shown(token) {
  return { [EOS]: '↵', [SPACE]: '␣' }[token] ?? token;
}

/** A token of a vocabulary in words, for a screen reader. */
export function spoken(token) {
  return { [EOS]: 'new line', [SPACE]: 'space', [TAB]: 'tab' }[token] ?? token;
}

/** The character that a token of `characters` stands for. */
export function character(token) {
  return { [EOS]: '\n', [SPACE]: ' ', [TAB]: '\t' }[token] ?? token;
}
