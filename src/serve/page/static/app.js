// Starts the page: asks what the server's model is, and shows what can be done with it.
import {call, key, onKeyWanted} from './api.js';
import {$, counted, say, showError} from './dom.js';
import {startPictures} from './digits.js';
import {startLive} from './live.js';
import {startSessions} from './sessions.js';
import {startWriting} from './write.js';

const kinds = {image: 'image', bytes: 'text', tokens: 'text'};  // by the model's modality
const inputs = {image: 'pixels', bytes: 'bytes of text', tokens: 'token numbers', frames: 'frames of speech'};
const survives = {
  memory: 'saved turns last as long as the store\'s process',
  process: 'saved turns outlive this program, also when it is killed',
  power: 'saved turns outlive a loss of power',
};

function show(model) {
  const facts = model.tarn;
  const kind = kinds[facts.modality];
  for (const node of document.querySelectorAll('[data-for]')) node.hidden = node.dataset.for !== kind;
  $('#settings').hidden = kind === undefined;
  document.title = `${model.id} – Tarn`;
  const stored = survives[facts.durability] ?? facts.durability;
  say($('#model-line'), `${model.id}: ${counted(facts.parameters, 'parameter', 'parameters')}, over ${
      inputs[facts.modality] ?? facts.modality}; ${stored}.`);
  say($('#state-kind'), facts.bounded_state ? 'A session\'s memory is a state of fixed size.'
      : 'A session\'s memory grows with every token of this model.');
  if (kind === 'image') startPictures(facts.image);
  if (kind === 'text') startWriting(facts.modality === 'tokens');
  if (kind === undefined) showError($('#page-error'), new Error('This model draws nothing; its sessions and the server\'s figures are below.'));
  startSessions();
  startLive(facts, (error, metrics) => {
    const ready = error === null && metrics.tarn_ready === 1;
    say($('#server-line'), error ? error.message : ready ? 'The server is ready.' : 'The server takes no turns now.');
  });
}

let started = false;

async function start() {
  if (started) return;
  showError($('#page-error'), null);
  try {
    const {data} = await call('GET', '/v1/models');
    if (started) return;
    started = true;
    $('#access').hidden = key.get() === null;
    show(data[0]);
  } catch (error) {
    showError(error.status === 401 ? $('#access') : $('#page-error'), error);
    say($('#model-line'), '');
  }
}

onKeyWanted(() => {
  $('#access').hidden = false;
});
$('#key-form').addEventListener('submit', (event) => {
  event.preventDefault();
  key.set($('#key').value.trim());
  $('#key').value = '';
  showError($('#access'), null);
  start();
});
$('#forget-key').addEventListener('click', () => {
  key.forget();
  location.reload();
});
start();
