#pragma once

#include <memory>
#include <string>

#include "serve/api/api.h"
#include "serve/api/errors.h"
#include "serve/api/fields.h"

namespace tarn::serve::api {

/// One request on its way through the routes.
struct Api::Call {
  const http::Request& request;
  std::shared_ptr<http::Exchange> exchange;
  std::string client;   ///< see Api::client
  std::string path_id;  ///< what stands for {id} in the route

  void answer(const Json& json, int status = 200) const {
    exchange->send({.status = status, .body = json.dump()});
  }
  void fail(const Failure& failure) const { exchange->send(error_reply(failure)); }
};

}  // namespace tarn::serve::api
