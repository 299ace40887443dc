// Which words before a word helped to predict it: each was left out in turn.

import { element } from './dom.js';
import { bits } from './numbers.js';
import { shown } from './tokenizer.js';

/**
 * Bars over the words before token `at`, in a list. `influences` holds `{at, nats}`: positive where the word
 * is less likely without that one. Returns the size of the largest in bits; the style sheet divides by `--scale`.
 */
export function drawInfluences(list, tokens, at, influences) {
  const ordered = [...influences].sort((a, b) => a.at - b.at);
  const items = ordered.map(({ at: place, nats }) => {
    const change = -bits(nats);
    const size = Math.abs(change).toFixed(1);
    const [sign, kind] = size === '0.0' ? ['', 'even'] : change < 0 ? ['−', 'hurt'] : ['+', 'help'];
    const bar = element('span', { class: `bar ${kind}` });
    bar.style.setProperty('--size', Math.abs(change));
    return element(
      'li',
      {},
      element('span', { class: 'plot' }, bar),
      element('span', { class: 'context' }, shown(tokens[place].token)),
      element('span', { class: 'number' }, `${sign}${size}`),
    );
  });
  const itself = element('span', { class: 'context' }, shown(tokens[at].token));
  list.replaceChildren(...items, element('li', { class: 'itself' }, itself));
  return Math.max(0, ...influences.map(({ nats }) => Math.abs(bits(nats))));
}
