/* Tarn's C interface: load a model, run sessions, keep them as bytes. docs/c-api.md has an example.
 *
 * Every call that can fail returns a tarn_code; what a failed call was to change stays as it was (of
 * tarn_session_generate: the tokens told before the failure stay drawn).
 * tarn_last_error() then says why in one sentence. Threads: objects may be used from any thread, a
 * session by one at a time; sessions of one model take turns in computing. Texts are UTF-8. */
#ifndef TARN_H
#define TARN_H

#include <stddef.h>
#include <stdint.h>

/* Grows when something is added; what exists keeps its meaning. Structs begin with their own size, so
 * that programs built with an older header go on working. */
#define TARN_API_VERSION 1

#if defined(__GNUC__)
#define TARN_API __attribute__((visibility("default")))
#else
#define TARN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef enum tarn_code {
  TARN_OK = 0,
  TARN_INVALID_ARGUMENT = 1,
  TARN_NOT_FOUND = 2,
  TARN_CORRUPT = 3,     /* bytes or files that break their format */
  TARN_UNSUPPORTED = 4, /* right, but not of this model or build */
  TARN_RESOURCE = 5,    /* a limit of memory or size */
  TARN_IO = 6,
  TARN_CANCELLED = 7,
  TARN_CONFLICT = 8
} tarn_code;

typedef struct tarn_model tarn_model;
typedef struct tarn_session tarn_session;

/* TARN_API_VERSION of the library, and its release, "0.1.0". */
TARN_API int32_t tarn_api_version(void);
TARN_API const char* tarn_version(void);
/* "ok", "invalid_argument", ... */
TARN_API const char* tarn_code_name(tarn_code code);
/* Of the calling thread's latest failure; valid until its next one. */
TARN_API const char* tarn_last_error(void);

typedef struct tarn_model_options {
  uint32_t size;       /* sizeof(tarn_model_options) */
  int32_t threads;     /* that compute; 0: as many as the process may use */
  const char* weights; /* "f32", "bf16" or "int8": format of the matrices in memory; NULL: "f32" */
} tarn_model_options;

/* Loads a model folder (config.json, model.safetensors). `options` may be NULL. */
TARN_API tarn_code tarn_model_load(const char* folder, const tarn_model_options* options,
                                   tarn_model** model);
/* Its sessions keep what they need. NULL does nothing. */
TARN_API void tarn_model_free(tarn_model* model);
/* Token ids are in [0, vocabulary). */
TARN_API int64_t tarn_model_vocabulary(const tarn_model* model);
/* Longest sequence; 0: no limit. */
TARN_API int64_t tarn_model_max_tokens(const tarn_model* model);
/* 1: tokens are bytes of text. */
TARN_API int32_t tarn_model_is_text(const tarn_model* model);

/* A new, empty sequence. `seed` fixes what it draws. */
TARN_API tarn_code tarn_session_create(tarn_model* model, uint64_t seed, tarn_session** session);
/* An exact copy, random numbers included. */
TARN_API tarn_code tarn_session_clone(const tarn_session* session, tarn_session** copy);
/* A copy with random numbers of its own, number `stream` of the seed. */
TARN_API tarn_code tarn_session_fork(const tarn_session* session, uint64_t stream,
                                     tarn_session** copy);
TARN_API void tarn_session_free(tarn_session* session);

/* Appends tokens and evaluates them. */
TARN_API tarn_code tarn_session_feed(tarn_session* session, const int32_t* tokens, size_t count);
/* The same with bytes of text, for models over text. */
TARN_API tarn_code tarn_session_feed_text(tarn_session* session, const char* text, size_t bytes);

typedef struct tarn_sampler {
  uint32_t size;     /* sizeof(tarn_sampler) */
  int32_t greedy;    /* 1: the most likely token */
  float temperature; /* above 0 */
  float top_p;       /* in (0, 1]; 1: off */
  int64_t top_k;     /* 0: off */
} tarn_sampler;
/* Temperature 1, nothing cut. */
TARN_API void tarn_sampler_init(tarn_sampler* sampler);

/* Told every token; `text` (not terminated) is what the token completes of a model over text: whole
 * characters, often none. Not 0: stop after this token. It must not call with the same session. */
typedef int32_t (*tarn_token_callback)(void* user, int32_t token, const char* text, size_t bytes);

/* Draws up to `max_tokens` tokens, fewer when the callback or the model's limit says so. The session
 * holds all that were told. `sampler` (NULL: the defaults), `callback` and `drawn` may be NULL. */
TARN_API tarn_code tarn_session_generate(tarn_session* session, const tarn_sampler* sampler,
                                         int64_t max_tokens, tarn_token_callback callback,
                                         void* user, int64_t* drawn);

/* Becomes what `mark`, a clone or fork of a session of the same model, is. */
TARN_API tarn_code tarn_session_rollback(tarn_session* session, const tarn_session* mark);

/* The session as bytes (docs/formats/snapshot.md), freed with tarn_bytes_free. */
TARN_API tarn_code tarn_session_snapshot(const tarn_session* session, void** bytes, size_t* size);
TARN_API void tarn_bytes_free(void* bytes);
/* Becomes what the snapshot says; everything is checked before anything changes. */
TARN_API tarn_code tarn_session_restore(tarn_session* session, const void* bytes, size_t size);
/* The same to and from a file, which is replaced as a whole. */
TARN_API tarn_code tarn_session_save(const tarn_session* session, const char* path);
TARN_API tarn_code tarn_session_load(tarn_session* session, const char* path);

/* Tokens so far. */
TARN_API int64_t tarn_session_token_count(const tarn_session* session);
/* Inputs evaluated so far, the start token included. */
TARN_API int64_t tarn_session_position(const tarn_session* session);
/* Bytes of its state: the same at every length for models with a fixed state. */
TARN_API int64_t tarn_session_state_bytes(const tarn_session* session);

#ifdef __cplusplus
}
#endif

#endif /* TARN_H */
