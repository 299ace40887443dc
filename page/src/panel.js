// One model's view of the text: colored words, suggestions, perplexities, and the picture of its unit.

import { drawInfluences } from './context-picture.js';
import { afterPause, element, fromTemplate } from './dom.js';
import { Model } from './model.js';
import { bits, megabytes, ordinal, percent, perplexity, roundedPerplexity } from './numbers.js';
import { Reading } from './reading.js';
import { Suggestions } from './suggestions.js';
import { shown, spoken, tokenize, unfinished } from './tokenizer.js';
import { UnitPicture } from './unit-picture.js';
import { continued } from './writing.js';

const IDLE = 350; // milliseconds without a key before the unit is looked into

export class Panel {
  /** `take(text)` puts a text in the place of what is before the caret. */
  constructor(folder, number, { take, ready, write, announce, scale }) {
    this.root = fromTemplate('panel');
    this.part = (name) => this.root.querySelector(`.${name}`);
    this.number = number;
    Object.assign(this, { take, ready, scale });
    this.announceSoon = afterPause(1500, () => {
      const words = this.suggestions.words.map(({ word }) => spoken(word)).join(', ');
      if (number === 0 && words) announce(`Next: ${words}`);
    });
    this.about = null;
    this.text = '';
    this.before = ''; // the caret
    this.tokens = [];
    this.strings = []; // the tokens that are read: all but an unfinished one
    this.scores = [];
    this.memory = false;
    this.current = null;
    this.largest = 0; // of the influences, in bits
    this.started = null;
    this.reading = new Reading(this.part('reading'));
    this.suggestions = new Suggestions(this.part('suggestions'), (word) => this.takeWord(word));
    this.lookSoon = afterPause(IDLE, () => this.look());
    this.part('write').addEventListener('click', () => write(this));
    this.part('temperature').addEventListener('input', () => {
      this.part('temperature-shown').textContent = this.temperature.toFixed(1);
    });
    this.showTableSoon = afterPause(200, () => this.showTable());
    this.part('all-words').addEventListener('toggle', () => this.showTable());
    this.model = new Model(folder, this);
  }

  // What the model answers.

  loaded({ about, bytes }) {
    this.about = about;
    this.part('name').textContent = about.name;
    this.root.setAttribute('aria-label', about.name);
    this.part('about').textContent = `${about.description} · ${megabytes(bytes)}`;
    this.picture = new UnitPicture(this.part('inside'), about);
    this.root.classList.add('ready');
    this.part('write').disabled = false;
    this.ready();
  }

  failed({ message }) {
    if (!this.about) this.part('name').textContent = 'Not loaded';
    this.part('about').textContent = `This model cannot run here: ${message}`;
    this.root.classList.add('broken');
    this.root.removeAttribute('aria-busy');
  }

  scored({ from, scores }) {
    scores.forEach((score, at) => {
      this.scores[from + at] = score;
    });
    this.color(from, from + scores.length);
    this.showScores();
    if (this.scores.length < this.strings.length) {
      this.part('progress').textContent = `read ${this.scores.length} of ${this.strings.length} words`;
    }
  }

  suggested({ words }) {
    this.settle(words, '');
    this.part('write').disabled = false;
    this.measure();
    this.announceSoon();
    this.lookSoon();
  }

  /** Note when the first answer was there, and the time from a key to the frame that shows its answer. */
  measure() {
    const start = this.started;
    this.started = null;
    const first = `first-${this.number}`;
    if (!performance.getEntriesByName(first).length) performance.mark(first);
    if (start !== null) requestAnimationFrame(() => performance.measure(`key-${this.number}`, { start }));
  }

  unreadable({ token }) {
    this.settle([], `This model has no sign for “${token}”, so it stops there.`);
    this.part('write').disabled = true;
  }

  /** The text was read as far as it can be. */
  settle(words, message) {
    this.suggestions.show(words);
    this.root.removeAttribute('aria-busy');
    this.part('progress').textContent = message;
    this.settled?.();
    this.settled = null;
  }

  looked({ inside }) {
    this.part('inside').hidden = false;
    this.part('current-word').textContent = shown(this.tokens[this.current].token);
    this.picture.show(inside);
    this.part('influences').classList.add('stale'); // until those of this word come
  }

  influences({ influences }) {
    this.largest = drawInfluences(this.part('influences'), this.tokens, this.current, influences);
    this.scale();
    this.part('influences').classList.remove('stale');
  }

  // What the user does.

  get temperature() {
    return Number(this.part('temperature').value);
  }

