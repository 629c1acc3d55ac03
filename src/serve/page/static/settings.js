// The settings that all turns share: the session and how tokens are drawn.
import {$} from './dom.js';

function numberOf(id) {
  const input = $(`#${id}`);
  if (!input.checkValidity()) {
    input.reportValidity();
    throw new Error(`${input.labels[0].firstChild.textContent.trim()}: ${input.validationMessage}`);
  }
  return input.value === '' ? undefined : Number(input.value);
}

/** The members of a request that say how tokens are drawn. */
export function sampler() {
  const fields = {};
  for (const id of ['temperature', 'top_p', 'top_k', 'seed']) {
    const value = numberOf(id);
    if (value !== undefined) fields[id] = value;
  }
  return fields;
}

/** The same for text: also where it ends. */
export function textSettings() {
  const stop = $('#stop').value.split('\n').filter((line) => line !== '');
  return {...sampler(), max_tokens: numberOf('max_tokens') ?? 200, ...(stop.length ? {stop} : {})};
}
