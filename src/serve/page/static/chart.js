// Small line charts in SVG. Lines differ by their dashes and are named beside the chart, colours
// are on top; what a chart shows stands under it as text, too.
import {el, say} from './dom.js';

const margin = {left: 58, right: 12, top: 10, bottom: 30};
const height = 170;
const namespace = 'http://www.w3.org/2000/svg';

function svg(tag, attributes = {}, text = '') {
  const node = document.createElementNS(namespace, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  return node;
}

/** A round number not below x: 1, 2 or 5 times a power of ten. */
export function roundUp(x) {
  const power = 10 ** Math.floor(Math.log10(Math.max(x, 1e-9)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= x * 0.999999);
}

export class Chart {
  /** `names` of the lines; `axis`: what stands under the x axis; the others write numbers. */
  constructor(parent, {title, names, axis, writeX, writeY}) {
    Object.assign(this, {axis, writeX, writeY});
    this.image = svg('svg', {role: 'img', height});
    this.summary = el('p', {className: 'summary'});
    const legend = el('ul', {className: 'legend', 'aria-hidden': 'true'}, ...names.map((name, i) => {
      const sample = svg('svg', {width: 34, height: 10});
      sample.append(svg('line', {x1: 1, x2: 33, y1: 5, y2: 5, class: `line line-${i}`}));
      return el('li', {}, sample, name);
    }));
    this.title = title;
    this.figure = el('figure', {'aria-label': title}, el('figcaption', {}, title), legend, this.image, this.summary);
    parent.append(this.figure);
  }

  /** `lines`: of points [x, y], ascending in x; `marks`: points alone; `summary`: it all in words. */
  draw({lines, marks = [], xRange, yMax, summary}) {
    const width = Math.max(this.figure.clientWidth, 240);
    const [x0, x1] = xRange;
    const top = roundUp(Math.max(yMax, 1e-9));
    const right = width - margin.right;
    const bottom = height - margin.bottom;
    const atX = (x) => margin.left + (x - x0) / (x1 - x0 || 1) * (right - margin.left);
    const atY = (y) => bottom - Math.min(y / top, 1) * (bottom - margin.top);
    const nodes = [];
    for (const part of [0, 0.5, 1]) {
      const y = atY(part * top);
      nodes.push(svg('line', {x1: margin.left, x2: right, y1: y, y2: y, class: 'grid'}),
                 svg('text', {x: margin.left - 6, y: y + 4, class: 'end'}, this.writeY(part * top)));
    }
    nodes.push(svg('text', {x: margin.left, y: height - 12}, this.writeX(x0)),
               svg('text', {x: right, y: height - 12, class: 'end'}, this.writeX(x1)),
               svg('text', {x: (margin.left + right) / 2, y: height - 12, class: 'middle'}, this.axis));
    lines.forEach((line, i) => {
      if (line.length === 0) return;
      const points = line.map(([x, y]) => `${atX(x).toFixed(1)},${atY(y).toFixed(1)}`).join(' ');
      nodes.push(svg('polyline', {points, class: `line line-${i}`}));
    });
    for (const [x, y] of marks) nodes.push(svg('circle', {cx: atX(x), cy: atY(y), r: 4, class: 'mark'}));
    this.image.setAttribute('width', width);
    this.image.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.image.setAttribute('aria-label', `${this.title}. ${summary}`);
    this.image.replaceChildren(...nodes);
    say(this.summary, summary);
  }
}
