// Requests that cannot be right: each is refused with a message that names the field, and the next
// clean request is answered as if it had never come.
#include <string>
#include <vector>

#include "unit/serve/api_fixture.h"

namespace tarn::serve::api {
namespace {

struct Bad {
  std::string name;
  std::string path;
  std::string body;
  int status = 400;
  std::string param;  ///< of the error; empty: null
  std::string says = {};
};

const std::string kText = "/v1/completions";
const std::string kChat = "/v1/chat/completions";
const std::string kImages = "/v1/images/generations";
const std::string kSessions = "/v1/sessions";

std::string chat(const std::string& messages) { return R"({"messages":)" + messages + "}"; }

std::vector<Bad> broken_json() {
  std::string deep = R"({"prompt":)";
  deep += std::string(100, '[') + std::string(100, ']') + "}";
  return {
      {"half an object", kText, "{:", 400, "", "invalid JSON"},
      {"cut", kText, R"({"prompt":"a)", 400, "", "ends too early"},
      {"no object", kText, "[1]", 400, "", "object"},
      {"a number", kText, "3", 400, "", "object"},
      {"trailing bytes", kText, "{} x", 400, "", "body"},
      {"a key twice", kText, R"({"prompt":"a","prompt":"b"})", 400, "", "duplicate key"},
      {"too deep", kText, deep, 400, "", "deeper"},
      {"bytes that are no UTF-8", kText, "{\"prompt\":\"\xff\xfe\"}", 400, "", "invalid JSON"},
      {"half a surrogate pair", kText, R"({"prompt":"\ud800"})", 400, "", "invalid JSON"},
      {"infinity", kText, R"({"temperature":1e400})", 400, "", "out of range"},
      {"a huge integer", kText, R"({"max_tokens":99999999999999999999})", 400, "", "out of range"},
      {"a bare NaN", kText, R"({"top_p":NaN})", 400, "", "invalid JSON"},
      {"NUL", kText, std::string("{\"prompt\":\"a\0b\"}", 16), 400, "", "invalid JSON"},
  };
}

std::vector<Bad> bad_turns() {
  return {
      {"prompt of a wrong type", kText, R"({"prompt":{"a":1}})", 400, "prompt"},
      {"prompt as a number", kText, R"({"prompt":3})", 400, "prompt"},
      {"a negative token", kText, R"({"prompt":[-1]})", 400, "prompt"},
      {"a token above the vocabulary", kText, R"({"prompt":[257]})", 400, "prompt"},
      {"a fractional token", kText, R"({"prompt":[1.5]})", 400, "prompt"},
      {"a token of 2^62", kText, R"({"prompt":[4611686018427387904]})", 400, "prompt"},
      {"text among tokens", kText, R"({"prompt":[1,"a"]})", 400, "prompt"},
      {"a number among texts", kText, R"({"prompt":["a",1]})", 400, "prompt"},
      {"many prompts", kText, R"({"prompt":["","","","","","","","",""]})", 400, "prompt"},
      {"a prompt beyond the queue", kText, R"({"prompt":")" + std::string(2000, 'a') + R"("})", 400,
       "prompt", "2000"},
      {"n of 10^9", kText, R"({"n":1000000000})", 400, "n", "8"},
      {"n of 0", kText, R"({"n":0})", 400, "n"},
      {"n times prompts", kText, R"({"prompt":["a","b","c"],"n":3})", 400, "n"},
      {"negative max_tokens", kText, R"({"max_tokens":-1})", 400, "max_tokens"},
      {"max_tokens over the limit", kText, R"({"max_tokens":1000000})", 400, "max_tokens", "4096"},
      {"max_tokens as text", kText, R"({"max_tokens":"5"})", 400, "max_tokens"},
      {"max_tokens as a fraction", kText, R"({"max_tokens":5.5})", 400, "max_tokens"},
      {"a tiny temperature", kText, R"({"temperature":1e-4})", 400, "temperature"},
      {"the smallest temperature", kText, R"({"temperature":1e-300})", 400, "temperature"},
      {"a negative temperature", kText, R"({"temperature":-1})", 400, "temperature"},
      {"temperature as text", kText, R"({"temperature":"hot"})", 400, "temperature"},
      {"top_p above 1", kText, R"({"top_p":1.5})", 400, "top_p"},
      {"a top_p that no float has", kText, R"({"top_p":1e-300})", 400, "top_p"},
      {"negative top_k", kText, R"({"top_k":-1})", 400, "top_k"},
      {"seed as text", kText, R"({"seed":"1"})", 400, "seed"},
      {"stream as a number", kText, R"({"stream":1})", 400, "stream"},
      {"stream_options alone", kText, R"({"stream_options":{}})", 400, "stream_options"},
      {"unknown stream option", kText, R"({"stream":true,"stream_options":{"x":1}})", 400,
       "stream_options"},
      {"stop as a number", kText, R"({"stop":5})", 400, "stop"},
      {"stop of numbers", kText, R"({"stop":[5]})", 400, "stop"},
      {"an empty stop", kText, R"({"stop":""})", 400, "stop"},
      {"five stops", kText, R"({"stop":["a","b","c","d","e"]})", 400, "stop"},
      {"a long stop", kText, R"({"stop":")" + std::string(257, 'x') + R"("})", 400, "stop"},
      {"echo as text", kText, R"({"echo":"yes"})", 400, "echo"},
      {"21 logprobs", kText, R"({"logprobs":21})", 400, "logprobs", "from 0 to 20, got 21"},
      {"-1 logprobs", kText, R"({"logprobs":-1})", 400, "logprobs", "from 0 to 20, got -1"},
      {"logprobs of chats", kText, R"({"logprobs":true})", 400, "logprobs", "got true"},
      {"logprobs as a fraction", kText, R"({"logprobs":1.5})", 400, "logprobs", "an integer"},
      {"logprobs of an echo", kText, R"({"logprobs":1,"echo":true})", 400, "echo", "logprobs"},
      {"too many logprobs", kText, R"({"logprobs":20,"max_tokens":4096,"n":4})", 400, "max_tokens",
       "344064"},
      {"another model", kText, R"({"model":"gpt-4o"})", 404, "model", "gpt-4o"},
      {"model as a number", kText, R"({"model":4})", 400, "model"},
      {"a session id with a path", kText, R"({"session":"../etc/passwd"})", 400, "session"},
      {"an empty session id", kText, R"({"session":""})", 400, "session"},
      {"a session as an object", kText, R"({"session":{"path":"/x"}})", 400, "session"},
      {"a session that is not there", kText, R"({"session":"nobody"})", 404, "session"},
      {"if_seq without session", kText, R"({"if_seq":1})", 400, "if_seq"},
      {"n with a session", kText, R"({"session":"a","n":2})", 400, "n"},
      {"prompts with a session", kText, R"({"session":"a","prompt":["a","b"]})", 400, "prompt"},
  };
}

std::vector<Bad> unsupported() {
  const auto text = [](const std::string& name, const std::string& value) {
    return Bad{name, kText, "{\"" + name + "\":" + value + "}", 400, name, "not supported"};
  };
  const auto talk = [](const std::string& name, const std::string& value) {
    return Bad{"chat " + name,
               kChat,
               R"({"messages":[{"role":"user","content":"x"}],")" + name + "\":" + value + "}",
               400,
               name,
               "not supported"};
  };
  return {
      text("best_of", "2"),
      text("suffix", "\"x\""),
      text("top_logprobs", "3"),
      text("frequency_penalty", "0.5"),
      text("presence_penalty", "-1"),
      text("logit_bias", R"({"50":10})"),
      text("grammar", "\"root ::= (\""),
      text("min_p", "0.1"),
      text("guided_regex", "\"(a+)+$\""),
      talk("tools", "[{}]"),
      talk("tool_choice", "\"required\""),
      talk("response_format", R"({"type":"json_object"})"),
      talk("functions", "[1]"),
      talk("modalities", R"(["audio"])"),
      talk("audio", "{}"),
      talk("reasoning_effort", "\"high\""),
      talk("chat_template", "\"{{ x }}\""),
      talk("chat_template_kwargs", R"({"a":1})"),
      talk("echo", "true"),
      {"an unknown parameter", kText, R"({"n_keep":-5})", 400, "n_keep"},
      {"a long unknown parameter", kText, "{\"" + std::string(100'000, 'k') + "\":1}", 400,
       json_quote(std::string(100'000, 'k'), 80)},
      {"n_discard", kText, R"({"n_discard":-1})", 400, "n_discard"},
      {"a system prompt", kText, R"({"system_prompt":"text"})", 400, "system_prompt"},
  };
}

std::vector<Bad> bad_chats() {
  return {
      {"no messages", kChat, "{}", 400, "messages"},
      {"messages as text", kChat, chat("\"hi\""), 400, "messages"},
      {"no message", kChat, chat("[]"), 400, "messages"},
      {"a message as text", kChat, chat(R"(["hi"])"), 400, "messages[0]"},
      {"an unknown role", kChat, chat(R"([{"role":"king","content":"x"}])"), 400,
       "messages[0].role"},
      {"a tool's message", kChat, chat(R"([{"role":"tool","content":"x"}])"), 400,
       "messages[0].role"},
      {"no role", kChat, chat(R"([{"content":"x"}])"), 400, "messages[0].role"},
      {"no content", kChat, chat(R"([{"role":"user"}])"), 400, "messages[0].content"},
      {"content as a number", kChat, chat(R"([{"role":"user","content":4}])"), 400,
       "messages[0].content"},
      {"an image", kChat,
       chat(R"([{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}])"), 400,
       "messages[0].content[0].type"},
      {"a name", kChat, chat(R"([{"role":"user","content":"x","name":"Bob"}])"), 400,
       "messages[0].name"},
      {"tool calls", kChat, chat(R"([{"role":"assistant","content":"x","tool_calls":[{}]},
               {"role":"user","content":"x"}])"),
       400, "messages[0].tool_calls"},
      {"the assistant last", kChat, chat(R"([{"role":"assistant","content":"x"}])"), 400,
       "messages"},
      {"two lengths", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"max_tokens":3,"max_completion_tokens":4})",
       400, "max_tokens"},
      {"logprobs as a number", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"logprobs":3})", 400, "logprobs",
       "true or false, got 3"},
      {"21 top_logprobs", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"logprobs":true,"top_logprobs":21})", 400,
       "top_logprobs", "from 0 to 20, got 21"},
      {"top_logprobs alone", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})", 400, "top_logprobs",
       "needs \"logprobs\": true"},
      {"top_logprobs without logprobs", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"logprobs":false,"top_logprobs":1})", 400,
       "top_logprobs"},
      {"four stops with the template's", kChat,
       R"({"messages":[{"role":"user","content":"x"}],"stop":["a","b","c","d"]})", 400, "stop"},
      {"pictures from a model of text", kImages, "{}", 400, "model"},
  };
}

