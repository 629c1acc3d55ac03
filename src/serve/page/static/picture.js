// A picture that appears pixel by pixel in the order in which the model draws it.
import {calm, counted, el, say} from './dom.js';

export class Picture {
  /** `shape`: {width, height, channels}; `name`: what its caption begins with. */
  constructor(shape, name) {
    this.shape = shape;
    this.name = name;
    this.pixels = new Uint8Array(shape.width * shape.height * shape.channels);
    this.unknown = 0;  // rows at the top that this page has not seen
    this.given = 0;    // pixels that the model was given
    this.known = 0;    // pixels that have arrived
    this.shown = 0;
    this.pace = 0;     // pixels a second; 0: as they arrive
    this.canvas = el('canvas', {width: shape.width, height: shape.height, role: 'img'});
    this.caption = el('span', {className: 'caption'});
    this.item = el('li', {}, this.canvas, this.caption);
    this.context = this.canvas.getContext('2d');
    this.row = this.context.createImageData(shape.width, 1);
    this.describe();
  }

  /** A row of the picture from its left edge, values of all channels. */
  put(row, values) {
    const {width, channels} = this.shape;
    this.pixels.set(values, row * width * channels);
    this.known = Math.max(this.known, row * width + values.length / channels);
    this.play();
  }

  /** Shows everything there is now. */
  jump() {
    this.paint(this.known);
    this.describe();
  }

  play() {
    if (this.pace === 0 || calm()) return this.jump();
    if (this.frame) return;
    let last = performance.now();
    let due = this.shown;
    const step = (now) => {
      due = Math.min(due + (now - last) * this.pace / 1000, this.known);
      last = now;
      this.paint(Math.floor(due));
      this.describe();
      this.frame = this.shown < this.known && this.canvas.isConnected ? requestAnimationFrame(step) : 0;
    };
    this.frame = requestAnimationFrame(step);
  }

  paint(end) {
    const {width} = this.shape;
    for (let row = Math.floor(this.shown / width); row * width < end; ++row) {
      if (row >= this.unknown) this.paintRow(row, Math.min(end - row * width, width));
    }
    this.shown = Math.max(this.shown, end);
  }

  paintRow(row, length) {
    const {width, channels} = this.shape;
    for (let x = 0; x < length; ++x) {
      const at = (row * width + x) * channels;
      for (let c = 0; c < 3; ++c) this.row.data[4 * x + c] = this.pixels[at + (channels === 3 ? c : 0)];
      this.row.data[4 * x + 3] = 255;
    }
    this.context.putImageData(this.row, 0, row, 0, 0, length, 1);
  }

  describe() {
    const {width, height} = this.shape;
    const rows = Math.floor(this.shown / width);
    const words = [rows === height ? 'all rows' : `${rows} of ${counted(height, 'row', 'rows')}`];
    if (this.given > 0) words.push(`${this.given / width} given`);
    if (this.unknown > 0) words.push(`the first ${this.unknown} not seen by this page`);
    const text = `${this.name}: ${words.join(', ')}`;
    say(this.caption, text);
    if (this.label !== text) this.canvas.setAttribute('aria-label', this.label = text);
  }
}

/** The bytes of base64 text. */
export const decode = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
export const encode = (values) => btoa(String.fromCharCode(...values));
