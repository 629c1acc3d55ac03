#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "base/result.h"

namespace tarn::serve::api {

struct ChatMessage {
  enum class Role : uint8_t { kSystem, kUser, kAssistant };
  Role role = Role::kUser;
  std::string content;
};

/// Reads "messages": roles system, developer (as system), user and assistant; contents that are text
/// or a list of text parts. Errors name the message.
Result<std::vector<ChatMessage>> parse_messages(const Json& json);

/// The one template of models over bytes: "System: …", "User: …" and "Assistant: …", each followed by
/// a blank line, and "Assistant:" at the end for the model to go on. Within contents line breaks are
/// made \n, several in a row become one and those at the ends go, so no content can begin another
/// message. `continues`: the sequence holds earlier messages already, and an assistant's
/// message that comes first ends the one that was left open: it has no "Assistant:" before it.
std::string render_chat(const std::vector<ChatMessage>& messages, bool continues);

/// What ends an answer: the blank line.
inline constexpr const char* kChatStop = "\n\n";

}  // namespace tarn::serve::api
