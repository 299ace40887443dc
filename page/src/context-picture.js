// Which words before a word helped to predict it: each was left out in turn.

import { element } from './dom.js';
import { bits } from './numbers.js';
import { shown } from './tokenizer.js';

/**
 * Bars over the words before token `at`, in a list. `influences` holds `{at, nats}`: positive where the word
 * is less likely without that one.
 */
export function drawInfluences(list, tokens, at, influences) {
  const ordered = [...influences].sort((a, b) => a.at - b.at);
  const largest = Math.max(1, ...ordered.map(({ nats }) => Math.abs(bits(nats))));
  const items = ordered.map(({ at: place, nats }) => {
    const change = -bits(nats);
    const bar = element('span', { class: change < 0 ? 'bar hurt' : 'bar help' });
    bar.style.setProperty('--size', `${(100 * Math.abs(change)) / largest}%`);
    const size = Math.abs(change).toFixed(1);
    const number = size === '0.0' ? size : `${change < 0 ? '−' : '+'}${size}`;
    return element(
      'li',
      {},
      element('span', { class: 'plot' }, bar),
      element('span', { class: 'context' }, shown(tokens[place].token)),
      element('span', { class: 'number' }, number),
    );
  });
  list.replaceChildren(...items, element('li', { class: 'itself' }, element('span', { class: 'context' }, shown(tokens[at].token))));
}
