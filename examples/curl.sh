#!/bin/sh
# Asks a running `tarn serve` over bytes of text with curl:  examples/curl.sh [http://127.0.0.1:8080]
# With API keys: TARN_API_KEY=… examples/curl.sh
set -eu
url=${1:-http://127.0.0.1:8080}
session=curl-$$

ask() { # METHOD PATH [BODY] [more options of curl]
  method=$1 path=$2 body=${3:-}
  shift 2
  [ $# -eq 0 ] || shift
  curl -sS --fail-with-body -X "$method" "$url$path" -H "Authorization: Bearer ${TARN_API_KEY:-none}" \
       ${body:+-H} ${body:+"Content-Type: application/json"} ${body:+-d} ${body:+"$body"} "$@"
  echo
}

ask GET /v1/models
ask POST /v1/completions '{"prompt": "Once upon a time", "max_tokens": 20, "seed": 1}'
# Events as they come.
ask POST /v1/chat/completions '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "stream": true}' -N
# A session: the second turn reads its own words only (tarn.tokens_evaluated).
ask POST /v1/sessions "{\"id\": \"$session\", \"seed\": 1}"
ask POST /v1/completions "{\"session\": \"$session\", \"prompt\": \"Once upon a time\", \"max_tokens\": 20}" \
    -H "Idempotency-Key: first"
ask POST /v1/completions "{\"session\": \"$session\", \"prompt\": \" and\", \"max_tokens\": 20, \"if_seq\": 2}"
ask POST "/v1/sessions/$session/fork" "{\"seq\": 2, \"id\": \"$session-other\"}"
ask GET "/v1/sessions?limit=10"
ask DELETE "/v1/sessions/$session-other"
ask DELETE "/v1/sessions/$session"
