// What this page has seen of the sessions' contents. The server keeps a session's state, not its
// text or pixels; so the page remembers, by session and version, what it saw itself.

const seen = new Map();  // "id/seq" -> {tokens, content}

export const contents = {
  /** The content of a session as it is now, or undefined. */
  of(session) {
    const entry = seen.get(`${session.id}/${session.seq}`);
    return entry?.tokens === session.token_count ? entry.content : undefined;
  },
  put(id, seq, tokens, content) { seen.set(`${id}/${seq}`, {tokens, content}); },
  /** After a fork or rollback: the session as it is now has what `id` had at `seq`. */
  copy(id, seq, session) {
    const entry = seen.get(`${id}/${seq}`);
    if (entry) seen.set(`${session.id}/${session.seq}`, entry);
  },
  forget(id) {
    for (const name of seen.keys()) if (name.startsWith(`${id}/`)) seen.delete(name);
  },
};
