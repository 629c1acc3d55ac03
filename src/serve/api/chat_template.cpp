#include "serve/api/chat_template.h"

#include <utility>

namespace tarn::serve::api {
namespace {

/// Members that say nothing, as clients send them back with an assistant's message.
bool is_neutral(const Json& value) {
  if (value.is_null()) return true;
  if (const Json::Array* array = value.as_array()) return array->empty();
  const Json::Object* object = value.as_object();
  return object != nullptr && object->empty();
}

Result<std::string> parse_content(const Json& content, const std::string& where) {
  if (const std::string* text = content.as_string()) return *text;
  const Json::Array* parts = content.as_array();
  if (parts == nullptr) {
    return invalid_argument(
        std::string("must be a string or a list of text parts, got ") + content.type_name(), where);
  }
  std::string text;
  for (size_t i = 0; i < parts->size(); ++i) {
    const std::string place = where + "[" + std::to_string(i) + "]";
    const Json* type = (*parts)[i].find("type");
    const Json* part = (*parts)[i].find("text");
    if (type == nullptr || *type != Json("text")) {
      return invalid_argument("must be \"text\": the model reads nothing else", place + ".type");
    }
    if (part == nullptr || part->as_string() == nullptr) {
      return invalid_argument("must be a string", place + ".text");
    }
    text += *part->as_string();
  }
  return text;
}

Result<ChatMessage> parse_message(const Json& json, const std::string& where) {
  const Json::Object* object = json.as_object();
  if (object == nullptr) {
    return invalid_argument(std::string("must be an object, got ") + json.type_name(), where);
  }
  ChatMessage message;
  const Json *role = nullptr, *content = nullptr;
  for (const auto& [key, value] : *object) {
    if (key == "role") {
      role = &value;
    } else if (key == "content") {
      content = &value;
    } else if (!is_neutral(value)) {
      return Error{ErrorCode::kUnsupported, "is not supported", where + "." + key};
    }
  }
  const std::string name =
      role != nullptr && role->as_string() != nullptr ? *role->as_string() : "";
  if (name == "system" || name == "developer") {
    message.role = ChatMessage::Role::kSystem;
  } else if (name == "assistant") {
    message.role = ChatMessage::Role::kAssistant;
  } else if (name != "user") {
    return invalid_argument("must be one of system, developer, user, assistant, got " +
                                (role == nullptr     ? std::string("nothing")
                                 : role->as_string() ? json_quote(name, 40)
                                                     : std::string(role->type_name())),
                            where + ".role");
  }
  if (content == nullptr) return invalid_argument("is missing", where + ".content");
  TARN_ASSIGN(message.content, parse_content(*content, where + ".content"));
  return message;
}

std::string clean(const std::string& content) {
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const char c = content[i] == '\r' ? '\n' : content[i];
    if (c == '\n' && (text.empty() || text.back() == '\n')) continue;
    text += c;
  }
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

}  // namespace

Result<std::vector<ChatMessage>> parse_messages(const Json& json) {
  const Json::Array* array = json.as_array();
  if (array == nullptr) {
    return invalid_argument(std::string("must be a list, got ") + json.type_name(), "messages");
  }
  if (array->empty()) return invalid_argument("is empty", "messages");
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < array->size(); ++i) {
    TARN_ASSIGN(ChatMessage message,
                parse_message((*array)[i], "messages[" + std::to_string(i) + "]"));
    messages.push_back(std::move(message));
  }
  if (messages.back().role == ChatMessage::Role::kAssistant) {
    return invalid_argument("the last one must not be the assistant's: it is to be drawn",
                            "messages");
  }
  return messages;
}

std::string render_chat(const std::vector<ChatMessage>& messages, bool continues) {
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool closes = continues && i == 0;
    switch (messages[i].role) {
      case ChatMessage::Role::kSystem: text += "System: "; break;
      case ChatMessage::Role::kUser: text += "User: "; break;
      case ChatMessage::Role::kAssistant: text += closes ? "" : "Assistant: "; break;
    }
    text += clean(messages[i].content) + "\n\n";
  }
  return text + "Assistant:";
}

}  // namespace tarn::serve::api
