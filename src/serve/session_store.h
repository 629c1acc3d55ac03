#pragma once

#include <memory>

#include "base/result.h"
#include "serve/storage/objects.h"
#include "serve/store.h"

namespace tarn::serve {

/// The one store: versions, leases and references over whatever keeps its named bytes.
Result<std::unique_ptr<SessionStore>> make_session_store(std::unique_ptr<Objects> objects,
                                                         const StoreOptions& options);

}  // namespace tarn::serve
