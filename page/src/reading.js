// A text whose words are coloured by their surprisal.

import { element } from './dom.js';
import { shade } from './numbers.js';

export class Reading {
  constructor(root) {
    this.root = root;
    this.words = []; // {before, word, gap, span}
    this.tail = document.createTextNode('');
    root.append(this.tail);
  }

  /** Show a text with its tokens; words that are the same as before keep their colours. */
  show(text, tokens) {
    let kept = 0;
    let end = 0;
    while (kept < tokens.length && kept < this.words.length && this.isSame(kept, text, tokens[kept], end)) {
      end = tokens[kept].end;
      kept++;
    }
    for (const { gap, span } of this.words.splice(kept)) {
      gap.remove();
      span.remove();
    }
    const added = document.createDocumentFragment();
    for (const { start, end: stop } of tokens.slice(kept)) {
      const [before, word] = [text.slice(end, start), text.slice(start, stop)];
      const gap = document.createTextNode(before);
      const span = element('span', { class: 'word', 'data-at': this.words.length }, word);
      added.append(gap, span);
      this.words.push({ before, word, gap, span });
      end = stop;
    }
    this.root.insertBefore(added, this.tail);
    this.tail.data = `${text.slice(end)}\u200b`; // so that a line break at the end takes up its line
  }

  isSame(at, text, { start, end }, from) {
    const { before, word } = this.words[at];
    return word === text.slice(start, end) && before === text.slice(from, start);
  }

  /** Colour word `at`; `surprisal` is in bits, or null for a word without a score. */
  colour(at, surprisal, known = true) {
    const { span } = this.words[at] ?? {};
    if (!span) return;
    const name = surprisal === null ? 'word' : `word shade-${shade(surprisal)}${known ? '' : ' unknown'}`;
    if (span.className !== name) span.className = name;
  }

  /** Mark one word as the one that is looked at. */
  mark(at) {
    this.root.querySelector('.current')?.classList.remove('current');
    this.words[at]?.span.classList.add('current');
  }

  /** The number of the word at a point of the window, or null. */
  at(x, y) {
    const found = document.elementsFromPoint(x, y).find((each) => each.parentElement === this.root);
    return found?.dataset.at === undefined ? null : Number(found.dataset.at);
  }
}
