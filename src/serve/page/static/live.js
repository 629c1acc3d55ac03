// What the server does now: its metrics and sessions, asked for every second, as charts.
import {text} from './api.js';
import {Chart, roundUp} from './chart.js';
import {$, amount, bytes, count, counted, say} from './dom.js';
import {sessions} from './sessions.js';

const shownSeconds = 60;  // seconds that the charts over time show
const pollMs = 1000;
const patientMs = 5000;  // between tries to reach a server that does not answer

/** Values of Prometheus' text format by name; samples with labels are left out. */
export function parseMetrics(text) {
  const values = {};
  for (const line of text.split('\n')) {
    const match = /^([a-z_]+) (\S+)$/.exec(line);
    if (match) values[match[1]] = Number(match[2]);
  }
  return values;
}

/** Bytes that the keys and values of a softmax model of equal size take after `tokens` tokens. */
export const cacheBytes = (model, tokens) => 2 * model.mixing_layers * model.model_dim * 4 * tokens;

const history = [];  // {time, metrics, sessions, resident}

function rates(name) {
  const points = [];
  for (let i = 1; i < history.length; ++i) {
    const seconds = history[i].time - history[i - 1].time;
    const more = history[i].metrics[name] - history[i - 1].metrics[name];
    if (more >= 0) points.push([history[i].time, more / seconds]);  // less: the server is another one
  }
  return points;
}

const yMax = (lines, least) => Math.max(least, ...lines.flat().map(([, y]) => y));
const latest = (line) => line.at(-1)?.[1] ?? 0;

function makeCharts(model) {
  const parent = $('#charts');
  const overTime = {axis: 'seconds', writeX: (x) => amount(x - (history.at(-1)?.time ?? 0)), writeY: amount};
  const speed = new Chart(parent, {title: 'Tokens per second', names: ['drawn', 'read'], ...overTime});
  const number = new Chart(parent, {title: 'Sessions', names: ['stored', 'in memory', 'turns at work'], ...overTime});
  const memory = new Chart(parent, {title: 'Memory of one session', names: ['state here', 'softmax model\'s cache'],
                                    axis: 'tokens', writeX: count, writeY: bytes});
  return () => {
    const now = history.at(-1).time;
    const xRange = [now - shownSeconds, now];
    const drawn = rates('tarn_generated_tokens_total');
    const read = rates('tarn_prompt_tokens_total');
    speed.draw({lines: [drawn, read], xRange, yMax: yMax([drawn, read], 10),
                summary: `Now ${amount(latest(drawn))} drawn and ${amount(latest(read))} read a second.`});
    const lines = [(entry) => entry.sessions, (entry) => entry.resident, (entry) => entry.metrics.tarn_turns_running]
        .map((value) => history.map((entry) => [entry.time, value(entry)]));
    const atLeast = sessions.more ? 'At least ' : '';
    number.draw({lines, xRange, yMax: yMax(lines, 4),
                 summary: `${atLeast}${counted(latest(lines[0]), 'session', 'sessions')}, ${
                     latest(lines[1])} in memory; ${counted(latest(lines[2]), 'turn', 'turns')} at work.`});
    drawMemory(memory, model);
  };
}

/** One point per session; the lines go on to a round number of tokens. */
function drawMemory(chart, model) {
  const longest = sessions.all.reduce((a, b) => (b.token_count > (a?.token_count ?? -1) ? b : a), null);
  if (!longest) {
    chart.draw({lines: [[], []], xRange: [0, 1000], yMax: 1000, summary: 'There is no session to show.'});
    return;
  }
  const points = sessions.all.map((session) => [session.token_count, session.state_bytes]).sort((a, b) => a[0] - b[0]);
  const state = longest.state_bytes;
  const end = model.max_tokens ?? roundUp(Math.max(longest.token_count, 100));
  const flat = [[0, state], [end, state]];
  const lines = [model.bounded_state ? flat : points, [[0, 0], [end, cacheBytes(model, end)]]];
  const tokens = longest.token_count;
  const words = (model.bounded_state ? `Every session: ${bytes(state)}, at any length. ` : `The longest session takes ${bytes(state)}. `) +
      `The longest has ${counted(tokens, 'token', 'tokens')}, for which a softmax model of this size would keep ${bytes(cacheBytes(model, tokens))}.`;
  chart.draw({lines, marks: points, xRange: [0, end], yMax: yMax(lines, 1), summary: words});
}

/** Polls for as long as the page can be seen. `onState(error)` after each try, null when it went well. */
export function startLive(model, onState) {
  const draw = makeCharts(model);
  say($('#cache-formula'), `The cache of an equal softmax model: 2 (keys and values) × ${model.mixing_layers} layers × ${
      model.model_dim} channels × 4 bytes × tokens = ${count(cacheBytes(model, 1))} bytes per token, by formula, f32. ` +
      'The state is what the server reports; dots are its sessions.');
  const poll = async () => {
    let wait = pollMs;
    if (!document.hidden) {
      try {
        const metrics = parseMetrics(await text('/metrics'));
        await sessions.refresh();
        const resident = sessions.all.filter((session) => session.resident).length;
        history.push({time: performance.now() / 1000, metrics, sessions: sessions.all.length, resident});
        while (history[0].time < history.at(-1).time - shownSeconds - 2) history.shift();
        draw();
        onState(null, metrics);
      } catch (error) {
        onState(error);
        wait = patientMs;
      }
    }
    setTimeout(poll, wait);
  };
  addEventListener('resize', () => { if (history.length) draw(); });
  poll();
}
