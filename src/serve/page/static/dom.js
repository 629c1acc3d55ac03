// Elements, words for numbers, and what is said to the people at the page. Text only ever becomes
// text nodes: nothing that came from a model or a server is read as HTML.

export const $ = (selector, root = document) => root.querySelector(selector);

/** A new element. What the element has no property for becomes an attribute. */
export function el(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Sets a node's text, and leaves it alone when it says that already. */
export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

const numbers = new Intl.NumberFormat('en', {maximumFractionDigits: 0});
const fewDigits = new Intl.NumberFormat('en', {maximumSignificantDigits: 3});

export const count = (n) => numbers.format(n);
export const amount = (x) => (Math.abs(x) < 1000 ? fewDigits : numbers).format(x);
export const counted = (n, one, many) => `${count(n)} ${n === 1 ? one : many}`;

export function bytes(n) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let unit = 0;
  while (n >= 1000 && unit < units.length - 1) {
    n /= 1000;
    ++unit;
  }
  return `${fewDigits.format(n)} ${units[unit]}`;
}

/** A moment, in seconds since 1970: the time, with its day if that is not today. */
export function moment(seconds) {
  if (seconds === null) return 'unknown';
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString('en-GB') : date.toLocaleString('en-GB');
}

/** Tells a screen reader; nothing is to be seen. */
export function announce(text) {
  const node = $('#announcer');
  node.textContent = '';
  setTimeout(() => { node.textContent = text; }, 50);
}

/** Shows an error where it belongs, or takes the last one away. */
export function showError(root, error) {
  const node = root.matches('.error') ? root : $('.error', root);
  say(node, error ? error.message : '');
}

export const calm = () => matchMedia('(prefers-reduced-motion: reduce)').matches;

/** A form whose button starts something that its other button can stop. */
export class Runner {
  constructor(form, section, run) {
    this.stopButton = $('.stop', form);
    this.startButton = $('.main', form);
    this.section = section;
    this.controller = null;
    form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.start(run);
    });
    this.stopButton.addEventListener('click', () => this.controller?.abort());
  }

  get running() { return this.controller !== null; }

  async start(run) {
    if (this.running) return;
    const controller = this.controller = new AbortController();
    showError(this.section, null);
    this.stopButton.disabled = false;
    this.startButton.setAttribute('aria-disabled', 'true');
    try {
      await run(controller.signal);
    } catch (error) {
      if (!controller.signal.aborted) showError(this.section, error);
    } finally {
      this.controller = null;
      // A button that goes dead under the keyboard would take the focus with it.
      if (document.activeElement === this.stopButton) this.startButton.focus();
      this.stopButton.disabled = true;
      this.startButton.removeAttribute('aria-disabled');
    }
  }
}
