#pragma once

#include "server/options.h"

namespace engram::server {

// Both return the exit status and print their own complaint.
[[nodiscard]] int run_serve(const ServeOptions& options);
[[nodiscard]] int run_status(const StatusOptions& options);

}  // namespace engram::server