std::vector<Bad> bad_sessions() {
  return {
      {"a bad id", kSessions, R"({"id":"a/b"})", 400, "id"},
      {"a long id", kSessions, R"({"id":")" + std::string(65, 'a') + R"("})", 400, "id"},
      {"an empty id", kSessions, R"({"id":""})", 400, "id"},
      {"id as a number", kSessions, R"({"id":7})", 400, "id"},
      {"seed as text", kSessions, R"({"seed":"x"})", 400, "seed"},
      {"negative ttl", kSessions, R"({"ttl_seconds":-1})", 400, "ttl_seconds"},
      {"an endless ttl", kSessions, R"({"ttl_seconds":9223372036854775807})", 400, "ttl_seconds"},
      {"an unknown policy", kSessions, R"({"save":"never"})", 400, "save"},
      {"an unknown member", kSessions, R"({"path":"/etc"})", 400, "path"},
      {"id that exists", kSessions, R"({"id":"a"})", 409, "id"},
      {"rollback to nothing", kSessions + "/a/rollback", "{}", 400, "seq"},
      {"rollback to text", kSessions + "/a/rollback", R"({"seq":"1"})", 400, "seq"},
      {"rollback to 0", kSessions + "/a/rollback", R"({"seq":0})", 400, "seq"},
      {"rollback to what is not kept", kSessions + "/a/rollback", R"({"seq":77})", 404, "seq"},
      {"fork of nobody", kSessions + "/nobody/fork", "{}", 404, "session"},
      {"fork of a version not kept", kSessions + "/a/fork", R"({"seq":77})", 404, "seq"},
      {"fork onto itself", kSessions + "/a/fork", R"({"id":"a"})", 409, "id"},
      {"save with a file name", kSessions + "/a/save", R"({"filename":"/etc/x"})", 400, "filename"},
      {"save of nobody", kSessions + "/nobody/save", "", 404, "session"},
      {"resume of nobody", kSessions + "/nobody/resume", "", 404, "session"},
      {"a bad id in the path", kSessions + "/a.b/save", "", 400, "id"},
  };
}

