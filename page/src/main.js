// The page: models beside each other, which read the same text.

import { fromTemplate } from './dom.js';
import { Editor } from './editor.js';
import { Panel } from './panel.js';

const WRITTEN = 60; // words that "write on" adds at most

const part = (id) => document.getElementById(id);
const panels = [];
let editor = null;
let writing = null; // the panel that writes on
let last = null; // what was read last: text, caret and whether with memory

async function start() {
  const { models } = await (await fetch('models.json')).json();
  part('starting').remove();
  for (const [number, folder] of models.entries()) {
    const take = (text) => editor.replaceBefore(text);
    const panel = new Panel(folder, number, { take, ready, write, announce, scale });
    panels.push(panel);
    part('panels').append(panel.root);
  }
  part('panels').dataset.count = panels.length;
  const field = fromTemplate('field');
  panels[0].root.querySelector('.paper').append(field);
  editor = new Editor(field, {
    changed: (started) => update(started),
    moved: () => update(),
    taken: (number) => panels[0].takeNumber(number),
  });
  part('memory').addEventListener('change', () => update());
  part('clear').addEventListener('click', () => editor.clear());
  for (const panel of panels) followPointer(panel);
  scrollTogether();
}

function ready() {
  if (panels.filter(({ about }) => about).length === panels.length) compare();
  if (editor.field.disabled) {
    editor.field.disabled = false;
    editor.field.focus({ preventScroll: true });
  }
  last = null;
  update();
}

/** Say so where the perplexities of two models do not compare. */
function compare() {
  const digests = new Set(panels.map(({ about }) => about.vocabulary));
  part('different').hidden = digests.size < 2;
}

/** Draw the bars of all models to one scale. */
function scale() {
  part('panels').style.setProperty('--scale', Math.max(1, ...panels.map(({ largest }) => largest)));
}

function update(started = null) {
  const [text, caret, memory] = [editor.text, editor.caret, part('memory').checked];
  const same = last && text === last.text && caret === last.caret && memory === last.memory;
  if (same) return null;
  last = { text, caret, memory };
  return Promise.all(panels.map((panel) => panel.update(text, caret, memory, started)));
}

/** Let a model write on, until it is stopped, the text is changed, or it has written enough. */
async function write(panel) {
  const button = panel.part('write');
  if (writing) {
    writing = null;
    return;
  }
  writing = panel;
  button.textContent = 'Stop';
  let { text } = editor;
  const goesOn = () => writing === panel && editor.text === text;
  for (let count = 0; count < WRITTEN && goesOn(); count++) {
    const longer = await panel.writtenOn();
    if (!goesOn()) break;
    text = longer;
    await editor.replaceAll(text);
    await new Promise((resolve) => setTimeout(resolve, 30));
  }
  writing = null;
  button.textContent = 'Write on for me';
  announce('Finished writing.');
}

/** Show the numbers of the word under the pointer, or of one that was tapped. */
function followPointer(panel) {
  const paper = panel.part('paper');
  const bubble = part('bubble');
  const show = ({ clientX, clientY }) => {
    const at = panel.reading.at(clientX, clientY);
    const found = at === null ? null : panel.describe(at);
    bubble.hidden = !found;
    if (!found) return;
    bubble.querySelector('.bubble-word').textContent = found.word;
    bubble.querySelector('.bubble-text').textContent = found.text;
    const place = panel.reading.words[at].span.getBoundingClientRect();
    const half = bubble.offsetWidth / 2;
    const middle = Math.max(half + 8, Math.min(innerWidth - half - 8, place.left + place.width / 2));
    bubble.style.left = `${middle + scrollX}px`;
    bubble.style.top = `${place.top + scrollY}px`;
  };
  paper.addEventListener('pointermove', show);
  paper.addEventListener('click', show);
  paper.addEventListener('pointerleave', ({ pointerType }) => {
    if (pointerType === 'mouse') bubble.hidden = true;
  });
  const hide = () => {
    bubble.hidden = true;
  };
  document.addEventListener('keydown', hide);
  document.addEventListener('pointerdown', hide);
  paper.addEventListener('scroll', hide);
}

/** Scroll the texts of all models together. */
function scrollTogether() {
  const papers = panels.map((panel) => panel.part('paper'));
  for (const paper of papers) {
    paper.addEventListener('scroll', () => {
      for (const other of papers) if (other !== paper) other.scrollTop = paper.scrollTop;
    });
  }
}

/** Tell a screen reader. */
function announce(text) {
  part('announcement').textContent = text;
}

start();
