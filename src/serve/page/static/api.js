// Requests to the server this page came from, its streams, and its errors in words.

const kKey = 'tarn-api-key';
const ended = '[DONE]';

export const key = {
  get: () => sessionStorage.getItem(kKey),
  set: (value) => sessionStorage.setItem(kKey, value),
  forget: () => sessionStorage.removeItem(kKey),
};

const words = {
  invalid_api_key: 'The server wants an API key and does not take this one.',
  session_not_found: 'This session does not exist, or no longer.',
  session_exists: 'There is a session of this name already.',
  session_in_use: 'Something else is using this session just now.',
  session_conflict: 'This session was changed by something else.',
  seq_mismatch: 'This session went on elsewhere since the page looked at it.',
  session_damaged: 'What is stored of this session is damaged.',
  session_unusable: 'This session cannot be used with this model.',
  overloaded: 'The server is full.',
  shutting_down: 'The server is shutting down.',
  turn_timeout: 'This took longer than the server allows.',
  store_full: 'The server has no room left to save this.',
  store_read_only: 'The server can read its sessions but not save them.',
  store_failed: 'The server cannot reach its sessions.',
  not_ready: 'The server is not ready.',
};
const wordsOfStatus = {
  400: 'The server did not take this.',
  413: 'This is more than the server takes.',
  429: 'The server is full.',
  503: 'The server cannot do this now.',
};

/** What went wrong, as a sentence for people; the server's own sentence stands behind it. */
export class ApiError extends Error {
  constructor(status, error, retryAfter, requestId) {
    const parts = [words[error?.code] ?? wordsOfStatus[status] ?? `The server answered ${status}.`];
    if (error?.message) parts.push(`It says: ${error.message}.`);
    if (retryAfter) parts.push(`Try again in ${retryAfter} s.`);
    if (status >= 500 && requestId) parts.push(`(Request ${requestId}.)`);
    super(parts.join(' '));
    this.status = status;
    this.code = error?.code;
  }
}

let wantKey = () => {};
/** `callback` is called whenever the server refuses for want of a key. */
export function onKeyWanted(callback) { wantKey = callback; }

async function request(method, path, body, signal) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  let response;
  try {
    response = await fetch(path, {
      method, headers, signal, cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (signal?.aborted) throw error;
    throw new Error('The server cannot be reached.');
  }
  if (response.ok) return response;
  const error = await response.json().then((json) => json.error, () => null);
  if (response.status === 401) wantKey();
  throw new ApiError(response.status, error, response.headers.get('Retry-After'),
                     response.headers.get('X-Request-Id'));
}

export async function call(method, path, body) {
  return (await request(method, path, body)).json();
}

export async function text(path) {
  return (await request('GET', path)).text();
}

/** The JSON of each event of a streamed answer. Throws what the server tells in the stream, and when
 *  the stream ends before its end. */
export async function* stream(path, body, signal) {
  const response = await request('POST', path, {...body, stream: true}, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const {value, done} = await reader.read().catch((error) => {
      if (signal?.aborted) throw error;
      throw new Error('The connection broke in the middle of the answer.');
    });
    if (done) throw new Error('The answer ended before its end.');
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith('data: ')) continue;
      const data = event.slice('data: '.length);
      if (data === ended) return;
      const json = JSON.parse(data);
      if (json.error) throw new ApiError(200, {...json.error}, null, null);
      yield json;
    }
  }
}
