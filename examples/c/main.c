/* Draws text or tokens from a model, saves the session to a file, and goes on from the file:
 *
 *   main MODEL SNAPSHOT [PROMPT]
 *
 * What is drawn after the load is what the first session draws when it simply goes on; the program
 * checks that, and that a rollback draws the same again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tarn.h>

enum { kTokens = 40 };

static void check(tarn_code code, const char* what) {
  if (code == TARN_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, tarn_code_name(code), tarn_last_error());
  exit(1);
}

struct drawn {
  int32_t tokens[kTokens];
  size_t count;
};

static int32_t on_token(void* user, int32_t token, const char* text, size_t bytes) {
  struct drawn* drawn = user;
  drawn->tokens[drawn->count++] = token;
  if (bytes > 0) {
    fwrite(text, 1, bytes, stdout);
  } else {
    printf("<%d>", (int)token);
  }
  return drawn->count == kTokens;
}

static struct drawn draw(tarn_session* session) {
  struct drawn drawn = {{0}, 0};
  int64_t count = 0;
  tarn_sampler sampler;
  tarn_sampler_init(&sampler);
  sampler.temperature = 0.8f;
  check(tarn_session_generate(session, &sampler, 1000, on_token, &drawn, &count), "generate");
  printf("\n");
  if (count != kTokens) {
    fprintf(stderr, "drew %lld tokens, wanted %d\n", (long long)count, kTokens);
    exit(1);
  }
  return drawn;
}

static void same(const struct drawn* a, const struct drawn* b, const char* what) {
  if (memcmp(a->tokens, b->tokens, sizeof(a->tokens)) == 0) return;
  fprintf(stderr, "%s drew other tokens\n", what);
  exit(1);
}

int main(int argc, char** argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s MODEL SNAPSHOT [PROMPT]\n", argv[0]);
    return 2;
  }
  if (tarn_api_version() < TARN_API_VERSION) {
    fprintf(stderr, "libtarn %s is older than this program\n", tarn_version());
    return 1;
  }
  tarn_model* model = NULL;
  const tarn_model_options options = {sizeof(options), 1, "f32"};
  check(tarn_model_load(argv[1], &options, &model), "load");

  tarn_session* session = NULL;
  check(tarn_session_create(model, 7, &session), "create");
  if (argc > 3) check(tarn_session_feed_text(session, argv[3], strlen(argv[3])), "feed");
  draw(session);
  check(tarn_session_save(session, argv[2]), "save");
  tarn_session* mark = NULL;
  check(tarn_session_clone(session, &mark), "clone");
  const struct drawn wanted = draw(session);

  tarn_session* resumed = NULL;
  check(tarn_session_create(model, 0, &resumed), "create");
  check(tarn_session_load(resumed, argv[2]), "resume");
  const int64_t position = tarn_session_position(resumed);
  const struct drawn again = draw(resumed);
  same(&wanted, &again, "the resumed session");
  check(tarn_session_rollback(session, mark), "rollback");
  const struct drawn rolled_back = draw(session);
  same(&wanted, &rolled_back, "the session after the rollback");

  /* A broken snapshot is refused, and the session stays what it was. */
  void* bytes = NULL;
  size_t size = 0;
  check(tarn_session_snapshot(session, &bytes, &size), "snapshot");
  ((unsigned char*)bytes)[size / 2] ^= 1;
  if (tarn_session_restore(session, bytes, size) != TARN_CORRUPT) {
    fprintf(stderr, "a broken snapshot was restored\n");
    return 1;
  }
  tarn_bytes_free(bytes);
  printf("resumed at input %lld, state of %lld bytes\n", (long long)position,
         (long long)tarn_session_state_bytes(session));
  tarn_session_free(mark);
  tarn_session_free(resumed);
  tarn_model_free(model); /* sessions keep what they need */
  draw(session);
  tarn_session_free(session);
  return 0;
}
