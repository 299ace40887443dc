// A picture of the unit while it reads a word: the pyramid's levels, and how far its gates are open.

import { element } from './dom.js';
import { percent } from './numbers.js';

const GATES = [
  { row: 0, name: 'input', meaning: 'lets new content in' },
  { row: 1, name: 'forget', meaning: 'keeps what was there' },
  { row: 3, name: 'output', meaning: 'shows it to the next layer' },
];

const POOLED = { average: 'averages of', max: 'maxima of', skip: 'every second of', convolution: 'learned sums of' };

export class UnitPicture {
  constructor(root, about) {
    this.about = about;
    this.layers = null;
    this.select = root.querySelector('.layer');
    this.pyramid = root.querySelector('.pyramid');
    this.caption = root.querySelector('.pyramid-caption');
    this.gates = root.querySelector('.gates');
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
    const about = this.about.layers[number];
    const layer = this.layers[number];
    this.caption.textContent =
      layer.levels.length > 1
        ? 'The pyramid: the features that come in, and coarser views of them'
        : 'The features that come in; this layer has no pyramid';
    this.pyramid.replaceChildren(...layer.levels.map((values, level) => this.level(values, level, about)));
    this.gates.replaceChildren(gateHead(about.groups), ...GATES.map((gate) => gateRow(gate, layer.gates, about)));
  }

  level(values, level, { pooling }) {
    const canvas = element('canvas', { role: 'img', 'aria-label': `level ${level + 1}: ${values.length} features` });
    strip(canvas, values, diverging(this.largest()));
    canvas.style.setProperty('--width', `${100 / 2 ** level}%`);
    const origin = level ? `${POOLED[pooling]} level ${level}` : 'the input';
    const size = element('small', {}, ` ${values.length} features, ${origin}`);
    return element('div', { class: 'level' }, canvas, element('span', { class: 'label' }, `level ${level + 1}`, size));
  }

  /** The largest feature that comes in, for the colours of all levels. */
  largest() {
    return Math.max(...Array.from(this.layers[this.select.value].levels[0], Math.abs));
  }
}

function gateHead(groups) {
  const row = element('tr', {}, element('th', { scope: 'col' }, 'gate'));
  for (let group = 1; group <= groups; group++) {
    row.append(element('th', { scope: 'col' }, groups === 1 ? 'all units' : `group ${group}`));
  }
  return element('thead', {}, row);
}

function gateRow({ row, name, meaning }, gates, { units, groups }) {
  const head = element('th', { scope: 'row' }, name, element('small', {}, meaning));
  const line = element('tr', {}, head);
  for (let group = 0; group < groups; group++) {
    const start = row * units + Math.floor((group * units) / groups);
    const end = row * units + Math.floor(((group + 1) * units) / groups);
    const values = gates.subarray(start, end);
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    const bar = element('span', { class: 'bar' });
    bar.style.setProperty('--open', `${100 * mean}%`);
    const canvas = element('canvas', { 'aria-hidden': 'true' });
    strip(canvas, [...values].sort((a, b) => b - a), sequential());
    line.append(element('td', {}, element('span', { class: 'open' }, percent(mean)), bar, canvas));
  }
  return element('tbody', {}, line);
}

/** One pixel for each value; the style sheet stretches them. */
function strip(canvas, values, colourOf) {
  canvas.width = values.length;
  canvas.height = 1;
  const context = canvas.getContext('2d');
  const image = context.createImageData(values.length, 1);
  values.forEach((value, at) => image.data.set([...colourOf(value), 255], 4 * at));
  context.putImageData(image, 0, 0);
}

function diverging(largest) {
  const [low, middle, high] = colours('--low', '--middle', '--high');
  return (value) => {
    const share = Math.max(-1, Math.min(1, value / (largest || 1)));
    return blend(middle, share < 0 ? low : high, Math.abs(share));
  };
}

function sequential() {
  const [closed, open] = colours('--closed', '--open-gate');
  return (value) => blend(closed, open, value);
}

function blend(from, to, share) {
  return from.map((value, at) => Math.round(value + share * (to[at] - value)));
}

/** Colours of the style sheet, `#rrggbb`, as numbers. */
function colours(...names) {
  const style = getComputedStyle(document.documentElement);
  return names.map((name) => {
    const hex = style.getPropertyValue(name).trim().slice(1);
    return [0, 2, 4].map((at) => parseInt(hex.slice(at, at + 2), 16));
  });
}