class ApiMalformed : public testing::TestWithParam<std::vector<Bad> (*)()> {};

TEST_P(ApiMalformed, IsRefusedAndLeavesNoTrace) {
  ServiceOptions service;
  service.engine.max_queued_tokens = 1000;
  Site site(text_model(), {.model_name = "tiny"}, service);
  ASSERT_EQ(site.post(kSessions, R"({"id":"a","seed":1})").status, 201);
  const std::string clean = R"({"prompt":"Hello","max_tokens":12,"seed":7})";
  const Json control = site.post(kText, clean).at("choices");
  const Json session = site.get(kSessions + "/a").at("seq");
  for (const Bad& bad : GetParam()()) {
    SCOPED_TRACE(bad.name);
    const Answered answer = site.post(bad.path, bad.body);
    EXPECT_EQ(answer.status, bad.status) << answer.body;
    const Json json = answer.json();
    EXPECT_EQ(at(json, "error.param"), bad.param.empty() ? Json() : Json(bad.param)) << answer.body;
    const Json message = at(json, "error.message");
    ASSERT_NE(message.as_string(), nullptr) << answer.body;
    EXPECT_NE(message.as_string()->find(bad.param), std::string::npos) << *message.as_string();
    EXPECT_NE(message.as_string()->find(bad.says), std::string::npos) << *message.as_string();
    EXPECT_NE(at(json, "error.type").as_string(), nullptr);
    EXPECT_NE(at(json, "error.code").as_string(), nullptr);
    EXPECT_EQ(site.post(kText, clean).at("choices"), control);
    EXPECT_EQ(site.get(kSessions + "/a").at("seq"), session);
  }
  EXPECT_TRUE(site.idle());
}

