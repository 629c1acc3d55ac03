// The drawing area: the upper rows of a picture, drawn with a pointer or with keys.
import {$, announce, say} from './dom.js';

const scale = 10;  // canvas pixels for one of the picture's
const radius = 1.25;  // of the pen, in the picture's pixels
// Strokes that begin a digit, as points between 0 and 1 in both directions.
const strokes = {
  zero: [[0.40, 0.50], [0.36, 0.38], [0.42, 0.26], [0.52, 0.22], [0.61, 0.27], [0.65, 0.38], [0.63, 0.50]],
  three: [[0.36, 0.28], [0.45, 0.22], [0.56, 0.23], [0.61, 0.30], [0.57, 0.39], [0.47, 0.46]],
  seven: [[0.32, 0.28], [0.45, 0.27], [0.66, 0.26], [0.61, 0.38], [0.56, 0.50]],
};
const moves = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]};

export class Pad {
  constructor(shape) {
    this.shape = shape;
    this.ink = new Float32Array(shape.width * shape.height);
    this.rows = Math.round(shape.height / 2);
    this.cursor = [Math.round(shape.width / 2), Math.round(shape.height / 4)];
    this.canvas = $('#pad-canvas');
    this.canvas.width = shape.width * scale;
    this.canvas.height = shape.height * scale;
    this.context = this.canvas.getContext('2d');
    this.listenToPointer();
    this.listenToKeys();
    this.listenToForm();
    this.paint();
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.paint());
  }

  /** The given rows' values, all channels. */
  given() {
    const {width, channels} = this.shape;
    const values = new Uint8Array(this.rows * width * channels);
    for (let i = 0; i < values.length; ++i) values[i] = Math.round(255 * this.ink[Math.floor(i / channels)]);
    return values;
  }

  clear() {
    this.ink.fill(0);
    this.paint();
  }

  /** Inks a straight stroke between two points in the picture's pixels. */
  stroke([x0, y0], [x1, y1]) {
    const steps = Math.max(1, Math.ceil(2 * Math.hypot(x1 - x0, y1 - y0)));
    for (let i = 0; i <= steps; ++i) this.dot(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps);
    this.paint();
  }

  dot(x, y) {
    const {width} = this.shape;
    const reach = Math.ceil(radius);
    for (let row = Math.max(0, Math.floor(y) - reach); row <= Math.min(this.rows - 1, y + reach); ++row) {
      for (let column = Math.max(0, Math.floor(x) - reach); column <= Math.min(width - 1, x + reach); ++column) {
        const far = Math.hypot(column + 0.5 - x, row + 0.5 - y);
        const ink = Math.min(1, Math.max(0, radius + 0.5 - far));
        const at = row * width + column;
        this.ink[at] = Math.max(this.ink[at], ink);
      }
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * this.shape.width,
            (event.clientY - box.top) / box.height * this.shape.height];
  }

  listenToPointer() {
    let last = null;
    this.canvas.addEventListener('pointerdown', (event) => {
      this.canvas.setPointerCapture(event.pointerId);
      last = this.point(event);
      this.stroke(last, last);
    });
    this.canvas.addEventListener('pointermove', (event) => {
      if (!last) return;
      const next = this.point(event);
      this.stroke(last, next);
      last = next;
    });
    for (const end of ['pointerup', 'pointercancel']) this.canvas.addEventListener(end, () => { last = null; });
  }

  listenToKeys() {
    this.canvas.addEventListener('keydown', (event) => {
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const move = moves[event.key];
      if (move) this.move(move, event.shiftKey);
      else if (event.key === ' ') this.toggle();
      else if (event.key === 'Delete' || event.key === 'Backspace') this.clearAloud();
      else return;
      event.preventDefault();
    });
    for (const change of ['focus', 'blur']) this.canvas.addEventListener(change, () => this.paint());
  }

  move([dx, dy], draws) {
    const [x, y] = this.cursor;
    this.cursor = [Math.min(Math.max(x + dx, 0), this.shape.width - 1), Math.min(Math.max(y + dy, 0), this.rows - 1)];
    const middle = ([a, b]) => [a + 0.5, b + 0.5];
    if (draws) this.stroke(middle([x, y]), middle(this.cursor));
    this.paint();
    announce(`column ${this.cursor[0] + 1}, row ${this.cursor[1] + 1}${this.inked() ? ', ink' : ''}`);
  }

  inked() { return this.ink[this.cursor[1] * this.shape.width + this.cursor[0]] >= 0.5; }

  toggle() {
    const [x, y] = this.cursor;
    if (this.inked()) {
      this.ink[y * this.shape.width + x] = 0;
      this.paint();
    } else {
      this.stroke([x + 0.5, y + 0.5], [x + 0.5, y + 0.5]);
    }
    announce(this.inked() ? 'ink' : 'no ink');
  }

  clearAloud() {
    this.clear();
    announce('The drawing area is empty.');
  }

  listenToForm() {
    const range = $('#pad-rows');
    const output = $('#pad-rows-value');
    range.max = this.shape.height - 1;
    range.value = this.rows;
    say(output, `${this.rows} of ${this.shape.height}`);
    range.addEventListener('input', () => {
      this.rows = Number(range.value);
      this.cursor[1] = Math.min(this.cursor[1], this.rows - 1);
      say(output, `${this.rows} of ${this.shape.height}`);
      this.paint();
    });
    $('#pad-clear').addEventListener('click', () => this.clearAloud());
    for (const button of document.querySelectorAll('#pad-form [data-stroke]')) {
      button.addEventListener('click', () => {
        this.clear();
        const {width, height} = this.shape;
        const points = strokes[button.dataset.stroke].map(([x, y]) => [x * width, y * height]);
        for (let i = 1; i < points.length; ++i) this.stroke(points[i - 1], points[i]);
        announce(`${button.textContent} is drawn.`);
      });
    }
  }

  paint() {
    const {width, height} = this.shape;
    const {context} = this;
    const style = getComputedStyle(this.canvas);
    for (let row = 0; row < height; ++row) {
      for (let x = 0; x < width; ++x) {
        const level = row < this.rows ? Math.round(255 * this.ink[row * width + x]) : 0;
        context.fillStyle = `rgb(${level} ${level} ${level})`;
        context.fillRect(x * scale, row * scale, scale, scale);
      }
    }
    // What the model draws is hatched, so that the line is no matter of colour.
    context.save();
    context.beginPath();
    context.rect(0, this.rows * scale, width * scale, (height - this.rows) * scale);
    context.clip();
    context.strokeStyle = style.getPropertyValue('--hatch');
    context.lineWidth = 2;
    for (let x = -height * scale; x < width * scale; x += 12) {
      context.beginPath();
      context.moveTo(x, height * scale);
      context.lineTo(x + height * scale, 0);
      context.stroke();
    }
    context.restore();
    context.fillStyle = style.getPropertyValue('--mark');
    context.fillRect(0, this.rows * scale - 2, width * scale, 3);
    if (document.activeElement === this.canvas) {
      context.strokeStyle = style.getPropertyValue('--mark');
      context.lineWidth = 3;
      context.strokeRect(this.cursor[0] * scale, this.cursor[1] * scale, scale, scale);
    }
  }
}
