// Completing texts and chatting, token by token, with or without a session.
import {stream} from './api.js';
import {contents} from './contents.js';
import {$, Runner, amount, announce, count, counted, el, say} from './dom.js';
import {sessions} from './sessions.js';
import {textSettings} from './settings.js';

const section = $('#write');
const transcript = $('#transcript');
const prompt = $('#prompt');
const longestSpoken = 400;  // characters of an answer that are read out

// What stands in the transcript: pieces {who: 'you' | 'model', text}, and {unseen: tokens} for what
// this page has not seen. Without a session there is one transcript for each mode.
const loose = {complete: [], chat: []};
let running = null;  // the pieces of the turn that runs

const mode = () => $('#write-form').elements.mode.value;

function pieces() {
  if (running) return running;
  const session = sessions.chosen;
  if (!session) return loose[mode()];
  return contents.of(session) ?? (session.token_count > 0 ? [{unseen: session.token_count}] : []);
}

function render() {
  const chat = mode() === 'chat';
  const session = sessions.chosen;
  const nodes = pieces().map(({who, text, unseen}) => {
    if (unseen) {
      return el('p', {className: 'note'}, `This session held ${counted(unseen, 'token', 'tokens')
      } before. The server keeps its state, not its text, which this page has not seen.`);
    }
    const name = el('span', {className: chat ? 'who' : 'hidden-text'}, who === 'you' ? 'You: ' : 'Model: ');
    return el(chat ? 'p' : 'span', {className: `piece ${who}`}, name, text);
  });
  if (nodes.length === 0) nodes.push(el('p', {className: 'note'}, 'Nothing yet.'));
  transcript.replaceChildren(...nodes);
  transcript.classList.toggle('chat', chat);
  transcript.scrollTop = transcript.scrollHeight;
  say($('#prompt-label'), chat ? 'Message' : session?.token_count || running ? 'Text to go on with (may stay empty)' : 'Prompt');
  say($('.main', section), chat ? 'Send' : 'Complete');
  $('#start-over').hidden = session !== null;
}

/** Adds text to an element once per frame at most: models are faster than layouts. */
function appender(element) {
  const node = element.appendChild(document.createTextNode(''));
  let waiting = '';
  return (text) => {
    if (waiting === '') {
      requestAnimationFrame(() => {
        node.appendData(waiting);
        waiting = '';
        transcript.scrollTop = transcript.scrollHeight;
      });
    }
    waiting += text;
  };
}

/** The request of a turn: where it goes, and what. */
function turn(message, session, before, numbers) {
  const shared = {...textSettings(), ...(session ? {session: session.id, if_seq: session.seq} : {})};
  if (mode() === 'complete') {
    const text = numbers ? message.split(/[\s,]+/).filter(Boolean).map(Number) : message;
    return {path: '/v1/completions', body: {...shared, prompt: text}};
  }
  // A session has the earlier messages in its state. An answer that was cut off is still open there:
  // an empty message of the assistant ends it.
  const open = session && before.at(-1)?.open ? [{who: 'model', text: ''}] : [];
  const messages = (session ? open : before.filter(({text}) => text !== ''))
      .map(({who, text}) => ({role: who === 'you' ? 'user' : 'assistant', content: text}));
  return {path: '/v1/chat/completions', body: {...shared, messages: [...messages, {role: 'user', content: message}]}};
}

async function run(signal, numbers) {
  const session = sessions.chosen;
  const message = prompt.value;
  const chat = mode() === 'chat';
  const before = session || chat ? pieces() : [];
  if (chat && message === '') throw new Error('There is no message yet.');
  const {path, body} = turn(message, session, before, numbers);
  const answer = {who: 'model', text: ''};
  const kept = mode();
  running = [...before, ...(message ? [{who: 'you', text: message}] : []), answer];
  render();
  const append = appender(transcript.lastElementChild);
  const begin = performance.now();
  let tokens = 0;
  let finish = null;
  let tarn = null;
  try {
    for await (const event of stream(path, {...body, stream_options: {include_usage: true}}, signal)) {
      const choice = event.choices[0];
      const piece = choice?.text ?? choice?.delta?.content ?? '';
      answer.text += piece;
      if (piece !== '') append(piece);
      finish = choice?.finish_reason ?? finish;
      if (event.usage) tokens = event.usage.completion_tokens;
      tarn = event.tarn ?? tarn;
    }
    answer.open = finish === 'length';
    if (chat || session) prompt.value = '';
    ended({answer, tokens, finish, seconds: (performance.now() - begin) / 1000});
    if (session) contents.put(session.id, tarn.seq, tarn.token_count, running);
  } catch (error) {
    stopped(signal, session);
    throw error;
  } finally {
    if (!session) loose[kept] = answer.text ? running : before;
    running = null;
    if (session) await sessions.refresh().catch(() => {});  // the line at the top says so
    render();
  }
}

function ended({answer, tokens, finish, seconds}) {
  const why = finish === 'length' ? 'the most it may draw' : 'a stop string';
  say($('#write-note'), `${counted(tokens, 'token', 'tokens')} in ${amount(seconds)} s, as this browser measured: ${
      amount(tokens / seconds)} a second. It ended at ${why}.`);
  const text = answer.text.length > longestSpoken ? `${answer.text.slice(0, longestSpoken)} …` : answer.text;
  announce(`The model wrote ${count(tokens)} tokens: ${text}`);
}

function stopped(signal, session) {
  const words = !signal.aborted ? '' : session ? 'Stopped: the session is what it was before this turn.' : 'Stopped.';
  say($('#write-note'), words);
  if (words) announce(words);
}

/** `numbers`: the model is over tokens that are no text. */
export function startWriting(numbers) {
  const form = $('#write-form');
  if (numbers) {
    form.elements.mode[1].disabled = true;
    say($('#prompt-help'), 'Token numbers with blanks between. Ctrl or Command with Enter sends them.');
  }
  const runner = new Runner(form, section, (signal) => run(signal, numbers));
  prompt.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  for (const choice of form.elements.mode) {
    choice.addEventListener('change', () => {
      if (!runner.running) render();
    });
  }
  $('#start-over').addEventListener('click', () => {
    if (runner.running) return;
    loose[mode()] = [];
    say($('#write-note'), '');
    render();
    prompt.focus();
  });
  let shown = null;
  sessions.listen(() => {
    const session = sessions.chosen;
    const now = session ? `${session.id}/${session.seq}` : '';
    if (runner.running || now === shown) return;
    shown = now;
    render();
  });
  render();
}
