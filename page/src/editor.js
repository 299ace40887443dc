// The text field.

export class Editor {
  constructor(field, { changed, moved, taken }) {
    this.field = field;
    this.changed = (started) => {
      const done = changed(started);
      this.showEnd();
      return done;
    };
    this.leaving = false; // whether the next Tab leaves the field
    let pressed = null; // when the key was pressed that changes the text
    field.addEventListener('input', (event) => {
      this.changed(pressed ?? event.timeStamp);
      pressed = null;
    });
    document.addEventListener('selectionchange', () => {
      if (document.activeElement === field) moved();
    });
    field.addEventListener('keydown', (event) => {
      pressed = event.timeStamp;
      const number = event.altKey && /^Digit[1-5]$/.test(event.code) ? Number(event.code.at(-1)) - 1 : null;
      const plain = !event.shiftKey && !event.ctrlKey && !event.metaKey && !event.altKey;
      const first = event.key === 'Tab' && plain && !this.leaving ? 0 : number;
      if (event.key === 'Escape') this.leaving = true;
      else if (event.key !== 'Tab') this.leaving = false;
      if (first !== null && !event.isComposing && taken(first)) event.preventDefault();
    });
    field.addEventListener('blur', () => {
      this.leaving = false;
    });
  }

  get text() {
    return this.field.value;
  }

  /** Where the next character goes. */
  get caret() {
    return this.field.selectionEnd;
  }

  /** Put `text` in the place of everything before the caret. */
  replaceBefore(text) {
    const before = this.text.slice(0, this.caret);
    let same = 0;
    while (same < before.length && same < text.length && before[same] === text[same]) same++;
    this.replace(same, before.length, text.slice(same));
  }

  clear() {
    this.replace(0, this.text.length, '');
  }

  /** Replace a part of the text as if by typing. The browser's undo takes it back. */
  replace(start, end, text) {
    this.field.focus({ preventScroll: true });
    this.field.setSelectionRange(start, end);
    if (start === end && !text) return;
    if (document.execCommand(text ? 'insertText' : 'delete', false, text)) return;
    this.field.setRangeText(text, start, end, 'end');
    this.changed();
  }

  /** Replace the whole text, without taking the focus; resolves when it is read. */
  replaceAll(text) {
    this.field.value = text;
    this.field.setSelectionRange(text.length, text.length);
    return this.changed();
  }

  /** Keep the end of the text in sight while it grows: the browser looked for it before the field was higher. */
  showEnd() {
    const paper = this.field.parentElement;
    if (this.caret === this.text.length) paper.scrollTop = paper.scrollHeight;
  }
}