  /** Read a text; resolves when the next words are suggested. `started` is when the key was pressed. */
  update(text, caret, memory, started = null) {
    if (!this.about) return Promise.resolve();
    const name = this.about.tokenizer;
    const switched = memory !== this.memory;
    Object.assign(this, { text, memory, started, before: text.slice(0, caret) });
    this.tokens = tokenize(name, text);
    const count = this.tokens.length - (unfinished(name, text, this.tokens) ? 1 : 0);
    const known = this.before === text ? this.tokens : tokenize(name, this.before);
    const typed = unfinished(name, this.before, known);
    const strings = this.tokens.slice(0, count).map(({ token }) => token);
    const at = Math.min(known.length - (typed ? 1 : 0), strings.length);
    let have = 0;
    while (have < this.scores.length && have < strings.length && strings[have] === this.strings[have]) have++;
    this.scores.length = have;
    this.strings = strings;
    this.root.setAttribute('aria-busy', 'true');
    this.model.read(strings, { have, at, prefix: typed?.token ?? '', memory });
    this.reading.show(text, this.tokens);
    if (switched) this.color(0, this.scores.length);
    if (count < this.tokens.length) this.reading.color(count, null);
    this.showScores();
    this.settled?.(); // of the text before
    return new Promise((resolve) => {
      this.settled = resolve;
    });
  }

  /** Accept a suggested word. */
  takeWord(word) {
    this.take(continued(this.about.tokenizer, this.contextText(), word));
  }

  /** Accept suggestion `number`; false where there is none. */
  takeNumber(number) {
    const found = this.suggestions.words[number];
    if (found) this.takeWord(found.word);
    return Boolean(found);
  }

  /** The text before the caret without the word that is being typed. */
  contextText() {
    const tokens = tokenize(this.about.tokenizer, this.before);
    const typed = unfinished(this.about.tokenizer, this.before, tokens);
    return typed ? this.before.slice(0, typed.start) : this.before;
  }

  /** The whole text with a word after it that the model draws. */
  async writtenOn() {
    const finished = unfinished(this.about.tokenizer, this.text, this.tokens) ? `${this.text} ` : this.text;
    if (finished !== this.text) return finished;
    return continued(this.about.tokenizer, this.text, await this.model.draw(this.temperature, this.memory));
  }

  // What is shown.

  color(from, to) {
    for (let at = from; at < to; at++) this.reading.color(at, bits(this.logProbability(at)), this.scores[at].known);
  }

  logProbability(at) {
    return this.memory ? this.scores[at].memory : this.scores[at].model;
  }

  showScores() {
    const alone = perplexity(this.scores.map(({ model }) => model));
    const together = this.memory ? perplexity(this.scores.map(({ memory }) => memory)) : null;
    this.part('alone').textContent = roundedPerplexity(alone);
    this.part('together').textContent = roundedPerplexity(together);
    Object.assign(this.part('scores').dataset, { alone: alone ?? '', together: together ?? '' });
    this.part('words').textContent = this.scores.length.toLocaleString('en');
    this.part('unknowns').textContent = this.scores.filter(({ known }) => !known).length.toLocaleString('en');
    if (this.part('all-words').open) this.showTableSoon();
  }

  /** The score of a word in words, or null for one that is not finished. */
  describe(at) {
    const score = this.scores[at];
    if (!score) return null;
    const logProbability = this.logProbability(at);
    const surprisal = `${bits(logProbability).toFixed(1)} bits`;
    const choice = `${ordinal(this.memory ? score.memoryRank : score.rank)} choice`;
    const parts = [surprisal, percent(Math.exp(logProbability)), choice, ...(score.known ? [] : ['not in the vocabulary'])];
    return { word: shown(this.tokens[at].token), text: parts.join(' · ') };
  }

  showTable() {
    const rows = this.scores.map((score, at) =>
      element(
        'tr',
        {},
        element('td', {}, spoken(this.tokens[at].token)),
        bitsCell(score.model),
        bitsCell(score.memory),
        element('td', {}, ordinal(score.rank)),
        element('td', {}, score.known ? '' : 'unknown'),
      ),
    );
    this.part('rows').replaceChildren(...rows);
  }

  /** Look inside the unit at the last finished word before the caret. */
  look() {
    if (this.root.hasAttribute('aria-busy')) return;
    let at = this.scores.length - 1;
    while (at > 0 && this.tokens[at].start >= Math.max(1, this.before.length)) at--;
    if (at < 0) {
      this.part('inside').hidden = true;
      this.reading.mark(-1);
      return;
    }
    this.current = at;
    this.reading.mark(at);
    const found = this.describe(at);
    this.part('current-score').textContent = found.text;
    this.model.look(at);
  }
}

/** A cell with a surprisal in bits, and all of its digits for other programs. */
function bitsCell(logProbability) {
  const value = bits(logProbability);
  return element('td', { 'data-value': value }, value.toFixed(2));
}