INSTANTIATE_TEST_SUITE_P(Requests, ApiMalformed,
                         testing::Values(broken_json, bad_turns, unsupported, bad_chats,
                                         bad_sessions));

TEST(ApiTolerates, WhatChangesNothing) {
  Site site(text_model());
  const Json control =
      site.post(kText, R"({"prompt":"Hello","max_tokens":12,"seed":7})").at("choices");
  for (const char* extra :
       {R"("user":"me","metadata":{"a":"b"},"store":true,"service_tier":"auto")",
        R"("best_of":1,"frequency_penalty":0,"presence_penalty":0.0,"logit_bias":{},"suffix":"")",
        R"("logprobs":null,"stop":null,"session":null,"stream_options":null)",
        R"("temperature":1,"top_p":1.0,"n":1,"stop":[],"echo":false)"}) {
    const Answered answer = site.post(
        kText, std::string(R"({"prompt":"Hello","max_tokens":12,"seed":7,)") + extra + "}");
    EXPECT_EQ(answer.status, 200) << answer.body;
    EXPECT_EQ(answer.at("choices"), control);
  }
  const Answered empty = site.post(kText, R"({"prompt":[""],"max_tokens":3})");
  EXPECT_EQ(empty.status, 200) << empty.body;
  EXPECT_EQ(empty.at("usage.completion_tokens"), Json(3));
  const Answered chat_answer = site.post(
      kChat, R"({"messages":[{"role":"user","content":"x"}],"max_tokens":2,"logprobs":false,
                 "top_logprobs":0,"tools":[],"tool_choice":"auto","response_format":{"type":"text"},
                 "parallel_tool_calls":true,"modalities":["text"]})");
  EXPECT_EQ(chat_answer.status, 200) << chat_answer.body;
}

TEST(ApiRoutes, RefusesWhatIsNoRoute) {
  Site site(text_model());
  EXPECT_EQ(site.get("/v1/nothing").status, 404);
  EXPECT_EQ(site.get("/v1/sessions/a/b/c").status, 404);
  EXPECT_EQ(site.get("/v1/sessions//fork").status, 404);
  const Answered method = site.get(kText);
  EXPECT_EQ(method.status, 405);
  EXPECT_EQ(method.header("Allow"), "POST");
  http::Request form = site.request("POST", kText, R"({"prompt":"a"})");
  form.headers = {{"Content-Type", "text/plain"}};
  EXPECT_EQ(site.send(form).status, 415);
  form.headers = {{"Content-Type", "Application/JSON; charset=utf-8"}};
  EXPECT_EQ(site.send(form).status, 200);
  EXPECT_EQ(site.get("/v1/sessions?limit=0").at("error.param"), Json("limit"));
  EXPECT_EQ(site.get("/v1/sessions?limit=1e9").status, 400);
}

}  // namespace
}  // namespace tarn::serve::api
