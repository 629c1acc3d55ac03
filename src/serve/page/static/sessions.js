// The list of sessions: asked for again and again, shown as one card each, with what can be done.
import {call} from './api.js';
import {contents} from './contents.js';
import {$, announce, bytes, count, counted, el, moment, say, showError} from './dom.js';

const pageSize = 50;
const section = $('#sessions');
const list = $('#session-list');
const select = $('#session');
const cards = new Map();  // id -> {item, session, update}
const listeners = [];
let pages = 1;

export const sessions = {
  all: [],
  more: false,  // the server has some that are not in `all`
  get chosen() { return sessions.all.find((session) => session.id === select.value) ?? null; },
  /** `callback` after the list or the chosen session may have changed. */
  listen(callback) { listeners.push(callback); },
  refresh,
};

let last = Promise.resolve();

/** Resolves when the page shows a list that was asked for after this call. */
function refresh() {
  last = last.catch(() => {}).then(load);
  return last;
}

async function load() {
  const all = [];
  let token = '';
  for (let page = 0; page < pages; ++page) {
    const query = `limit=${pageSize}` + (token && `&page_token=${encodeURIComponent(token)}`);
    const answer = await call('GET', `/v1/sessions?${query}`);
    all.push(...answer.data);
    token = answer.next_page_token;
    if (!token) break;
  }
  sessions.more = Boolean(token);
  // Newest first, in an order that does not change under anybody's fingers.
  all.sort((a, b) => b.created_at - a.created_at || (a.id < b.id ? 1 : -1));
  sessions.all = all;
  show();
}

function show() {
  const ids = new Set(sessions.all.map((session) => session.id));
  for (const [id, card] of cards) {
    if (ids.has(id)) continue;
    card.item.remove();
    cards.delete(id);
    contents.forget(id);
  }
  sessions.all.forEach((session, index) => {
    if (!cards.has(session.id)) cards.set(session.id, makeCard(session));
    const card = cards.get(session.id);
    card.update(session);
    if (list.children[index] !== card.item) list.insertBefore(card.item, list.children[index]);
  });
  const first = sessions.more ? 'The first ' : '';
  say($('#sessions-note'), sessions.all.length === 0 ? 'There are no sessions.'
      : first + counted(sessions.all.length, 'session', 'sessions') + ', the newest first.');
  $('#more-sessions').hidden = !sessions.more;
  showChoices();
  for (const listener of listeners) listener();
}

function showChoices() {
  const wanted = ['', ...sessions.all.map((session) => session.id)];
  const present = [...select.options].map((option) => option.value);
  if (wanted.join() === present.join()) return;
  const chosen = select.value;
  select.replaceChildren(select.options[0], ...wanted.slice(1).map((id) => el('option', {value: id}, id)));
  select.value = wanted.includes(chosen) ? chosen : '';
}

/** Makes this the session that turns use. */
function choose(id) {
  select.value = id;
  for (const listener of listeners) listener();
}

/** A button that says more to a screen reader than it has room to show. */
function button(label, session, action) {
  const node = el('button', {type: 'button', 'data-action': label}, label, el('span', {className: 'hidden-text'}, ` ${session.id}`));
  node.addEventListener('click', async () => {
    if (node.getAttribute('aria-disabled')) return;
    node.setAttribute('aria-disabled', 'true');
    showError(section, null);
    try {
      await action();
    } catch (error) {
      showError(section, error);
    } finally {
      node.removeAttribute('aria-disabled');
    }
  });
  return node;
}

function fact(name) {
  const value = el('dd');
  return {value, row: el('div', {}, el('dt', {}, name), value)};
}

