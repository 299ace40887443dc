// A text whose words are colored by their surprisal.

import { element } from './dom.js';
import { shade } from './numbers.js';

export class Reading {
  constructor(root) {
    this.root = root;
    this.words = []; // {before, word, gap, span}
    this.tail = document.createTextNode('');
  }

  /** Show a text with its tokens; words that are the same as before keep their colors. */
  show(text, tokens) {
    let kept = 0;
    let end = 0;
    while (kept < tokens.length && kept < this.words.length && this.isSame(kept, text, tokens[kept], end)) {
      end = tokens[kept].end;
      kept++;
    }
    this.cut(kept);
    for (const { start, end: stop } of tokens.slice(kept)) {
      const [before, word] = [text.slice(end, start), text.slice(start, stop)];
      const gap = document.createTextNode(before);
      const span = element('span', { class: 'word', 'data-at': this.words.length }, word);
      this.line().append(gap, span);
      this.words.push({ before, word, gap, span });
      end = stop;
    }
    this.tail.data = `${text.slice(end)}\u200b`; // so that a line break at the end takes up its line
    this.line().append(this.tail);
  }

  /** Remove all but the first `kept` words, and the lines after them. */
  cut(kept) {
    for (const { gap, span } of this.words.splice(kept)) {
      gap.remove();
      span.remove();
    }
    const last = this.words.at(-1)?.span.parentElement ?? null;
    while (this.root.lastChild !== last) this.root.lastChild.remove();
  }

  /** Where the next word goes. Lines are blocks, because a browser lays out a whole block at every key. */
  line() {
    const last = this.words.at(-1);
    if (last && !last.word.endsWith('\n')) return last.span.parentElement;
    const line = element('div');
    this.root.append(line);
    return line;
  }

  isSame(at, text, { start, end }, from) {
    const { before, word } = this.words[at];
    return word === text.slice(start, end) && before === text.slice(from, start);
  }

  /** Color word `at`; `surprisal` is in bits, or null for a word without a score. */
  color(at, surprisal, known = true) {
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
    const found = document.elementsFromPoint(x, y).find((each) => each.matches('.word') && this.root.contains(each));
    return found ? Number(found.dataset.at) : null;
  }
}
