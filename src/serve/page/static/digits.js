// Pictures drawn by the model: new ones, some rows of one in a session, and the rest of a drawing.
import {stream} from './api.js';
import {contents} from './contents.js';
import {$, Runner, amount, announce, count, counted, say} from './dom.js';
import {Pad} from './pad.js';
import {Picture, decode, encode} from './picture.js';
import {sessions} from './sessions.js';
import {sampler} from './settings.js';

/** Streams an answer into pictures and says how fast it came; returns the answer's "tarn". */
async function draw(body, pictures, section, signal) {
  const pace = Number($('#pace').value);
  const note = $('.result', section);
  const begin = performance.now();
  let drawn = 0;
  let tarn = null;
  say(note, 'The model draws …');
  try {
    for await (const event of stream('/v1/images/generations', {...sampler(), ...body}, signal)) {
      const picture = pictures[event.index];
      if (event.type === 'image_generation.row') {
        picture.pace = pace;
        picture.put(event.row, decode(event.b64_pixels));
      } else if (event.usage) {
        drawn = event.usage.output_tokens;
        tarn = event.tarn;
      }
    }
  } catch (error) {
    say(note, signal.aborted ? 'Stopped.' : '');
    if (signal.aborted) announce('Stopped.');
    throw error;
  }
  const seconds = (performance.now() - begin) / 1000;
  say(note, `${count(drawn)} pixel values in ${amount(seconds)} s, as this browser measured: ${
      amount(drawn / seconds)} a second.`);
  announce(`${counted(pictures.length, 'picture is', 'pictures are')} drawn.`);
  return tarn;
}

function newPictures(shape, number, gallery) {
  const pictures = Array.from({length: number}, (_, i) => new Picture(shape, String(i + 1)));
  gallery.replaceChildren(...pictures.map((picture) => picture.item));
  return pictures;
}

/** The picture of a session as far as this page knows it. */
function pictureOf(session, shape) {
  const values = shape.width * shape.channels;
  const picture = new Picture(shape, session.id);
  const seen = contents.of(session) ?? {unknown: Math.floor(session.token_count / values)};
  if (seen.pixels) picture.pixels.set(seen.pixels);
  picture.unknown = seen.unknown;
  picture.known = Math.min(Math.floor(session.token_count / shape.channels), shape.width * shape.height);
  picture.jump();
  return picture;
}

const versionOf = (session) => (session ? `${session.id}/${session.seq}/${session.token_count}` : '');

async function drawInSession(session, shape, section, signal) {
  const picture = pictureOf(session, shape);
  $('#digits-gallery').replaceChildren(picture.item);
  const left = shape.height - Math.floor(session.token_count / (shape.width * shape.channels));
  if (left <= 0) throw new Error('This session\'s picture is complete: roll it back, fork an earlier version, or take another.');
  const rows = Math.min(Number($('#digits-rows').value), left);
  const tarn = await draw({session: session.id, if_seq: session.seq, rows}, [picture], section, signal);
  contents.put(session.id, tarn.seq, tarn.token_count,
               {pixels: picture.pixels.slice(), unknown: picture.unknown});
  await sessions.refresh();
}

function startDigits(shape) {
  const section = $('#digits');
  const gallery = $('#digits-gallery');
  $('#digits-rows').max = shape.height;
  $('#digits-rows').value = Math.ceil(shape.height / 4);
  let shown = '';  // the session's version in the gallery; '': none
  const runner = new Runner($('#digits-form'), section, async (signal) => {
    const session = sessions.chosen;
    if (!session) {
      const n = Number($('#digits-count').value);
      await draw({n}, newPictures(shape, n, gallery), section, signal);
      return;
    }
    try {
      await drawInSession(session, shape, section, signal);
      shown = versionOf(sessions.chosen);  // it may still be appearing: not to be replaced
    } catch (error) {
      shown = null;  // what stands there was undone
      throw error;
    }
  });
  sessions.listen(() => {
    const session = sessions.chosen;
    $('#rows-field').hidden = session === null;
    $('#digits-count').closest('label').hidden = session !== null;
    if (runner.running || shown === versionOf(session)) return;
    shown = versionOf(session);
    gallery.replaceChildren(...(session ? [pictureOf(session, shape).item] : []));
  });
}

function startPad(shape) {
  const section = $('#pad');
  const pad = new Pad(shape);
  new Runner($('#pad-form'), section, async (signal) => {
    const n = Number($('#pad-count').value);
    const pictures = newPictures(shape, n, $('#pad-gallery'));
    const given = pad.given();
    for (const picture of pictures) {
      picture.given = pad.rows * shape.width;
      for (let row = 0; row < pad.rows; ++row) {
        const values = shape.width * shape.channels;
        picture.put(row, given.subarray(row * values, (row + 1) * values));
      }
    }
    await draw({n, prompt_pixels: encode(given), rows: shape.height - pad.rows}, pictures, section, signal);
  });
}

export function startPictures(shape) {
  startDigits(shape);
  startPad(shape);
}
