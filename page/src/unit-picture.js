// A picture of the unit while it reads a word: a column for each unit, with what it reads and how far its gates
// are open.

import { element } from './dom.js';
import { percent } from './numbers.js';

const GATES = [
  { row: 0, name: 'Input gate', meaning: 'lets new content in' },
  { row: 1, name: 'Forget gate', meaning: 'keeps old content' },
  { row: 3, name: 'Output gate', meaning: 'lets content out' },
];

const POOLED = { average: 'averages of', max: 'maxima of', skip: 'every second of', convolution: 'learned sums of' };

export class UnitPicture {
  constructor(root, about) {
    this.about = about;
    this.layers = null;
    this.select = root.querySelector('.layer');
    this.table = root.querySelector('.unit');
    about.layers.forEach((layer, number) => {
      this.select.append(element('option', { value: number }, `layer ${number + 1}: ${layer.units} units`));
    });
    this.select.parentElement.hidden = about.layers.length === 1;
    this.select.addEventListener('change', () => this.draw());
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.draw());
  }

  /** Show what every layer did with a word. */
  show(layers) {
    this.layers = layers;
    this.draw();
  }

  draw() {
    if (!this.layers) return;
    const number = Number(this.select.value);
    const structure = this.about.layers[number];
    const { levels, before, gates, after } = this.layers[number];
    this.table.replaceChildren(
      wordRows(levels, structure, number),
      element(
        'tbody',
        {},
        groupHead(structure),
        stateRow('Context', 'the output before, read in groups', before, structure),
        ...GATES.map((gate) => gateRow(gate, gates, structure)),
        stateRow('Output', 'for the next layer and word', after, structure),
      ),
    );
  }
}

/** The word at every level of the pyramid, and which units read which level. */
function wordRows(levels, structure, number) {
  const origin = number ? 'Output of the layer before' : 'The word';
  const meaning = levels.length > 1 ? 'in full, and coarser' : 'as it comes in';
  const colorOf = diverging(largest(levels[0]));
  const body = element('tbody', {});
  levels.forEach((values, level) => {
    const row = element('tr', {});
    if (level === 0) row.append(rowHead(origin, meaning, levels.length));
    row.append(levelCell(values, level, structure, colorOf));
    body.append(row);
  });
  if (levels.length > 1) body.append(readersRow(structure));
  return body;
}

function levelCell(values, level, { pooling, group_sizes: groups }, colorOf) {
  const strip = drawnStrip(values, colorOf, { 'aria-hidden': 'true' });
  strip.style.setProperty('--width', `${100 / 2 ** level}%`);
  const size = `${values.length} features${level ? `, ${POOLED[pooling]} level ${level}` : ''}`;
  const label = element('span', { class: `label level-${level % 4}` }, `level ${level + 1}`);
  return element('td', { class: 'level', colspan: groups.length }, strip, label, element('small', {}, ` ${size}`));
}

function readersRow({ units, level_sizes: sizes, group_sizes: groups }) {
  const line = element('div', { class: 'readers' });
  sizes.forEach((size, level) => {
    const title = `${size} units read level ${level + 1}`;
    const part = element('span', { class: `level-${level % 4}`, title }, `level ${level + 1}`);
    part.style.setProperty('--share', `${(100 * size) / units}%`);
    line.append(part);
  });
  return element('tr', {}, rowHead(`${units} units`, 'each reads one level'), element('td', { colspan: groups.length }, line));
}

function groupHead({ group_sizes: groups }) {
  const names = groups.length === 1 ? ['all units'] : groups.map((_, group) => `group ${group + 1}`);
  return element('tr', {}, element('td', {}), ...names.map((name) => element('th', { scope: 'col' }, name)));
}

/** First unit of every group, and the one after its last. */
function groupBounds({ group_sizes: sizes }) {
  let end = 0;
  return sizes.map((size) => [end, (end += size)]);
}

/** What the units hold: each group reads only its own part of the context. */
function stateRow(name, meaning, values, structure) {
  const colorOf = diverging(largest(values));
  const row = element('tr', { class: 'state' }, rowHead(name, meaning));
  groupBounds(structure).forEach(([start, end], group) => {
    const label = `${name.toLowerCase()}, group ${group + 1}`;
    const strip = drawnStrip(values.subarray(start, end), colorOf, { role: 'img', 'aria-label': label });
    row.append(element('td', {}, strip));
  });
  return row;
}

/** One gate: its mean in each group as a number, and every unit as a column. */
function gateRow({ row: number, name, meaning }, gates, structure) {
  const row = element('tr', {}, rowHead(name, meaning));
  const all = gates.subarray(number * structure.units, (number + 1) * structure.units);
  const colorOf = sequential();
  for (const [start, end] of groupBounds(structure)) {
    const values = all.subarray(start, end);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const strip = drawnStrip(values, colorOf, { 'aria-hidden': 'true' });
    row.append(element('td', {}, strip, element('span', { class: 'open' }, percent(mean))));
  }
  return row;
}

function rowHead(name, meaning, rows = 1) {
  return element('th', { scope: rows > 1 ? 'rowgroup' : 'row', rowspan: rows }, name, element('small', {}, meaning));
}

/** A canvas with one pixel for each value; the style sheet stretches them. */
function drawnStrip(values, colorOf, attributes) {
  const canvas = element('canvas', { width: values.length, height: 1, ...attributes });
  canvas.classList.toggle('many', values.length > 256);
  const context = canvas.getContext('2d');
  const image = context.createImageData(values.length, 1);
  values.forEach((value, at) => image.data.set([...colorOf(value), 255], 4 * at));
  context.putImageData(image, 0, 0);
  return canvas;
}

/** For the colors: the largest value without its sign. */
function largest(values) {
  return Math.max(...Array.from(values, Math.abs));
}

function diverging(limit) {
  const [low, middle, high] = colors('--low', '--middle', '--high');
  return (value) => {
    const share = Math.max(-1, Math.min(1, value / (limit || 1)));
    return blend(middle, share < 0 ? low : high, Math.abs(share));
  };
}

function sequential() {
  const [closed, open] = colors('--closed', '--open-gate');
  return (value) => blend(closed, open, value);
}

function blend(from, to, share) {
  return from.map((value, at) => Math.round(value + share * (to[at] - value)));
}

/** Colors of the style sheet, `#rrggbb`, as numbers. */
function colors(...names) {
  const style = getComputedStyle(document.documentElement);
  return names.map((name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
}
