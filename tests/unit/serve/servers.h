#pragma once

#include <memory>
#include <string>

#include "unit/serve/places.h"

namespace tarn::serve {

// Places on database servers of our own: started in a scratch folder on first use, on a unix socket
// that nobody else sees, and ended with the test program.

std::unique_ptr<Place> make_postgres(std::string* why_not);
std::unique_ptr<Place> make_redis(std::string* why_not);

}  // namespace tarn::serve
