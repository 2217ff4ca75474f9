// What the kernel says of this process's memory.
#pragma once

#include <cstdint>
#include <string_view>

#include "table/memory.h"

namespace engram::server {

// Rss and AnonHugePages of smaps_rollup text.
[[nodiscard]] Residency parse_rollup(std::string_view text);
[[nodiscard]] Residency own_memory();

}  // namespace engram::server