function makeCard(first) {
  const {id} = first;
  const path = `/v1/sessions/${id}`;
  const facts = Object.fromEntries(
      ['Tokens', 'Seq', 'State', 'Stored', 'Last use', 'Where'].map((name) => [name, fact(name)]));
  const versions = el('select', {});
  const label = el('label', {}, 'Version', el('span', {className: 'hidden-text'}, ` of ${id}`), ' ', versions);
  const card = {session: first};

  const act = (what, body) => call('POST', `${path}/${what}`, body);
  const use = button('Use', first, async () => {
    choose(id);
    announce(`Turns now go on in session ${id}.`);
  });
  const rest = button('Pause', first, async () => {
    const pause = card.session.resident;
    const session = await act(pause ? 'pause' : 'resume');
    announce(`Session ${id} is ${pause ? 'paused: saved, and out of memory'
        : `resumed: in memory, with ${counted(session.tokens_recomputed, 'token', 'tokens')} computed again`}.`);
    await refresh();
  });
  const fork = button('Fork', first, async () => {
    const seq = Number(versions.value);
    const session = await act('fork', {seq});
    contents.copy(id, seq, session);
    announce(`Forked version ${seq} of ${id} into the session ${session.id}.`);
    await refresh();
  });
  const rollback = button('Roll back', first, async () => {
    const seq = Number(versions.value);
    const session = await act('rollback', {seq});
    contents.copy(id, seq, session);
    announce(`Session ${id} is what it was as version ${seq}: ${count(session.token_count)} tokens.`);
    await refresh();
  });
  const remove = button('Delete', first, async () => {
    if (!await confirmed(`Delete the session ${id} and all its versions?`)) return;
    await call('DELETE', path);
    announce(`Session ${id} is deleted.`);
    $('#sessions-title').focus();
    await refresh();
  });
  remove.classList.add('danger');

  card.item = el('li', {className: 'session', 'data-id': id},
      el('h3', {}, id),
      el('dl', {}, ...Object.values(facts).map((entry) => entry.row)),
      el('div', {className: 'fields'}, use, rest, remove),
      el('div', {className: 'fields'}, label, fork, rollback));
  card.update = (session) => {
    card.session = session;
    say(facts.Tokens.value, count(session.token_count));
    say(facts.Seq.value, count(session.seq));
    say(facts.State.value, bytes(session.state_bytes));
    say(facts.Stored.value, bytes(session.payload_bytes));
    say(facts['Last use'].value, moment(session.last_use_at));
    const where = session.resident ? 'in memory' : 'paused, in the store';
    say(facts.Where.value, where + (session.in_use ? ', in use' : '') + (session.unsaved ? ', unsaved' : ''));
    say(rest.firstChild, session.resident ? 'Pause' : 'Resume');
    showVersions(versions, session);
  };
  return card;
}

function showVersions(select, session) {
  const newest = [...session.versions].reverse();
  const wanted = newest.map((version) => String(version.seq));
  if (wanted.join() === [...select.options].map((option) => option.value).join()) return;
  const followsNewest = select.selectedIndex <= 0;
  const chosen = select.value;
  select.replaceChildren(...newest.map((version) => el('option', {value: String(version.seq)},
      `${version.seq}: ${counted(version.token_count, 'token', 'tokens')}, ${moment(version.written_at)}`)));
  if (!followsNewest && wanted.includes(chosen)) select.value = chosen;
}

function confirmed(question) {
  const dialog = $('#confirm');
  say($('#confirm-text'), question);
  dialog.returnValue = 'no';
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => resolve(dialog.returnValue === 'yes'), {once: true});
  });
}

export function startSessions() {
  $('#new-session').addEventListener('submit', async (event) => {
    event.preventDefault();
    showError(section, null);
    const id = $('#new-id').value;
    try {
      const session = await call('POST', '/v1/sessions', id ? {id} : {});
      $('#new-id').value = '';
      await refresh();
      choose(session.id);
      announce(`The session ${session.id} is new, and turns now go on in it.`);
    } catch (error) {
      showError(section, error);
    }
  });
  select.addEventListener('change', () => { for (const listener of listeners) listener(); });
  $('#more-sessions').addEventListener('click', () => {
    ++pages;
    refresh().catch((error) => showError(section, error));
  });
}
