// The likeliest next words, as buttons.

import { element } from './dom.js';
import { percent } from './numbers.js';
import { shown, spoken } from './tokenizer.js';

const COUNT = 5;

export class Suggestions {
  constructor(list, take) {
    this.words = [];
    this.items = Array.from({ length: COUNT }, (_, number) => {
      const word = element('span', { class: 'suggested' });
      const share = element('span', { class: 'share' });
      const button = element('button', { type: 'button', 'aria-keyshortcuts': `Alt+${number + 1}` }, word, ' ', share);
      const item = element('li', {}, button);
      button.addEventListener('click', () => take(this.words[number].word));
      item.hidden = true;
      list.append(item);
      return { item, button, word, share };
    });
    this.empty = element('li', { class: 'none' }, 'No word that the model knows begins like this.');
    this.empty.hidden = true;
    list.append(this.empty);
  }

  /** Show words, each with its log-probability. */
  show(words) {
    this.words = words;
    this.items.forEach(({ item, button, word, share }, number) => {
      const found = words[number];
      item.hidden = !found;
      if (!found) return;
      const probability = percent(Math.exp(found.logProbability));
      const [sign, name] = [shown(found.word), spoken(found.word)];
      word.textContent = sign === name ? name : `${sign} ${name}`;
      share.textContent = probability;
      button.style.setProperty('--share', Math.exp(found.logProbability));
    });
    this.empty.hidden = words.length > 0;
  }
}
